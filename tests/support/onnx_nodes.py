"""The node cases of the onnx package, run by kfusion.

    python tests/support/onnx_nodes.py results/onnx_nodes.json

writes how many run, and how, and how many are refused, by operator.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import kfusion as kf
from kfusion._onnx.refusals import Refused

# Two units in the last place: the reference rounds half types after each step, kernels do not.
RTOL = {"bfloat16": 2**-6, "float16": 2**-9}


def cases() -> list[Any]:
    """All cases, with their data."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return list(collect_testcases(None))


def array(value: Any) -> Any:
    """An input or result of a case as NumPy's array; a list where it is a sequence."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def outcome(case: Any, folder: Path, *, with_how: bool = False) -> str:
    """ "refused", "wrong: ...", "error: ...", or "run"; `with_how`: of kernels, library calls or known when traced."""
    path = folder / "case.onnx"
    onnx.save(case.model, path)
    try:
        fused = kf.fuse(path)
        for inputs, wanted in case.data_sets:
            given = [array(v) for v in inputs]
            found = fused(*given)
            check(found if isinstance(found, tuple) else (found,), [array(v) for v in wanted], case)
        return how(fused, given) if with_how else "run"
    except Refused:
        return "refused"
    except AssertionError as error:
        return f"wrong: {error}"
    except Exception as error:
        return f"error: {type(error).__name__}: {error}"


def check(found: tuple[Any, ...], wanted: list[Any], case: Any) -> None:
    """Compares as onnx's own runner does."""
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        rtol = max(case.rtol, RTOL.get(want.dtype.name, 0))
        is_numpys = want.dtype.kind != "V" and want.dtype.isbuiltin == 1
        got, want = (got, want) if is_numpys else (got.astype(np.float64), want.astype(np.float64))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=case.atol)


def how(fused: Any, given: list[Any]) -> str:
    """Who computes the case."""
    try:
        nodes = fused.plan(*given, device="H200").unfused_graph.to_dict()["nodes"]
    except ValueError:
        return "known"
    return "library" if any(n["op"] == "library_call" for n in nodes) else "kernels"


def counted() -> dict[str, Any]:
    """How many cases there are of each outcome, in all and by operator; those that are wrong or fail by name."""
    by_operator: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            found = outcome(case, Path(folder), with_how=True)
            kind = found.partition(":")[0]
            by_operator[_operator(case)][kind] += 1
            if kind in ("wrong", "error"):
                failed[case.name] = found.splitlines()[0]
    kinds = ("kernels", "library", "known", "refused", "wrong", "error")
    total = {kind: sum(counts.get(kind, 0) for counts in by_operator.values()) for kind in kinds}
    run = total["kernels"] + total["library"] + total["known"]
    return {
        "onnx": onnx.__version__,
        "total": {"cases": sum(total.values()), "run": run, **total},
        "failed": failed,
        "operators": {op: dict(counts) for op, counts in sorted(by_operator.items())},
    }


def _operator(case: Any) -> str:
    """The operator of a case: of one that is expanded into its body, too."""
    nodes = [node for node in case.model.graph.node if node.op_type != "Constant"]
    name = str((nodes or case.model.graph.node)[0].op_type)
    for node in _walk(case.model.graph):
        if "_expanded_function" in "".join((*node.input, *node.output)):
            name = next(n for n in (*node.input, *node.output) if "_expanded_function" in n).partition("_test_")[0]
            break
    return name


def _walk(graph: Any) -> Iterator[Any]:
    yield from graph.node


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        result = counted()
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["total"]), result["failed"])
