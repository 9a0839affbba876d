"""`kfusion.elementwise`: a function of arrays from the text of an expression."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import keyword
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeAlias

import numpy as np

from .._graph.values import is_weak, stage
from .._spec import FLOATS
from . import activations
from . import primitives as p
from .operation import Array as Array  # which the functions' parameters are annotated with, by name
from .operation import composite
from .views import astype

__all__ = ["elementwise"]

_CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **p.MAPS,
    **{name: getattr(activations, name) for name in ("elu", "gelu", "leaky_relu", "silu", "softplus")},
    "max": p.MAPS["maximum"],
    "min": p.MAPS["minimum"],
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: p.MAPS["logical_not"],
    ast.And: p.MAPS["logical_and"],
    ast.Or: p.MAPS["logical_or"],
}
_Step: TypeAlias = Any  # a function of the parameters' values by name, or a number


def elementwise(expression: str, name: str = "elementwise") -> Callable[..., Any]:
    """A function that computes an expression of each element: one kernel, or part of one in a traced function.

        f = kf.elementwise("x, y: x * exp(-y) + 1");  f(x, y)

    Before the colon stand the parameters, behind it an expression in Python's syntax of these, numbers, pi, e, inf and
    nan, with operators, comparisons (`0 < x < 1`), `and`, `or`, `not`, `a if condition else b`, and kfusion's
    elementwise functions by name; `max` and `min` take two values. Operators mean what they mean for the arrays.

    Args:
        expression: "parameters: expression".
        name: of the stage in plans.

    Returns:
        A function of as many arrays, or numbers beside at least one array, whose shapes broadcast. It takes NumPy's,
        torch's and other arrays as kfusion's functions do, and traced values. The result's dtype follows from theirs.

    Raises:
        ValueError: the text is no such expression, or names what there is not; the message has the column.
    """
    if not isinstance(expression, str):
        raise TypeError(f"kfusion.elementwise: expression must be a string, got {type(expression).__name__}")
    text = _Text(expression)
    compute = text.compiled()
    if not callable(compute):
        raise ValueError(f"kfusion.elementwise: the expression must have a parameter in it, got {expression!r}")

    def builder(*arrays: Any) -> Any:
        values = dict(zip(text.parameters, _of_one_kind(arrays), strict=True))
        with stage(arrays[0], name):
            return arrays[0]._tracer.copy(compute(values))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, annotation="Array") for n in text.parameters]
    builder.__signature__ = inspect.Signature(parameters, return_annotation="Array")  # type: ignore[attr-defined]
    builder.__name__ = builder.__qualname__ = "elementwise"
    builder.__doc__ = expression
    return composite(builder)


def _of_one_kind(arrays: tuple[Any, ...]) -> list[Any]:
    """Numbers in the arrays' dtype where that holds them, so that arithmetic among numbers does not change it."""
    dtypes = {v._dtype for v in arrays if not is_weak(v)}
    if len(dtypes) != 1:
        return list(arrays)
    (dtype,) = dtypes
    fits = {"float64": dtype in FLOATS, "int64": dtype != "bool", "bool": True}
    return [astype(v, dtype) if is_weak(v) and fits[v._dtype] else v for v in arrays]


class _Text:
    """The text of an expression, and what stands where in it."""

    def __init__(self, text: str) -> None:
        self._text = " ".join(text.splitlines())
        before, colon, after = self._text.partition(":")
        self._start = len(before) + 1
        self._expression = after
        self.parameters = [part.strip() for part in before.split(",")]
        if not colon or not after.strip():
            self._fail('there must be parameters, a colon and an expression, as in "x, y: x * exp(-y)"', len(text))
        self._check_parameters(before)

    def _check_parameters(self, before: str) -> None:
        column = 0
        seen: set[str] = set()
        for part, name in zip(before.split(","), self.parameters, strict=True):
            at = column + len(part) - len(part.lstrip())
            if not name.isidentifier() or keyword.iskeyword(name):
                self._fail(f"a parameter must be a name, got {name!r}", at)
            if name in seen or name in _CONSTANTS or name in _FUNCTIONS:
                self._fail(f"{name} is {'given twice' if name in seen else 'already a constant or a function'}", at)
            seen.add(name)
            column += len(part) + 1

    def compiled(self) -> _Step:
        """The expression as a function of the parameters' values; a number, where it has none of them."""
        stripped = self._expression.lstrip()
        self._start += len(self._expression) - len(stripped)
        try:
            body = ast.parse(stripped, mode="eval").body
        except SyntaxError as error:
            self._fail(error.msg, self._start + max((error.offset or 1) - 1, 0))
        self._bytes = stripped.encode()
        return self._step(body)

    def _fail(self, what: str, column: int) -> NoReturn:
        raise ValueError(f"kfusion.elementwise: {what} (column {column + 1} of {self._text!r})") from None

    def _fail_at(self, node: Any, what: str) -> NoReturn:
        self._fail(what, self._start + len(self._bytes[: node.col_offset].decode()))

    # ---- a node becomes a function of the parameters' values, or a number ----

    def _step(self, node: Any) -> _Step:
        make = getattr(self, f"_{type(node).__name__.lower()}", None)
        if make is None:
            self._fail_at(node, f"{type(node).__name__} has no place in an expression of elements")
        return make(node)

    def _applied(self, node: Any, function: Callable[..., Any], *parts: _Step) -> _Step:
        """function(*parts), at once where all are numbers."""
        if any(map(callable, parts)):
            return lambda values: function(*(part(values) if callable(part) else part for part in parts))
        try:
            is_operator = function.__module__ == "_operator"
            return function(*parts) if is_operator else function(*map(np.asarray, parts)).item()
        except (ArithmeticError, TypeError) as error:
            self._fail_at(node, str(error))

    def _name(self, node: ast.Name) -> _Step:
        if node.id in self.parameters:
            return operator.itemgetter(node.id)
        if node.id in _FUNCTIONS:
            self._fail_at(node, f"{node.id} is a function: write {node.id}(...)")
        if node.id not in _CONSTANTS:
            self._fail_at(node, f"{node.id} is no parameter, constant or function{_alike(node.id, self.parameters)}")
        return _CONSTANTS[node.id]

    def _constant(self, node: ast.Constant) -> _Step:
        if not isinstance(node.value, (bool, int, float)):
            self._fail_at(node, f"constants must be numbers, got {node.value!r}")
        return node.value

    def _unaryop(self, node: ast.UnaryOp) -> _Step:
        return self._applied(node, _OPERATORS[type(node.op)], self._step(node.operand))

    def _binop(self, node: ast.BinOp) -> _Step:
        if type(node.op) not in _OPERATORS:
            self._fail_at(node, "@ has no place in an expression of elements")
        return self._applied(node, _OPERATORS[type(node.op)], self._step(node.left), self._step(node.right))

    def _boolop(self, node: ast.BoolOp) -> _Step:
        def join(x: _Step, y: _Step) -> _Step:
            return self._applied(node, _OPERATORS[type(node.op)], x, y)

        return functools.reduce(join, map(self._step, node.values))

    def _compare(self, node: ast.Compare) -> _Step:
        """0 < x < 1 is 0 < x and x < 1."""
        if wrong := [op for op in node.ops if type(op) not in _OPERATORS]:
            self._fail_at(node, f"{type(wrong[0]).__name__} has no place in an expression of elements")
        sides = [self._step(side) for side in (node.left, *node.comparators)]
        pairs = zip(node.ops, itertools.pairwise(sides), strict=True)
        tests = [self._applied(node, _OPERATORS[type(op)], *pair) for op, pair in pairs]
        return functools.reduce(lambda x, y: self._applied(node, p.MAPS["logical_and"], x, y), tests)

    def _ifexp(self, node: ast.IfExp) -> _Step:
        return self._applied(node, p.MAPS["where"], *map(self._step, (node.test, node.body, node.orelse)))

    def _call(self, node: ast.Call) -> _Step:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in _FUNCTIONS:
            self._fail_at(node, f"{name} is no elementwise function of kfusion{_alike(name, _FUNCTIONS)}")
        if wrong := [part for part in node.args if isinstance(part, ast.Starred)]:
            self._fail_at(wrong[0], "* has no place in an expression of elements")
        keywords = {str(k.arg): k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        if len(keywords) < len(node.keywords):
            self._fail_at(node, f"keywords of {name} must be constants")
        function = _FUNCTIONS[name]
        try:
            inspect.signature(function).bind(*node.args, **keywords)
        except TypeError as error:
            self._fail_at(node, f"{name}: {error}")
        return self._applied(node, functools.partial(function, **keywords), *map(self._step, node.args))


def _alike(name: str, names: Iterable[str]) -> str:
    """What may have been meant."""
    found = difflib.get_close_matches(name, list(names), 1)
    return f"; {found[0]}?" if found else ""
