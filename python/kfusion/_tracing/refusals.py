"""What a graph cannot hold, and what to write instead, by the name under which NumPy, torch or CuPy knows it."""

from __future__ import annotations

from .._graph.source import RandomDraw, TraceAttributeError, TraceError, message, not_traced, trace_error

_UNKNOWN_SHAPE = ("the shape of its result depends on data", "write kf.where(mask, x, 0) and a reduction instead")
_UNKNOWN_VALUE = (
    "values are not known while a function is traced",
    "write kf.where(condition, x, y) to choose, or return the value and read it outside",
)
_RANDOM = ("random numbers would be drawn once, when tracing", "draw them outside and pass them as an argument")
_BLOCKS = ("blocks are not laid out", "write kf.concatenate along one axis, and again along the other")
_ORDER = ("elements are not put in order in a kernel", "write x.max() or x.min() for the extremes, and sort outside")
_IN_PLACE = ("nothing is written in place", "write y = ... for a new value, kf.where(mask, new, x) for a part of it")
_PARTS = ("its parts are", "write x.transpose(...), x @ y and x.sum(axis) instead")
_OTHER = ("it has no ops in a graph", "write it with the functions of kfusion, or call it outside")

_NAMES = {
    _UNKNOWN_SHAPE: "nonzero argwhere flatnonzero unique compress extract masked_select unique_values",
    _UNKNOWN_VALUE: "item tolist tobytes numpy get dump dumps array_equal equal allclose array2string array_repr",
    _RANDOM: "rand_like randn_like randint_like bernoulli multinomial normal poisson gumbel_softmax rrelu dropout "
    "feature_dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d native_dropout",
    _BLOCKS: "block",
    _ORDER: "sort argsort msort topk median quantile percentile",
    _IN_PLACE: "copyto put put_along_axis place putmask fill fill_diagonal __setitem__ __delitem__",
    _PARTS: "einsum tensordot inner vdot kron",
}
_REASONS = {name: reason for reason, names in _NAMES.items() for name in names.split()}
_IMPOSSIBLE = (_UNKNOWN_SHAPE, _UNKNOWN_VALUE, _RANDOM)  # for the array library too

# What libraries say where a function wants to see its arguments' elements.
_ASKS_FOR_DATA = (
    "meta tensor",
    "'Meta' backend",
    "data-dependent",
    "data-independent",
    "data dependent",
    "Meta tensors",
    "is_meta",
)


def refused(what: str) -> TraceError:
    """The error for calling `what`, e.g. "numpy.sort"."""
    reason, hint = _reason(what)
    error = trace_error if (reason, hint) in _IMPOSSIBLE else not_traced
    return error(f"{what} is not traced: {reason}", hint)


def refused_shape(what: str) -> TraceError:
    """The error for calling what must see its arguments' elements, to know how many results there are, say."""
    reason, _ = _UNKNOWN_SHAPE
    hint = "write kf.call(f, x, result=spec) where the shape is known, kf.where(mask, x, 0) where it is not"
    return trace_error(f"{what} is not traced: {reason}, or it looks at elements", hint)


def refused_result(what: str, result: object) -> TraceError:
    """The error for calling what gives no array."""
    kind = "None" if result is None else f"a value of type {type(result).__name__}"
    return trace_error(f"{what} is not traced: it gives {kind} and no array", "call it outside")


def depends_on_data(error: BaseException) -> bool:
    """Whether a library's error says that a tensor has no data."""
    is_fake = type(error).__name__ == "DynamicOutputShapeException"  # torch's, of tensors without data
    return is_fake or any(text in str(error) for text in _ASKS_FOR_DATA)


def is_impossible(name: str) -> bool:
    """Whether neither a kernel nor the library can give what the function or method of that name does."""
    return _reason(name) in _IMPOSSIBLE


def refused_random(function: str, generator: str) -> TraceError:
    """The error for a function that drew from a library's shared generator, or from "a torch.Generator" of its own."""
    reason, hint = _RANDOM
    if generator.startswith("a "):
        hint = "draw outside and pass the numbers, not the generator"
    if generator == "a torch.Generator":
        hint += ", or write x.new_empty(n).normal_(generator=g), which draws in each call"
    return RandomDraw(message(f"{function} draws from {generator}, which is not traced: {reason}", hint, ""))


def refused_attribute(name: str) -> TraceAttributeError:
    """The error for asking a value for an attribute, one that `hasattr` understands."""
    reason, hint = _reason(name)
    return TraceAttributeError(message(f"x.{name} is not traced: {reason}", hint))


def refused_keyword(function: str, keyword: str) -> TraceError:
    """The error for a keyword that would not be honoured."""
    hints = {
        "out": "write y = ... for the new value"
        + ", or make out with np.zeros(shape, like=x)" * function.startswith("numpy."),
        "inplace": "pass inplace=False and use the result",
        "dtype": "write .astype(...) before or after the call",
        "where": "write kf.where(mask, x, y) instead",
    }
    hint = hints.get(keyword, f"write the call without {keyword}=")
    return not_traced(f"{function} does not honour {keyword}= in a traced function", hint)


def _reason(name: str) -> tuple[str, str]:
    """Why the function or method is not traced, and what helps."""
    short = name.rpartition(".")[2]
    if short.endswith("_") and not short.endswith("__"):
        return _IN_PLACE
    return _REASONS.get(short, _OTHER)
