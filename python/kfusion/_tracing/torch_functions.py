"""torch's functions and methods on traced values, by name, each with torch's own parameters and meaning.

`torch.sum(x, 1)`, `x.sum(1)` and, from `torch.nn.functional`, `F.softmax(x, 1)` all arrive here by the function's name.
This file has the mechanism; the functions are in the other files torch_*.py, which enter them by `named`. Parameters
without a meaning in a graph (memory_format, cudnn_enable) are accepted; one that changes the result and is not honoured
is refused.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .._graph.source import NotTraced, TraceError, trace_error
from .._graph.values import Traced
from .._ops import views
from .._spec import FLOATS
from . import autocast, library_answers, library_calls, library_checks, library_trials, refusals, writing

_RENAMED = {"axis": "dim", "keepdims": "keepdim", "x": "input"}
_SEVERAL = {"dims", "shape", "size"}  # extents or axes, given one by one or as one tuple

# The functions that take 0 and -1 for an axis of a tensor that has none.
_OF_NO_AXES = (
    *("sum", "mean", "prod", "any", "all", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std"),
    *("logsumexp", "softmax", "log_softmax", "norm", "vector_norm", "squeeze"),
    *("nansum", "nanmean", "count_nonzero", "var_mean", "std_mean"),
)

# What torch need not be asked about, whatever the arguments: the result is a view.
_ALWAYS_VIEWS = (
    *("t", "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "squeeze", "unsqueeze", "unflatten"),
    *("select", "narrow", "unbind", "split", "chunk", "view", "view_as", "expand", "expand_as", "broadcast_to"),
    *("detach", "positive"),
)
# Their rows are those of torch.nn.functional: torch's own of that name take other arguments, and reduce by numbers.
_FUNCTIONAL_ONLY = (
    *("binary_cross_entropy_with_logits", "cosine_embedding_loss", "hinge_embedding_loss", "kl_div"),
    *("margin_ranking_loss", "poisson_nll_loss", "triplet_margin_loss", "batch_norm", "group_norm", "instance_norm"),
)
_VIEWS = ("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze")  # whose in-place forms write no elements

FUNCTIONS: dict[str, Callable[..., Any]] = {}
NO_METHODS: set[str] = set()  # names of FUNCTIONS that tensors do not have as methods


def named(*names: str, method: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function under torch's names for it."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS.update(dict.fromkeys(names, function))
        NO_METHODS.update(() if method else names)
        return function

    return enter


def torch_function(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], function: Callable[..., Any] | None = None
) -> Any:
    """What torch's function of that name is on traced values; a method that differs from it is "Tensor.where".

    What has no ops in a graph is a node that `function` computes, by default the method of that name.

    Raises:
        TraceError: what it gives depends on data.
    """
    short = name.removeprefix("Tensor.")
    function = function or getattr(getattr(sys.modules.get("torch"), "Tensor", None), short, None)
    return library_checks.compared(
        f"torch.{short}", function, args, kwargs, lambda: _made(name, args, kwargs, function)
    )


def _made(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], function: Callable[..., Any] | None) -> Any:
    short = name.removeprefix("Tensor.")
    library_answers.require_fitting(function, f"torch.{short}", args, kwargs)
    if function is not None and short in _FUNCTIONAL_ONLY and _is_torchs_own(function, short):
        return library_calls.torch_call(function, f"torch.{short}", args, kwargs)
    if short.endswith("_") and not short.endswith("__"):
        return _in_place(short, args, kwargs, function)
    if kwargs.get("inplace") is True:
        return args[0]._write(short, torch_function(name, args, kwargs | {"inplace": False}, function))
    if isinstance(out := kwargs.get("out"), Traced):
        made = torch_function(name, args, {k: v for k, v in kwargs.items() if k != "out"}, function)
        if isinstance(made, Traced) and made.shape == out.shape:
            return out._write("out", made)  # type: ignore[attr-defined]
    try:
        build = functools.partial(_settled, name, args, kwargs, function)
        return library_calls.with_alternative(function, f"torch.{short}", args, kwargs, build)
    except NotTraced:
        if function is None:
            raise
    except TraceError:
        raise
    except (ValueError, IndexError, TypeError, OverflowError) as error:
        return _unless_torch_refuses(error, function, f"torch.{short}", args, kwargs)
    return library_calls.torch_call(function, f"torch.{short}", args, kwargs)


def _is_torchs_own(function: Any, name: str) -> bool:
    return function is getattr(sys.modules["torch"], name, None)


def _settled(name: str, args: Any, kwargs: Any, function: Any) -> Any:
    made = _in_graph(name, args, kwargs)
    short = name.removeprefix("Tensor.")
    if isinstance(made, Pair) or short in _ALWAYS_VIEWS:
        return made
    return library_answers.settled(function, f"torch.{short}", args, kwargs, made)


def _unless_torch_refuses(error: Exception, function: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A call of the library, for shapes and dtypes that torch takes and kernels do not. Where torch takes them neither,
    or is not imported, the first error says more.
    """
    if function is not None:
        with contextlib.suppress(Exception):
            return library_calls.torch_call(function, name, args, kwargs, is_tried=True)
    raise error from None


def _in_place(short: str, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> Any:
    """x.add_(y): x itself changes. In the spelling of a function x can be a keyword."""
    name = short[:-1]
    if name in _VIEWS and args and isinstance(args[0], Traced):
        return writing.become(args[0], torch_function(f"Tensor.{name}", args, kwargs), short)
    if (name in FUNCTIONS or f"Tensor.{name}" in FUNCTIONS) and args and isinstance(args[0], Traced):
        if name == "float_power" and args[0]._dtype != "float64":
            raise TypeError(f"kfusion.float_power_: torch wants float64, which it gives, got {args[0]._dtype}")
        with contextlib.suppress(NotTraced, OverflowError):
            return args[0]._write(short, torch_function(f"Tensor.{name}", args, kwargs))  # type: ignore[attr-defined]
    function = function or getattr(sys.modules["torch"].Tensor, short)
    return library_calls.torch_call(function, f"torch.{short}", args, kwargs)


def _in_graph(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    short = _plain_name(name)
    function = FUNCTIONS.get(name) or FUNCTIONS.get(short)
    if function is None:
        raise refusals.refused(f"torch.{short}")
    given = {_RENAMED.get(k, k): v for k, v in kwargs.items() if not _says_nothing(k, v, args)}
    args += tuple(given.pop(k) for k in _SEVERAL & given.keys() - _keywords(function))
    bound = _bound(function, f"torch.{short}", args, given)
    traced = next((v for v in (*bound.args, *bound.kwargs.values()) if isinstance(v, Traced)), None)
    bound.arguments.update(autocast.cast(short, bound.arguments))
    if traced is None or "input" not in bound.arguments:
        return function(*bound.args, **bound.kwargs)
    x = traced._tracer.lift(bound.arguments["input"], "torch", f"torch.{short}: input")
    bound.arguments["input"] = x
    if bound.arguments.get("dtype") is None:  # else it is in that one that it computes
        require_dtypes(short, x)
    if x.ndim > 0 or short not in _OF_NO_AXES or not _names_axes(bound.arguments.get("dim")):
        return function(*bound.args, **bound.kwargs)
    bound.arguments["input"] = views.reshape(x, (1,))
    return _without_axes(function(*bound.args, **bound.kwargs))


def _plain_name(name: str) -> str:
    return name.removeprefix("Tensor.").removeprefix("special_").removeprefix("linalg_")


def is_known(name: str) -> bool:
    """Whether torch's function of that name, or the one that writes in place, has a row."""
    return (
        name in FUNCTIONS
        or _plain_name(name) in FUNCTIONS
        or (name.endswith("_") and _plain_name(name)[:-1] in FUNCTIONS)
    )


def _says_nothing(keyword: str, value: Any, args: tuple[Any, ...]) -> bool:
    """Whether a keyword asks for what is so anyway: no gradients, and the device of what is given."""
    if keyword == "device" and args and isinstance(args[0], Traced):
        return library_trials.lies_on(args[0], value)
    return keyword in ("inplace", "requires_grad", "pin_memory") and value is False


@functools.cache
def _keywords(function: Any) -> frozenset[str]:
    """Parameters that a call may name."""
    parameters = _signature(function).parameters.values()
    return frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)


def _names_axes(dim: Any) -> bool:
    return bool(dim) if isinstance(dim, (tuple, list)) else isinstance(dim, int) and not isinstance(dim, bool)


def _without_axes(result: Any) -> Any:
    """A result of one element, or torch's pair with one, as it is of a value without axes."""
    if type(result) is tuple:
        return tuple(map(_without_axes, result))
    if isinstance(result, ValuesAndIndices):
        later = Later(lambda: _without_axes(result.indices))
        return type(result)((_without_axes(result.values), later))
    return views.reshape(result, ())


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


# ---- dtypes ----

_NEVER_BOOLS = ("subtract", "absolute", "floor", "ceil", "rint", "trunc", "relu6", "argmax", "argmin")
_FLOATS_ONLY = (
    *("hypot", "logaddexp", "gelu", "silu", "softplus", "leaky_relu", "elu", "softmax", "softmin", "log_softmax"),
    *("layer_norm", "rms_norm", "batch_norm", "normalize", "norm", "vector_norm", "linalg_norm"),
    *("cross_entropy", "mse_loss"),
)


def require_dtypes(op: str, *operands: Any) -> None:
    """Raises a TypeError where torch has no such function of such dtypes, and NumPy has."""
    if op not in _NEVER_BOOLS and op not in _FLOATS_ONLY:
        return
    dtypes = [dtype_of(x) for x in operands]
    if op in _NEVER_BOOLS and "bool" in dtypes:
        raise TypeError(f"kfusion.{op}: torch wants numbers other than bools, got {', '.join(dtypes)}")
    if op in _FLOATS_ONLY and not any(map(is_float, dtypes)):
        raise TypeError(f"kfusion.{op}: torch wants floats, got {', '.join(dtypes)}")


def require_no_axes(name: str, value: Any) -> None:
    """Raises a ValueError where torch wants a number or a tensor without axes."""
    if getattr(value, "ndim", 0) > 0:
        raise ValueError(f"kfusion.{name}: value must have no axes, got shape {tuple(value.shape)}")


def is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype == "float"


def dtype_of(x: Any) -> str:
    """ "float32" and its likes; of Python's numbers the name of their type."""
    return x._dtype if isinstance(x, Traced) else str(getattr(x, "dtype", x.__class__.__name__)).removeprefix("torch.")


# ---- pairs of results ----


class Later:
    """A value that is computed when it is first asked for."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.value = functools.cache(compute)


class Pair(tuple[Any, Any]):
    """Two results of a function that has a class for them, `torch.return_types.NAME`."""

    __slots__ = ()
    name = ""

    @property
    def __kfusion_stands_for__(self) -> Any:
        """The class of a pair of results outside the traced function."""
        return getattr(getattr(sys.modules.get("torch"), "return_types", None), self.name, tuple)


class ValuesAndIndices(Pair):
    """What torch's max and min along an axis return; the indices are computed where somebody asks for them."""

    __slots__ = ()
    values = property(operator.itemgetter(0))
    indices = property(operator.itemgetter(1))

    def __getitem__(self, i: Any) -> Any:
        item = tuple(self)[i] if isinstance(i, slice) else super().__getitem__(i)
        return item.value() if isinstance(item, Later) else item

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(2))


# ---- questions ----


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
