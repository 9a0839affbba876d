"""Which dtype each op of the table gives: NumPy's and torch's answers on one-element arrays, for every combination."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kfusion import _core
from sweeps import refusals, sweep

torch = pytest.importorskip("torch")
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


def test_promotion_as_numpy():
    def maps(name, signature, arity):
        f = getattr(np, name) if hasattr(np, name) else LIKE[signature]
        for operands in itertools.product([*((d, 1) for d in NUMPY_DTYPES), *SCALARS], repeat=arity):
            if name == "clip" and not isinstance(operands[0], tuple):
                continue  # np.clip makes an array of its first argument before it promotes
            answer, expected = mapped(name, operands), numpy_answer(f, operands)
            if name == "reciprocal" and answer == REFUSED:
                assert expected in (REFUSED, "int32", "int64")  # an integer division there
            else:
                assert answer == expected, operands

    def reductions(name):
        for d in NUMPY_DTYPES:
            answer = ours("numpy", lambda g, ids: g.reduce(name, ids[0], [0]), [(d, 1)])
            assert answer == numpy_answer(getattr(np, name), [(d, 1)]), d

    sweep(maps, [(r["name"], r["signature"], r["arity"]) for r in MAPS])
    sweep(reductions, [(r["name"],) for r in REDUCTIONS])


# torch computes these for floats only; ours takes them as NumPy does.
TORCH_LACKS = {
    **dict.fromkeys(("hypot", "logaddexp"), ("bool", "int32", "int64")),
    **dict.fromkeys(("absolute", "floor", "ceil", "trunc", "rint", "clip"), ("bool",)),
}


def is_excused(name: str, operands: Sequence[Operand], expected: str) -> bool:
    """Documented exceptions: torch refuses, ours gives a result; or ours refuses, as NumPy does, bools."""
    promoted = torch_promoted(operands)
    if expected != REFUSED:
        return name in ("sign", "square", "power") and promoted == "bool"
    if name == "subtract":  # `-` with a bool, whatever the other
        return any(o is True or (isinstance(o, tuple) and o[0] == "bool") for o in operands)
    return promoted in TORCH_LACKS.get(name, ())


def torch_function(row: dict[str, Any]) -> Callable[..., Any] | None:
    names = (*row["other_names"], row["name"])  # torch.equal is another function than torch.eq
    return next((getattr(m, n) for n in names for m in (torch, torch.special) if hasattr(m, n)), None)


def torch_value(o: Operand) -> Any:
    return torch.ones((1,) * o[1], dtype=getattr(torch, o[0])) if isinstance(o, tuple) else o


def torch_answer(f: Callable[..., Any], operands: Sequence[Operand]) -> str | None:
    """None where the function does not take Python scalars there."""
    try:
        return str(f(*map(torch_value, operands)).dtype).removeprefix("torch.")
    except TypeError:
        return None
    except RuntimeError:  # and NotImplementedError
        return REFUSED


def torch_promoted(operands: Sequence[Operand]) -> str:
    result, *others = map(torch_value, operands)
    for v in others:
        result = torch.ones(1, dtype=torch.result_type(result, v))
    return str(result.dtype).removeprefix("torch.") if isinstance(result, torch.Tensor) else ""


def operand_sets(arity: int) -> list[tuple[Operand, ...]]:
    arrays: list[Operand] = [(d, 1) for d in TORCH_DTYPES]
    if arity == 3:
        return list(itertools.product(arrays, repeat=3))
    kinds = [*arrays, *((d, 0) for d in TORCH_DTYPES), *SCALARS]
    return [c for c in itertools.product(kinds, repeat=arity) if any(isinstance(o, tuple) for o in c)]


def test_promotion_as_torch():
    def maps(name, f, arity):
        compared = 0
        for operands in operand_sets(arity):
            if name == "where" and operands[0] != ("bool", 1):
                continue  # torch wants a bool condition, ours takes any
            expected = torch_answer(f, operands)
            if expected is None:
                continue
            answer = mapped(name, operands, "torch")
            compared += 1
            if answer != expected:
                assert is_excused(name, operands, expected), (operands, answer, expected)
            elif ("bfloat16", 1) in operands and all(o[1] == 1 for o in operands if isinstance(o, tuple)):
                assert mapped(name, operands) == expected, operands  # NumPy has no bfloat16: torch's rules
        assert compared >= len(TORCH_DTYPES)

    def reductions(name):
        for d in TORCH_DTYPES:
            answer = ours("torch", lambda g, ids: g.reduce(name, ids[0], None), [(d, 1)])
            assert answer == torch_answer(getattr(torch, name), [(d, 1)]), d

    sweep(maps, [(r["name"], f, r["arity"]) for r in MAPS if (f := torch_function(r))])
    sweep(reductions, [(r["name"],) for r in REDUCTIONS])


def test_products_promote():
    for shape, a, b in itertools.product([(1, 1), (1,)], NUMPY_DTYPES, NUMPY_DTYPES):
        operands = [(a, len(shape)), (b, len(shape))]
        of_numpy, of_torch = (ours(library, lambda g, ids: g.matmul(*ids), operands) for library in ("numpy", "torch"))
        assert of_numpy == str((np.ones(shape, a) @ np.ones(shape, b)).dtype)
        if a != b or a != "bool":  # bools: torch has no kernel
            assert of_torch == torch_answer(torch.matmul, operands), operands


def test_integers_as_scalars():
    g = _core.Graph()
    x, y = g.input("x", (3,), "int32"), g.input("y", (3,), "float32")
    beyond, nodes = g.scalar(2**31), len(g)
    arguments = {"clip": [x, g.scalar(0), beyond], "where": [x, x, g.scalar(-(2**31) - 1)]}
    says = "Python integer -?21474836.. out of bounds for int32$"
    rows = [(lambda op=op: g.map(op, arguments.get(op, [x, beyond])), OverflowError, f"^{op}: {says}")
            for op in ("add", "maximum", "clip", "where")]  # fmt: skip
    refusals([
        *rows,
        (lambda: g.scalar(2**63), OverflowError, "out of bounds for int64"),
        (lambda: g.map("power", [g.input("z", (3,), "int64"), g.scalar(-1)]), ValueError, "negative integer powers"),
        (lambda: g.reduce("mean", g.input("t", (3,), "int64", library="torch"), None), TypeError,
         "mean: x must be floats, got int64"),
        (lambda: g.map("reciprocal", [x]), TypeError, r"reciprocal: x must be floats, got int32.*divide 1 by x"),
    ])  # fmt: skip
    assert len(g) <= nodes + 5, "only inputs and scalars were added"
    g.map("add", [x, g.scalar(2**31 - 1)])
    g.map("add", [x, g.scalar(-(2**31))])
    assert g.dtype(g.map("power", [y, g.scalar(-1)])) == "float32"
    less = g.map("less", [x, beyond])  # comparisons with any integer are exact
    assert g.dtype(less) == "bool"
    assert [g.node(a)["dtype"] for a in g.node(less)["arguments"]] == ["int64", "int64"]


def test_refusals_name_op_and_dtypes():
    def check(op, operands, message):
        g = _core.Graph()
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            g.map(op, [g.input("x", (), d) for d in operands])

    numbers, integers = "numbers other than bools", "integers or bools"
    rows = [
        ("subtract", ["bool", "bool"], f"subtract: arguments must be {numbers}, got bool and bool"),
        ("negative", ["bool"], f"negative: x must be {numbers}, got bool"),
        ("invert", ["float32"], f"invert: x must be {integers}, got float32"),
        ("bitwise_or", ["int32", "float16"], f"bitwise_or: arguments must be {integers}, got int32 and float16"),
    ]
    sweep(check, rows)
