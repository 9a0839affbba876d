"""`kfusion.compare`: first checks, then measures, both versions of an operation on the caller's own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _arrays, _core, _timing
from .._devices import hardware as _hardware
from . import contest as _contest
from . import peers as _peers
from . import versions
from .comparison import Comparison, Row
from .problem import Problem

_CACHES = ("cold", "hot")
_BUDGET_S = 3.0  # per cache state, when the number of repeats is not given
_SEED = 0


@np.errstate(all="ignore")  # infinities in the arrays are the caller's business, not a warning of a peer's
def compare(
    f: Callable[..., Any],
    *args: Any,
    peers: Sequence[str] | None = None,
    repeats: int | None = None,
    cache: str | None = None,
    progress: _timing.Progress | None = None,
    **keywords: Any,
) -> Comparison:
    """Measures what fusion gives on your data: fused against unfused, a copy of the same bytes, and other libraries.

    All versions are first checked against a float64 reference (of large arrays some whole rows, where the function
    treats rows alike), kfusion's with results full of NaN beforehand. Then they are timed in random order: on the CPU
    by wall clock, on CUDA by events. The copy, timed between all samples, moves as many bytes as the function's arrays
    and results have: the yardstick of a kernel that reads and writes each once. Other libraries run the same
    operations, one call each (what a library has as one function, torch's softmax, is one call), or compiled by them.

    Args:
        f: a plain function of arrays, one made by `kfusion.fuse`, the path of an ONNX model, or a named kernel:
            `kfusion.fused_softmax` or `kfusion.unfused_softmax`, either means the pair. It writes to no argument.
        args: f's arguments; the arrays are of any kind, on the CPU or on CUDA, not empty.
        peers: libraries to measure as well ("numpy", "numexpr", "torch", "torch.compile", "jax", "jax.jit", "cupy",
            "cupy.fuse"), imported if need be. None means NumPy (on the CPU) and those that the program has imported
            already (torch.compile: has used); () means none.
        repeats: samples of each version; None takes as many as fit into a few seconds.
        cache: "cold" (flushed before each sample), "hot", or None for both. Data beyond every cache is always cold.
        progress: called with the fraction done (0 to 1) and a word on what is being done.
        keywords: f's keyword arguments; give those named like an option above by functools.partial.

    Returns:
        A `Comparison`: print it, `.plot()` it, `.to_dict()` it.

    Raises:
        TypeError: f is no function or writes to an argument, or an argument is of a wrong kind.
        ValueError: an array is empty, or peers, repeats or cache is not among the choices.
        TraceError: f does what cannot be traced.
        ImportError: a named peer is not installed.
        AssertionError: a version is wrong by more than its rounding explains; nothing is measured then.
    """
    _check_options(repeats, cache)
    report = progress or (lambda fraction, what: None)
    report(0.0, "checking")
    contest = _contest.prepare(f, args, keywords, peers)
    problem, notes = contest.problem, contest.notes
    copied_bytes, copy = _copy(problem, contest.out)
    costs = versions.costs(problem.plan, copied_bytes)
    rows: list[Row] = []
    states = _states(problem, cache, notes)
    for i, state in enumerate(states):
        samples = _timing.measure(
            contest.variants,
            _timing.Variant("copy", copy),
            _contest.clock(problem, flush=state == "cold" and _fits_cache(problem)),
            repeats=repeats,
            budget_s=_BUDGET_S,
            seed=_SEED,
            progress=_part(report, i, len(states), state),
        )
        rows += _rows(costs, state, samples, contest.errors)
    report(1.0, "done")
    return _comparison(problem, rows, contest.difference, notes, contest.names)


def _part(report: _timing.Progress, index: int, count: int, state: str) -> _timing.Progress:
    return lambda done, what: report((index + done) / count, f"{what}, {state}")


def _check_options(repeats: int | None, cache: str | None) -> None:
    if repeats is not None and repeats < 1:
        raise ValueError(f"kfusion.compare: repeats must be at least 1, got {repeats}")
    if cache is not None and cache not in _CACHES:
        raise ValueError(f"kfusion.compare: cache must be 'cold', 'hot' or None, got {cache!r}")


def _copy(problem: Problem, out: Any) -> tuple[int, Callable[[], Any]]:
    """The copy of as many bytes, and how many: of the largest array into the result, or of random bytes."""
    stream = 0 if problem.cuda else None
    results = problem.outputs(out) if out is not None else []
    source, target = problem.largest, results[0] if results else None
    half = problem.moved_bytes // 2
    if _nbytes(source) == half and (target is None or _nbytes(target) == half):
        try:
            _core.copy(source, out=target, stream=stream)
            return 2 * half, lambda: _core.copy(source, out=target, stream=stream)
        except (TypeError, ValueError):  # of whole numbers, or of what is not C-contiguous
            pass
    elements = copied_elements(2 * half)
    random = np.random.default_rng(_SEED).random(min(elements, 2**22), dtype=np.float32)
    dense: Any = np.resize(random, elements)
    device = _arrays.cuda_index(source) if problem.cuda else 0
    source, target = (_core.to_device(a, device) if problem.cuda else a for a in (dense, dense.copy()))
    return 2 * dense.nbytes, lambda: _core.copy(source, out=target, stream=stream)


def copied_elements(nbytes: int) -> int:
    """The number of float32 in the array whose copy moves this many bytes, or a few more: large ones are whole pages,
    because the GPU's copy of any other size takes a quarter longer, which would flatter all else.
    """
    page = 4096 if nbytes > 2**20 else 4
    return max(-(-nbytes // 8 // page) * page, page)


def _nbytes(x: Any) -> int:
    return int(np.prod(x.shape, dtype=np.int64)) * int(x.dtype.itemsize)


def _fits_cache(problem: Problem) -> bool:
    """Whether enough of the arrays and results to matter could be in a cache when the next call starts."""
    if problem.cuda:
        cache_bytes = int(_hardware.gpu(_arrays.cuda_index(problem.largest)).get("l2_bytes", 2**27))
    else:
        cache_bytes = _hardware.last_level_cache_bytes()
    return problem.moved_bytes < 8 * cache_bytes


def _states(problem: Problem, cache: str | None, notes: list[str]) -> tuple[str, ...]:
    if not _fits_cache(problem):
        notes.append("The data is far beyond every cache: there is no hot state.")
        return ("cold",)
    return _CACHES if cache is None else (cache,)


def _rows(
    costs: Mapping[str, versions.Cost], cache: str, samples: dict[str, _timing.Samples], errors: dict[str, float]
) -> list[Row]:
    unfused_ratio = np.median(samples["unfused"].copy_ratios)
    us_per_byte = samples["copy"].percentile_us(50) / costs["copy"].moved_bytes
    rows = []
    for name, measured in samples.items():
        version = name.partition(",")[0]
        median_us = measured.percentile_us(50)
        copy_ratio = float(np.median(measured.copy_ratios))
        cost = costs.get(version)
        moved = cost.moved_bytes if cost else None
        rows.append(
            Row(
                name=name,
                cache=cache,
                median_us=median_us,
                p20_us=measured.percentile_us(20),
                p80_us=measured.percentile_us(80),
                samples=len(measured.times_us),
                launches=cost.launches if cost else None,
                moved_bytes=moved,
                predicted_us=moved * us_per_byte if moved else None,
                gbps=moved / median_us / 1e3 if moved else None,
                copy_pct=100 * copy_ratio,
                speedup=copy_ratio / float(unfused_ratio),
                max_abs_error=errors.get(version),
                is_peer=cost is None,
            )
        )
    return sorted(rows, key=lambda row: row.is_peer)


def _comparison(
    problem: Problem, rows: Sequence[Row], difference: float, notes: Sequence[str], names: Sequence[str]
) -> Comparison:
    x = problem.largest
    hardware = {"cpu": _hardware.cpu()}
    if problem.cuda:
        hardware["gpu"] = _hardware.gpu(_arrays.cuda_index(x))
    libraries = {_arrays.kind(x), *map(_peers.library_of, names)}
    return Comparison(
        operation=problem.traced.name,
        subject=problem.subject,
        shape=tuple(int(n) for n in x.shape),
        dtype=_arrays.dtype_name(x),
        array=_arrays.kind(x),
        device="cuda" if problem.cuda else "cpu",
        arguments=problem.described,
        predicted=dict(problem.plan.savings),
        max_difference=difference,
        rows=tuple(rows),
        notes=tuple(notes),
        hardware=hardware,
        versions=_hardware.versions(libraries - {"kfusion", "numpy"}),
    )
