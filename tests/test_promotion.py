"""Which dtype each op of the table gives: NumPy's and torch's answers on one-element arrays, for every combination."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kfusion import _core

ROWS = _core.op_table()
MAPS = [r for r in ROWS if r["kind"] == "map"]
REDUCTIONS = [r for r in ROWS if r["kind"] == "reduce"]
NUMPY_DTYPES = ("bool", "int32", "int64", "float16", "float32", "float64")
TORCH_DTYPES = (*NUMPY_DTYPES, "bfloat16")
SCALARS = (True, 1, 1.0)
REFUSED = "refused"


def _philox(x, y, z):
    """Takes integers, bools beside them, and gives int64."""
    made = np.asarray(x | y | z)
    return made.astype(np.int8 if made.dtype == bool else np.int64)


LIKE = {"S_S": np.positive, "F_F": np.exp, "LLL_L": _philox}  # by signature, of what NumPy lacks

Operand = Any  # a Python scalar, or (dtype, number of axes)


def by_name(rows: Sequence[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=[r["name"] for r in rows])


def ours(library: str, call: Callable[[_core.Graph, list[int]], int], operands: Sequence[Operand]) -> str:
    g = _core.Graph()
    ids = [g.input("", (1,) * o[1], o[0], library=library) if isinstance(o, tuple) else g.scalar(o) for o in operands]
    try:
        result = call(g, ids)
    except TypeError:
        return REFUSED
    g.verify()
    return g.dtype(result)


def mapped(name: str, operands: Sequence[Operand], library: str = "numpy") -> str:
    return ours(library, lambda g, ids: g.map(name, ids), operands)


def numpy_answer(f: Callable[..., Any], operands: Sequence[Operand]) -> str:
    values = [np.ones((1,) * o[1], o[0]) if isinstance(o, tuple) else o for o in operands]
    try:
        with np.errstate(all="ignore"):
            dtype = str(f(*values).dtype)
    except TypeError:
        return REFUSED
    return dtype if dtype in NUMPY_DTYPES else REFUSED  # int8 of np.square(bool), say


@by_name(MAPS)
def test_maps_promote_as_numpy(row):
    name = row["name"]
    f = getattr(np, name) if hasattr(np, name) else LIKE[row["signature"]]
    kinds = [*((d, 1) for d in NUMPY_DTYPES), *SCALARS]
    for operands in itertools.product(kinds, repeat=row["arity"]):
        if name == "clip" and not isinstance(operands[0], tuple):
            continue  # np.clip makes an array of its first argument before it promotes
        if name == "reciprocal" and mapped(name, operands) == REFUSED:
            assert numpy_answer(f, operands) in (REFUSED, "int32", "int64")  # an integer division there
            continue
        assert mapped(name, operands) == numpy_answer(f, operands), operands


def test_reciprocal_of_integers_says_what_to_write():
    g = _core.Graph()
    with pytest.raises(TypeError, match=r"reciprocal: x must be floats, got int32.*divide 1 by x"):
        g.map("reciprocal", [g.input("x", (3,), "int32")])


@by_name(REDUCTIONS)
def test_reductions_promote_as_numpy(row):
    for d in NUMPY_DTYPES:
        answer = ours("numpy", lambda g, ids: g.reduce(row["name"], ids[0], [0]), [(d, 1)])
        assert answer == numpy_answer(getattr(np, row["name"]), [(d, 1)]), d


# torch computes these for floats only; ours takes them as NumPy does.
TORCH_LACKS = {
    "hypot": ("bool", "int32", "int64"),
    "logaddexp": ("bool", "int32", "int64"),
    "absolute": ("bool",),
    "floor": ("bool",),
    "ceil": ("bool",),
    "trunc": ("bool",),
    "rint": ("bool",),
    "clip": ("bool",),
}


def torch_lacks(name: str, promoted: Any, operands: Sequence[Operand]) -> bool:
    """Documented exceptions: torch refuses, ours gives a result."""
    if name == "subtract":  # `-` with a bool, whatever the other
        return any(o is True or (isinstance(o, tuple) and o[0] == "bool") for o in operands)
    return str(promoted).removeprefix("torch.") in TORCH_LACKS.get(name, ())


def ours_lacks(name: str, promoted: Any) -> bool:
    """Documented exceptions: ours refuses, as NumPy does, what torch gives for bools."""
    return name in ("sign", "square", "power") and str(promoted) == "torch.bool"


def torch_function(torch: Any, row: dict[str, Any]) -> Callable[..., Any]:
    for name in (*row["other_names"], row["name"]):  # torch.equal is another function than torch.eq
        for module in (torch, torch.special):
            if hasattr(module, name):
                return getattr(module, name)
    pytest.skip("torch has no such function")


def torch_value(torch: Any, o: Operand) -> Any:
    return torch.ones((1,) * o[1], dtype=getattr(torch, o[0])) if isinstance(o, tuple) else o


def torch_answer(torch: Any, f: Callable[..., Any], operands: Sequence[Operand]) -> str | None:
    """None where the function does not take Python scalars there."""
    try:
        return str(f(*(torch_value(torch, o) for o in operands)).dtype).removeprefix("torch.")
    except TypeError:
        return None
    except RuntimeError:  # and NotImplementedError
        return REFUSED


def torch_promoted(torch: Any, operands: Sequence[Operand]) -> Any:
    values = [torch_value(torch, o) for o in operands]
    result = values[0]
    for v in values[1:]:
        dtype = torch.result_type(result, v)
        result = torch.ones(1, dtype=dtype)
    return result.dtype if isinstance(result, torch.Tensor) else None


def operand_sets(arity: int) -> list[tuple[Operand, ...]]:
    arrays: list[Operand] = [(d, 1) for d in TORCH_DTYPES]
    if arity == 3:
        return list(itertools.product(arrays, repeat=3))
    kinds = [*arrays, *((d, 0) for d in TORCH_DTYPES), *SCALARS]
    return [c for c in itertools.product(kinds, repeat=arity) if any(isinstance(o, tuple) for o in c)]


@by_name(MAPS)
def test_maps_promote_as_torch(row):
    torch = pytest.importorskip("torch")
    name, f = row["name"], torch_function(torch, row)
    compared = 0
    for operands in operand_sets(row["arity"]):
        if name == "where" and operands[0] != ("bool", 1):
            continue  # torch wants a bool condition, ours takes any
        expected = torch_answer(torch, f, operands)
        if expected is None:
            continue
        answer = mapped(name, operands, "torch")
        compared += 1
        if answer != expected:
            promoted = torch_promoted(torch, operands)
            excused = torch_lacks(name, promoted, operands) if expected == REFUSED else ours_lacks(name, promoted)
            assert excused, (operands, answer, expected)
        elif any(o == ("bfloat16", 1) for o in operands) and all(o[1] == 1 for o in operands if isinstance(o, tuple)):
            assert mapped(name, operands, "numpy") == expected, operands  # NumPy has no bfloat16: torch's rules
    assert compared >= len(TORCH_DTYPES)


@by_name(REDUCTIONS)
def test_reductions_promote_as_torch(row):
    torch = pytest.importorskip("torch")
    for d in TORCH_DTYPES:
        answer = ours("torch", lambda g, ids: g.reduce(row["name"], ids[0], None), [(d, 1)])
        assert answer == torch_answer(torch, getattr(torch, row["name"]), [(d, 1)]), d


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(1, 1), (1,)])
def test_matmul_promotes(library, shape):
    if library == "torch":
        torch = pytest.importorskip("torch")
    for a, b in itertools.product(NUMPY_DTYPES, repeat=2):
        operands = [(a, len(shape)), (b, len(shape))]
        answer = ours(library, lambda g, ids: g.matmul(*ids), operands)
        if library == "numpy":
            assert answer == str((np.ones(shape, a) @ np.ones(shape, b)).dtype)
        elif a != b or a != "bool":  # bools: torch has no kernel
            assert answer == torch_answer(torch, torch.matmul, operands), operands


@pytest.mark.parametrize("op", ["add", "maximum", "clip", "where"])
def test_an_integer_that_does_not_fit_overflows(op):
    g = _core.Graph()
    x = g.input("x", (3,), "int32")
    arguments = {"clip": [x, g.scalar(0), g.scalar(2**31)], "where": [x, x, g.scalar(-(2**31) - 1)]}
    nodes = len(g)
    with pytest.raises(OverflowError, match=f"^{op}: Python integer -?21474836.. out of bounds for int32$"):
        g.map(op, arguments.get(op, [x, g.scalar(2**31)]))
    assert len(g) <= nodes + 1, "only the scalar was added"
    g.map("add", [x, g.scalar(2**31 - 1)])
    g.map("add", [x, g.scalar(-(2**31))])
    with pytest.raises(OverflowError, match="out of bounds for int64"):
        g.scalar(2**63)


def test_comparisons_with_any_integer_are_exact():
    g = _core.Graph()
    y = g.map("less", [g.input("x", (3,), "int32"), g.scalar(2**31)])
    assert g.dtype(y) == "bool"
    assert [g.node(a)["dtype"] for a in g.node(y)["arguments"]] == ["int64", "int64"]


def test_an_integer_to_a_negative_power():
    g = _core.Graph()
    with pytest.raises(ValueError, match="negative integer powers"):
        g.map("power", [g.input("x", (3,), "int64"), g.scalar(-1)])
    assert g.dtype(g.map("power", [g.input("x", (3,), "float32"), g.scalar(-1)])) == "float32"


@pytest.mark.parametrize(
    ("op", "operands", "message"),
    [
        ("subtract", ["bool", "bool"], "subtract: arguments must be numbers other than bools, got bool and bool"),
        ("negative", ["bool"], "negative: x must be numbers other than bools, got bool"),
        ("invert", ["float32"], "invert: x must be integers or bools, got float32"),
        ("bitwise_or", ["int32", "float16"], "bitwise_or: arguments must be integers or bools, got int32 and float16"),
    ],
)
def test_refusals_name_op_and_dtypes(op, operands, message):
    g = _core.Graph()
    with pytest.raises(TypeError) as e:
        g.map(op, [g.input("x", (), d) for d in operands])
    assert str(e.value) == message


def test_mean_of_torch_integers():
    g = _core.Graph()
    with pytest.raises(TypeError, match="mean: x must be floats, got int64"):
        g.reduce("mean", g.input("x", (3,), "int64", library="torch"), None)
