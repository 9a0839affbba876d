"""A traced function as the text of one numexpr expression, where all of it is elementwise and has one result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._tracing.trace import Trace
from .._tracing.traced import BINARY, COMPARISONS

_MAX_CHARACTERS = 4000  # values that are read twice stand in the text twice; numexpr computes them once
_MAX_ARRAYS = 32  # numexpr's own limit is NumPy's, for operands and temporaries

_OTHER_ROUNDING = ("floor_divide", "remainder")  # C's, with the first operand's sign
_SYMBOLS = {op: symbol for symbol, op in BINARY.values() if op not in _OTHER_ROUNDING}
_SYMBOLS |= dict(zip(COMPARISONS.values(), ("<", "<=", ">", ">=", "==", "!="), strict=True))
_SYMBOLS |= {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
_DOUBLE_ONLY = ("rint", "trunc", "sign", "hypot", "copysign")  # of float32 they are float64
_BOOL_ONLY = ("where", "logical_and", "logical_or", "logical_xor")
_FORMULAS = {
    "negative": "(-{0})",
    "positive": "{0}",
    "square": "({0} * {0})",
    "reciprocal": "({one} / {0})",
    "rsqrt": "({one} / sqrt({0}))",
    "relu": "where({0} < {zero}, {zero}, {0})",
    "sigmoid": "({one} / ({one} + exp(-{0})))",
    "maximum": "where(({0} >= {1}) | ({0} != {0}), {0}, {1})",
    "minimum": "where(({0} <= {1}) | ({0} != {0}), {0}, {1})",
    "clip": "where(where({0} < {1}, {1}, {0}) > {2}, {2}, where({0} < {1}, {1}, {0}))",
    "logical_not": "({0} == {zero})",
    "invert": "(~{0})",
}
_SAME_NAME = (
    *("where", "sqrt", "exp", "expm1", "log", "log10", "log1p", "log2"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "arctan2"),
    *("arcsinh", "arccosh", "arctanh", "hypot", "floor", "ceil", "trunc", "sign", "copysign"),
    *("isnan", "isinf", "isfinite"),
)
_FUNCTIONS = {op: op for op in _SAME_NAME}
_FUNCTIONS |= {"absolute": "abs", "rint": "round"}
_DTYPES = ("bool", "int32", "int64", "float32", "float64")


def program(trace: Trace) -> Callable[..., list[Any]]:
    """A function of the trace's input arrays that evaluates the expression.

    Raises:
        TypeError: it is no single expression of elements, or numexpr has no such operation or dtype.
    """
    import numexpr

    graph = trace.graph.to_dict()
    names, numbers, text = expression(graph["nodes"], [o["node"] for o in graph["outputs"]])

    def run(*arrays: Any) -> list[Any]:
        return [numexpr.evaluate(text, {**numbers, **dict(zip(names, arrays, strict=True))}, {})]

    return run


def expression(nodes: Sequence[Mapping[str, Any]], outputs: Sequence[int]) -> tuple[list[str], dict[str, Any], str]:
    """Names of the inputs, constants by name (numexpr would take a plain number for a float64), and the text.

    Raises:
        TypeError: as for `program`.
    """
    if len(outputs) != 1:
        raise TypeError("numexpr has one result for each expression")
    texts: list[str] = []
    names: list[str] = []
    numbers: dict[str, Any] = {}
    for i, node in enumerate(nodes):
        if node["dtype"] not in _DTYPES:
            raise TypeError(f"numexpr has no {node['dtype']}")
        if node["op"] == "input":
            names.append(f"x{i}")
            texts.append(names[-1])
        elif node["op"] == "constant":
            texts.append(_number(numbers, float(node["value"]), node["dtype"]))
        else:
            texts.append(_text(node, [texts[a] for a in node["arguments"]], nodes, numbers))
        if len(texts[-1]) > _MAX_CHARACTERS or len(names) + len(numbers) > _MAX_ARRAYS:
            raise TypeError("numexpr would need too long an expression")
    used = texts[outputs[0]]
    return names, {name: value for name, value in numbers.items() if name in used}, used


def _number(numbers: dict[str, Any], value: float, dtype: str) -> str:
    made = np.dtype(dtype).type(value)
    for name, known in numbers.items():
        if known.dtype == made.dtype and (known == made or (known != known and made != made)):
            return name
    name = f"c{len(numbers)}_"
    numbers[name] = made
    return name


def _text(
    node: Mapping[str, Any], arguments: list[str], nodes: Sequence[Mapping[str, Any]], numbers: dict[str, Any]
) -> str:
    op, dtypes = node["op"], [nodes[a]["dtype"] for a in node["arguments"]]
    if (op in _BOOL_ONLY and dtypes[0] != "bool") or (op in _DOUBLE_ONLY and dtypes[0] != "float64"):
        raise TypeError(f"numexpr has no {op} of {dtypes[0]}")
    if op == "broadcast":
        return arguments[0]
    if op in _SYMBOLS:
        return f"({arguments[0]} {_SYMBOLS[op]} {arguments[1]})"
    if op in _FORMULAS:
        zero, one = (_number(numbers, v, dtypes[0]) for v in (0.0, 1.0))
        return _FORMULAS[op].format(*arguments, zero=zero, one=one)
    if op in _FUNCTIONS:
        return f"{_FUNCTIONS[op]}({', '.join(arguments)})"
    if op == "cast" and node["dtype"] == "float64":
        return f"({arguments[0]} * {_number(numbers, 1.0, 'float64')})"
    raise TypeError(f"numexpr has no {op}")
