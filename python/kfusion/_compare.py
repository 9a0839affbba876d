"""`kfusion.compare`: first checks, then measures, both versions of an operation on the caller's own data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import _arrays, _check, _core, _hardware, _peers, _relu_layernorm, _timing
from ._report import Comparison, Row

_CACHES = ("cold", "hot")
_BUDGET_S = 3.0  # per cache state, when the number of repeats is not given
_SEED = 0

_COSTS = {
    "unfused": _relu_layernorm.UNFUSED,
    "fused": _relu_layernorm.FUSED,
    "fused, again": _relu_layernorm.FUSED,
    "fused, fresh": _relu_layernorm.FUSED,
    "copy": _relu_layernorm.COPY,
}


@np.errstate(all="ignore")  # infinities in x are the caller's business, not a warning of a peer's
def compare(
    f: Callable[..., Any],
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    eps: float = 1e-5,
    peers: Sequence[str] | None = None,
    repeats: int | None = None,
    cache: str | None = None,
    progress: _timing.Progress | None = None,
) -> Comparison:
    """Measures what fusion gives on x: fused against unfused, a copy of the same bytes, and other libraries.

    Both versions are first checked against a float64 reference (whole rows of x, all of them if it is small), with
    outputs full of NaN beforehand. Then all are timed in random order: on the CPU by wall clock, on CUDA by events.
    The copy, timed between all samples, is the yardstick of a kernel that reads and writes the matrix once.

    Args:
        f: `kfusion.fused_relu_layernorm` or `kfusion.unfused_relu_layernorm`; either means the pair.
        x: array of any kind, on the CPU or on CUDA, of shape (..., cols), floating point, not empty.
        weight: (cols,) or None, as f takes it.
        bias: (cols,) or None, as f takes it.
        eps: added to the variance.
        peers: libraries to measure as well ("numpy", "torch", "jax", "cupy"), imported if need be. None means NumPy
            (on the CPU) and those that the program has imported already; () means none.
        repeats: samples of each version; None takes as many as fit into a few seconds.
        cache: "cold" (flushed before each sample), "hot", or None for both. Data beyond every cache is always cold.
        progress: called with the fraction done (0 to 1) and a word on what is being done.

    Returns:
        A `Comparison`: print it, `.plot()` it, `.to_dict()` it.

    Raises:
        TypeError: f is nothing that can be compared yet, or an argument is of a wrong kind.
        ValueError: x is empty, or peers, repeats or cache is not among the choices.
        ImportError: a named peer is not installed.
        AssertionError: a version is wrong by more than its rounding explains; nothing is measured then.
    """
    _check_arguments(f, repeats, cache)
    report = progress or (lambda fraction, what: None)
    report(0.0, "checking")
    problem, errors, difference = _check.checked_problem(x, weight, bias, eps)
    names, notes = _peers.choose(peers, problem.cuda)
    calls = _prepare_peers(names, problem, errors, notes)
    variants, copy = _variants(problem, calls)
    rows: list[Row] = []
    states = _states(problem, cache, notes)
    for i, state in enumerate(states):
        samples = _timing.measure(
            variants,
            copy,
            _clock(problem, flush=state == "cold"),
            repeats=repeats,
            budget_s=_BUDGET_S,
            seed=_SEED,
            progress=_part(report, i, len(states), state),
        )
        rows += _rows(problem, state, samples, errors)
    report(1.0, "done")
    return _comparison(problem, rows, difference, notes, names)


def _part(report: _timing.Progress, index: int, count: int, state: str) -> _timing.Progress:
    return lambda done, what: report((index + done) / count, f"{what}, {state}")


def _check_arguments(f: Any, repeats: int | None, cache: str | None) -> None:
    if not any(f is known for known in (_core.fused_relu_layernorm, _core.unfused_relu_layernorm)):
        raise TypeError(
            "kfusion.compare: f must be kfusion.fused_relu_layernorm or kfusion.unfused_relu_layernorm "
            f"(other functions are not supported yet), got {getattr(f, '__name__', type(f).__name__)}"
        )
    if repeats is not None and repeats < 1:
        raise ValueError(f"kfusion.compare: repeats must be at least 1, got {repeats}")
    if cache is not None and cache not in _CACHES:
        raise ValueError(f"kfusion.compare: cache must be 'cold', 'hot' or None, got {cache!r}")


def _prepare_peers(
    names: Sequence[str], problem: _check.Problem, errors: dict[str, float], notes: list[str]
) -> list[_peers.Call]:
    """Peers that can do it, warmed up; a note for each that cannot: its refusal should not stop the rest."""
    calls = []
    for name in names:
        try:
            call = _peers.prepare(name, problem.x, problem.weight, problem.bias, problem.eps)
            result = _arrays.float64_rows(call.run(), problem.rows)
        except Exception as error:
            notes.append(f"{name} is left out: {error}")
            continue
        errors[name] = _check.max_error(result, problem.expected)
        calls.append(call)
    return calls


def _variants(problem: _check.Problem, calls: Sequence[_peers.Call]) -> tuple[list[_timing.Variant], _timing.Variant]:
    out = problem.call(_core.fused_relu_layernorm) if _arrays.mutable(problem.x) else None
    fused, unfused = _core.fused_relu_layernorm, _core.unfused_relu_layernorm
    variants = [
        _timing.Variant("unfused", lambda: problem.call(unfused, out)),
        _timing.Variant("fused", lambda: problem.call(fused, out)),
        _timing.Variant("fused, again", lambda: problem.call(fused, out)),
    ]
    if out is not None:
        variants.append(_timing.Variant("fused, fresh", lambda: problem.call(fused)))
    variants += [_timing.Variant(call.name, call.run, is_peer=True) for call in calls]
    return variants, _timing.Variant("copy", _copy(problem, out))


def _copy(problem: _check.Problem, out: Any) -> Callable[[], Any]:
    """The copy of the same bytes: of x itself, or of random bytes where x is strided."""
    source, target = problem.x, out
    try:
        _core.copy(source, out=target, stream=problem.stream)
    except ValueError:  # "must be C-contiguous", said of any kind of array
        random = np.random.default_rng(_SEED).bytes(problem.matrix_bytes)
        dense = np.frombuffer(random, dtype=f"f{problem.itemsize}")
        source, target = (_core.to_device(dense), _core.to_device(dense)) if problem.cuda else (dense, dense.copy())
    return lambda: _core.copy(source, out=target, stream=problem.stream)


def _clock(problem: _check.Problem, *, flush: bool) -> _timing.Clock:
    if problem.cuda:
        return _timing.CudaClock(flush=flush, device=_arrays.cuda_index(problem.x))
    return _timing.CpuClock(flush=flush and _fits_cache(problem))


def _fits_cache(problem: _check.Problem) -> bool:
    """Whether enough of x and the result to matter could be in a cache when the next call starts."""
    if problem.cuda:
        cache_bytes = int(_hardware.gpu(_arrays.cuda_index(problem.x)).get("l2_bytes", 2**27))
    else:
        cache_bytes = _hardware.last_level_cache_bytes()
    return problem.matrix_bytes * 2 < 8 * cache_bytes


def _states(problem: _check.Problem, cache: str | None, notes: list[str]) -> tuple[str, ...]:
    if not _fits_cache(problem):
        notes.append("The data is far beyond every cache: there is no hot state.")
        return ("cold",)
    return _CACHES if cache is None else (cache,)


def _rows(
    problem: _check.Problem, cache: str, samples: dict[str, _timing.Samples], errors: dict[str, float]
) -> list[Row]:
    unfused_ratio = np.median(samples["unfused"].copy_ratios)
    rows = []
    for name, measured in samples.items():
        median_us = measured.percentile_us(50)
        copy_ratio = float(np.median(measured.copy_ratios))
        cost = _COSTS.get(name)
        moved = cost.passes * problem.matrix_bytes if cost else None
        rows.append(
            Row(
                name=name,
                cache=cache,
                median_us=median_us,
                p20_us=measured.percentile_us(20),
                p80_us=measured.percentile_us(80),
                samples=len(measured.times_us),
                launches=cost.launches if cost else None,
                passes=cost.passes if cost else None,
                moved_bytes=moved,
                gbps=moved / median_us / 1e3 if moved else None,
                copy_pct=100 * copy_ratio,
                speedup=copy_ratio / float(unfused_ratio),
                max_abs_error=None if name == "copy" else errors[name.partition(",")[0]],
                is_peer=cost is None,
            )
        )
    return sorted(rows, key=lambda row: row.is_peer)


def _comparison(
    problem: _check.Problem, rows: Sequence[Row], difference: float, notes: Sequence[str], names: Sequence[str]
) -> Comparison:
    x = problem.x
    hardware = {"cpu": _hardware.cpu()}
    if problem.cuda:
        hardware["gpu"] = _hardware.gpu(_arrays.cuda_index(x))
    return Comparison(
        operation="relu_layernorm",
        shape=tuple(int(n) for n in x.shape),
        dtype=_arrays.dtype_name(x),
        array=_arrays.kind(x),
        device="cuda" if problem.cuda else "cpu",
        weight=problem.weight is not None,
        bias=problem.bias is not None,
        eps=float(problem.eps),
        predicted=_core.savings(_relu_layernorm.savings_ops(problem.elements), dtype_bytes=problem.itemsize),
        max_difference=difference,
        rows=tuple(rows),
        notes=tuple(notes),
        hardware=hardware,
        versions=_hardware.versions({_arrays.kind(x), *names} - {"kfusion", "numpy"}),
    )
