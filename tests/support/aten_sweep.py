"""Every operator that torch's own tests sample, fused alone and compared with torch.

    python tests/support/aten_sweep.py [--samples 4] [NAME...]

prints each operator that gives something else, or is refused, and how many are kernels and how many calls of torch.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

import kfusion as kf
from kfusion._graph.structure import Slot, fill, leaves, walk
from kfusion._tracing import aten

DTYPES = (torch.float32, torch.float64)
# Results that another call does not give again, or that nothing is said of.
_EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted")
UNSPECIFIED = aten.RANDOM | {"_ctc_loss", *_EMPTY}
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-7, torch.complex64: 1e-4}


class Sample(NamedTuple):
    """A call of an operator."""

    op: Any
    args: Any
    kwargs: Any


class _Recorder(TorchDispatchMode):
    """Notes the operators that torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Sample] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = walk((args, kwargs or {}), lambda _, v: v.detach().clone() if _is_tensor(v) else v)
        self.calls.append(Sample(op, *kept))
        return op(*args, **(kwargs or {}))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def samples(names: Any = None, most: int = 2) -> Iterator[Sample]:
    """Calls of operators that torch makes for the samples of its tests; `names`: of the functions, None is all."""
    for info in op_db:
        if names is not None and info.name not in names:
            continue
        for dtype in DTYPES:
            if dtype not in info.supported_dtypes("cpu"):
                continue
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(0)
                for given in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), most):
                    with _Recorder() as recorder:
                        info.op(given.input, *given.args, **given.kwargs)
                    yield from recorder.calls


def kind(sample: Sample) -> Any:
    """What tells a sample from others: its operator, and shapes and dtypes."""
    return sample.op, repr(walk(sample[1:], lambda _, v: (v.shape, v.dtype, v.stride()) if _is_tensor(v) else v))


def check(sample: Sample) -> str:
    """ "kernels" or "library", by what computes it, else what is wrong: "refused: ...", or "WRONG: ..."."""
    tensors: list[Any] = []

    def slot(_: str, leaf: Any) -> Any:
        if not _is_tensor(leaf):
            return leaf
        tensors.append(leaf)
        return Slot(len(tensors) - 1)

    structure = walk((sample.args, sample.kwargs), slot)

    def graph(*given: Any) -> Any:
        args, kwargs = fill(structure, list(given))
        made = aten.called(sample.op, args, kwargs)
        return tuple(v for v in leaves(made) if _is_tensor(v)) if not _is_tensor(made) else made

    def wanted() -> list[Any]:
        args, kwargs = fill(structure, [t.clone() for t in tensors])
        return [v for v in leaves(sample.op(*args, **kwargs)) if _is_tensor(v)]

    expected = wanted()
    fused = kf.fuse(graph)
    try:
        got = [v for v in leaves(fused(*tensors)) if _is_tensor(v)]
        is_library = any(t.is_complex() for t in (*tensors, *got)) or _has_calls(graph, tensors)
    except Exception as error:
        return f"refused: {type(error).__name__}: {str(error).splitlines()[0]}"
    if _name(sample.op) in UNSPECIFIED:
        same = [(g.shape, g.dtype) for g in got] == [(e.shape, e.dtype) for e in expected]
        return ("library" if is_library else "kernels") if same else "WRONG: shapes"
    if len(got) != len(expected):
        return f"WRONG: {len(got)} results, not {len(expected)}"
    for g, e in zip(got, expected, strict=True):
        tolerance = _TOLERANCE.get(e.dtype, 1e-6)
        try:
            torch.testing.assert_close(g, e, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
        except AssertionError as error:
            return f"WRONG: {' '.join(str(error).split())[:160]}"
    return "library" if is_library else "kernels"


def _has_calls(graph: Any, tensors: list[Any]) -> bool:
    return "library_call" in str(kf.trace(graph, *tensors).to_dict()["nodes"])


def _name(op: Any) -> str:
    return op._schema.name.partition("::")[2]


def usable(sample: Sample) -> bool:
    """Whether it is a plain call of tensors that writes to none, of which the results are known."""
    tensors = [v for v in leaves((sample.args, sample.kwargs)) if _is_tensor(v)]
    plain = all(t.layout is torch.strided and not t.is_quantized and t.device.type == "cpu" for t in tensors)
    return bool(tensors) and plain and not sample.op._schema.is_mutable


def main() -> None:
    """Prints what is wrong, and counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--samples", type=int, default=2)
    given = parser.parse_args()
    seen, counts = set(), collections.Counter()
    by_op: dict[str, set[str]] = collections.defaultdict(set)
    for sample in samples(given.names or None, given.samples):
        if not usable(sample) or kind(sample) in seen:
            continue
        seen.add(kind(sample))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = check(sample)
        word = found.partition(":")[0]
        counts[word] += 1
        by_op[word].add(str(sample.op))
        if word not in ("kernels", "library"):
            print(sample.op, kind(sample)[1][:200], found, sep="\n    ", flush=True)
    print({word: (number, len(by_op[word])) for word, number in counts.items()})
    print("library:", *sorted(by_op["library"] - by_op["kernels"]))


if __name__ == "__main__":
    main()
