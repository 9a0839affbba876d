"""torch's functions and methods on traced values, by name, each with torch's own parameters and meaning.

`torch.sum(x, 1)`, `x.sum(1)` and, from `torch.nn.functional`, `F.softmax(x, 1)` all arrive here by the function's name.
This file has the mechanism, elementwise functions, reductions and products; views are in torch_views.py and the
functions of neural networks in torch_nn.py. Parameters without a meaning in a graph (memory_format, cudnn_enable) are
accepted; one that changes the result and is not honoured is refused.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

from .._ops import activations, contractions, norms, views
from .._ops import primitives as p
from .._spec import FLOATS
from . import refusals
from .source import trace_error
from .traced import BINARY, power
from .tracer import tracer_of

_RENAMED = {"axis": "dim", "keepdims": "keepdim", "x": "input"}
_SEVERAL = {"dims", "shape", "size"}  # extents or axes, given one by one or as one tuple

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def named(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function under torch's names for it."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return enter


def torch_function(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch's function of that name is on traced values; a method that differs from it is "Tensor.where".

    Raises:
        TraceError: it has no form in a graph, or an argument would not be honoured.
    """
    short = name.removeprefix("Tensor.").removeprefix("special_").removeprefix("linalg_")
    function = FUNCTIONS.get(name) or FUNCTIONS.get(short)
    if function is None:
        raise refusals.refused(f"torch.{short}")
    given = {_RENAMED.get(k, k): v for k, v in kwargs.items() if not (k == "inplace" and v is False)}
    args += tuple(given.pop(k) for k in _SEVERAL & given.keys())
    bound = _bound(function, f"torch.{short}", args, given)
    tracer = tracer_of(*bound.args, *bound.kwargs.values())
    if tracer is not None and "input" in bound.arguments:
        bound.arguments["input"] = tracer.lift(bound.arguments["input"], "torch", f"torch.{short}: input")
    return function(*bound.args, **bound.kwargs)


def _bound(function: Any, name: str, args: Any, given: dict[str, Any]) -> inspect.BoundArguments:
    signature = _signature(function)
    for keyword in [k for k in given if k not in signature.parameters]:
        if given.pop(keyword) is not None:  # out=None, dtype=None
            raise refusals.refused_keyword(name, keyword)
    try:
        return signature.bind(*args, **given)
    except TypeError as error:
        raise trace_error(f"{name}: {error}") from None


@functools.cache
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


# ---- elementwise ----


def _unary(op: str) -> Callable[..., Any]:
    return lambda input: input._tracer.map(op, input)


def _binary(op: str) -> Callable[..., Any]:
    return lambda input, other: input._tracer.map(op, input, other)


def _reflected(op: str) -> Callable[..., Any]:
    return lambda input, other: input._tracer.map(op, other, input)


for _name, _map in p.MAPS.items():
    _arity = len(inspect.signature(_map).parameters)
    if _arity < 3:
        FUNCTIONS[_name] = (_unary, _binary)[_arity - 1](_map.__name__)
del FUNCTIONS["equal"]  # torch.equal gives a Python bool
for _name, (_, _op) in BINARY.items():
    FUNCTIONS[f"__{_name}__"], FUNCTIONS[f"__r{_name}__"] = _binary(_op), _reflected(_op)


@named("add")
def _add(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return input + (other if alpha == 1 else other * alpha)


@named("sub", "subtract")
def _sub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return input - (other if alpha == 1 else other * alpha)


@named("rsub")
def _rsub(input: Any, other: Any, *, alpha: float = 1) -> Any:
    return other - (input if alpha == 1 else input * alpha)


@named("div", "divide", "true_divide")
def _div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return input / other
    if rounding_mode == "floor":
        return input // other
    raise refusals.refused_keyword("torch.div", "rounding_mode")


@named("pow", "__pow__")
def _pow(input: Any, exponent: Any) -> Any:
    return power(input, exponent)


@named("round")
def _round(input: Any, *, decimals: int = 0) -> Any:
    if decimals != 0:
        raise refusals.refused_keyword("torch.round", "decimals")
    return p.rint(input)


@named("where")
def _where(condition: Any, input: Any = None, other: Any = None) -> Any:
    if input is None or other is None:
        raise refusals.refused("torch.nonzero")
    return input._tracer.map("where", condition, input, other)


@named("Tensor.where")
def _where_method(input: Any, condition: Any, other: Any) -> Any:
    return input._tracer.map("where", condition, input, other)


@named("masked_fill")
def _masked_fill(input: Any, mask: Any, value: Any) -> Any:
    return input._tracer.map("where", mask, value, input)


@named("clamp", "clip")
def _clamp(input: Any, min: Any = None, max: Any = None) -> Any:
    return p.clip(input, min, max)


@named("clamp_min")
def _clamp_min(input: Any, min: Any) -> Any:
    return p.clip(input, min, None)


@named("clamp_max")
def _clamp_max(input: Any, max: Any) -> Any:
    return p.clip(input, None, max)


# ---- reductions ----


def _axes(dim: Any) -> Any:
    return None if dim is None or (isinstance(dim, (tuple, list)) and not dim) else dim


def _reduction(op: str) -> Callable[..., Any]:
    def reduction(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        x = input if dtype is None else views.astype(input, dtype)
        return p.REDUCTIONS[op](x, _axes(dim), keepdim)

    return reduction


for _name in ("sum", "mean", "prod", "any", "all"):
    FUNCTIONS[_name] = _reduction(_name)
for _name in ("amax", "amin"):
    FUNCTIONS[_name] = lambda input, dim=None, keepdim=False, _op=_name: p.REDUCTIONS[_op](input, _axes(dim), keepdim)


class ValuesAndIndices(tuple[Any, Any]):
    """What torch's max and min along an axis return; the indices are not computed and say so when they are used."""

    __slots__ = ()
    values = property(operator.itemgetter(0))
    indices = property(operator.itemgetter(1))


def _extreme(op: str, elementwise: str) -> Callable[..., Any]:
    def extreme(input: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        other = dim if other is None and not isinstance(dim, int) else other
        if other is not None:
            return input._tracer.map(elementwise, input, other)
        if dim is None:
            return p.REDUCTIONS[op](input)
        reason = f"torch.{op} with a dim computes no indices; write x.a{op}({dim}) for the values"
        return ValuesAndIndices((p.REDUCTIONS[op](input, dim, keepdim), input._tracer.unavailable(input, reason)))

    return extreme


FUNCTIONS["max"], FUNCTIONS["min"] = _extreme("max", "maximum"), _extreme("min", "minimum")


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    def spread(
        input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):  # x.var(False)
            dim, unbiased = None, dim
        given = correction if correction is not None else unbiased
        return function(input, _axes(dim), correction=1 if given is None else given, keepdims=keepdim)

    return spread


FUNCTIONS["var"], FUNCTIONS["std"] = _spread(norms.var), _spread(norms.std)


@named("logsumexp")
def _logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    return activations.logsumexp(input, dim, keepdim)


@named("linalg_norm")
def _linalg_norm(input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    vectors = input.ndim == 1 if dim is None else isinstance(dim, int)
    if ord is not None and not vectors:
        raise trace_error("torch.linalg.norm of matrices with ord= is not traced", "write linalg.vector_norm instead")
    return norms.norm(input, 2 if ord is None else ord, _axes(dim), keepdim)


@named("norm", "vector_norm")
def _norm(input: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, p: Any = None) -> Any:
    ord = p if ord is None else ord
    return norms.norm(input, 2 if ord in (None, "fro") else ord, _axes(dim), keepdim)


# ---- products and questions ----


@named("matmul", "mm", "bmm", "mv", "dot")
def _matmul(input: Any, other: Any) -> Any:
    return contractions.matmul(input, other)


@named("addmm")
def _addmm(input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    product = contractions.matmul(mat1, mat2)
    return _add(product if alpha == 1 else product * alpha, input, alpha=beta)


@named("dim", "ndimension")
def _dim(input: Any) -> int:
    return int(input.ndim)


@named("numel", "nelement")
def _numel(input: Any) -> int:
    return math.prod(input.shape)


@named("is_floating_point")
def _is_floating_point(input: Any) -> bool:
    return input._dtype in FLOATS


@named("is_complex")
def _is_complex(input: Any) -> bool:
    return False
