"""What a graph cannot hold, and what to write instead, by the name under which NumPy, torch or CuPy knows it."""

from __future__ import annotations

from ._source import TraceAttributeError, TraceError, message

_UNKNOWN_SHAPE = ("the shape of its result depends on data", "kf.where(mask, x, 0) and a reduction")
_UNKNOWN_VALUE = ("values are not known while a function is traced", "kf.where(...) to choose, or return the value")
_RANDOM = ("random numbers would be drawn once, at tracing", "them outside and pass them as an argument")
_JOIN = ("arrays are not joined in a kernel", "the parts as separate results")
_POSITION = ("positions of extremes are not computed", "x.max() or x.min() for the values")
_IN_PLACE = ("nothing is written in place", "y = ... for the new value, kf.where(mask, new, x) for a part of it")

_REASONS = {
    _UNKNOWN_SHAPE: "nonzero argwhere flatnonzero unique compress extract masked_select unique_values",
    _UNKNOWN_VALUE: "item tolist tobytes numpy get dump dumps array_equal allclose equal_all __array__ array2string",
    _RANDOM: "rand randn rand_like randn_like randint randint_like bernoulli multinomial normal poisson dropout "
    "alpha_dropout feature_dropout dropout1d dropout2d dropout3d gumbel_softmax rrelu",
    _JOIN: "concatenate concat cat stack hstack vstack dstack column_stack row_stack append block",
    _POSITION: "argmax argmin argsort sort topk",
    _IN_PLACE: "copyto put put_along_axis place putmask fill fill_diagonal __setitem__ __delitem__ setflags",
    ("only its parts are traced", "x.transpose(...), x @ y and x.sum(...)"): "einsum tensordot inner vdot kron",
}
_BY_NAME = {name: reason for reason, names in _REASONS.items() for name in names.split()}


def reason_of(name: str) -> tuple[str, str]:
    """Why the function or method of that name is not traced, and what to write instead."""
    short = name.rpartition(".")[2]
    if short.endswith("_") and not short.endswith("__"):
        return _IN_PLACE
    return _BY_NAME.get(short, ("it has no form in a graph", "it with the functions of kfusion, or call it outside"))


def refused(what: str) -> TraceError:
    """The error for calling `what`, e.g. "numpy.sort"."""
    reason, instead = reason_of(what)
    return TraceError(message(f"{what} is not traced: {reason}", instead))


def refused_attribute(what: str, instead: str = "") -> TraceAttributeError:
    """The error for an attribute, which `hasattr` understands."""
    reason, other = reason_of(what)
    return TraceAttributeError(message(f"{what} is not traced: {reason}", instead or other))


def refused_keyword(function: str, keyword: str) -> TraceError:
    """The error for a keyword that would not be honoured."""
    hints = {
        "out": "y = ... for the new value",
        "inplace": "y = ... for the new value",
        "dtype": ".astype(...) before or after the call",
        "where": "kf.where(mask, ..., ...)",
    }
    hint = hints.get(keyword, f"the call without {keyword}=")
    return TraceError(message(f"{function} does not honour {keyword}= in a traced function", hint))
