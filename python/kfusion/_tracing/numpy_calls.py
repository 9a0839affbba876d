"""Calls of NumPy that a graph has no ops for: nodes of their own, which NumPy computes when the kernels run.

NumPy has no arrays without data: its functions whose results have shapes that follow from the arguments' are listed
here, and called once on other numbers.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from .. import _arrays
from .._graph.source import trace_error, user_line
from .._graph.structure import fill, leaves, walk
from .._graph.tracer import Tracer
from .._graph.values import Traced, tracer_of
from . import library_arguments, refusals, stored_numbers
from .dtype_names import dtype_of, is_complex

# Functions of NumPy's whose results' shapes and dtypes do not depend on the elements of arrays.
_NUMPY_NAMES = """
    all amax amin angle any append apply_along_axis apply_over_axes argmax argmin argpartition argsort array_split
    average block choose clip count_nonzero geomspace histogram histogram2d histogram_bin_edges isin linspace logspace
    max lib.stride_tricks.sliding_window_view
    mean min piecewise prod std sum take var zeros_like ones_like full_like
    column_stack concat concatenate convolve corrcoef correlate cov cross cumprod cumsum cumulative_prod cumulative_sum
    delete diag diagflat diagonal diff digitize dot dsplit dstack ediff1d einsum fft.fft fft.fft2 fft.fftn fft.ifft
    fft.ifft2 fft.ifftn fft.rfft fft.rfft2 fft.rfftn fft.irfft fft.irfft2 fft.irfftn fft.fftshift fft.hfft fft.ihfft
    fft.ifftshift gradient hsplit hstack inner insert interp kron linalg.cholesky linalg.cond
    linalg.cross linalg.det linalg.diagonal linalg.eigh linalg.eigvalsh linalg.inv linalg.matrix_norm
    linalg.matrix_power linalg.matrix_rank linalg.multi_dot linalg.norm linalg.outer linalg.pinv linalg.qr
    linalg.slogdet linalg.solve linalg.svd linalg.svdvals linalg.tensordot linalg.tensorinv linalg.tensorsolve
    linalg.trace linalg.vecdot lexsort matvec median nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean
    nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar outer pad partition percentile permute_dims
    poly polyval ptp quantile ravel_multi_index repeat resize roll rollaxis rot90 row_stack searchsorted
    select sinc sort split stack tensordot tile trace trapezoid tril triu unravel_index unstack unwrap
    vander vdot vecdot vecmat vsplit vstack where i0 isclose allclose round fix real_if_close nextafter
"""
NAMES = frozenset(_NUMPY_NAMES.split())


def has_numpy(name: str) -> bool:
    """Whether that function of NumPy's can be called among the kernels."""
    return name in NAMES


def numpy_writes(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Sequence[Any]
) -> None:
    """Calls a function of NumPy's that writes to values among its arguments: they are what it leaves in them.

    Raises:
        TraceError: one of `targets` is no traced value, but an array that the calls of a fused function share.
    """
    if not all(isinstance(t, Traced) for t in targets):
        raise refusals.refused_keyword(name, "out") if "out" in kwargs else refusals.refused(name)
    made = numpy_call(_on_copies, name, (function, list(targets), args, kwargs), {})
    for target, value in zip(targets, made, strict=True):
        target._write(name.removeprefix("numpy."), value)


def _on_copies(function: Callable[..., Any], targets: list[Any], args: Any, kwargs: Any) -> list[Any]:
    """What the function writes to copies of arrays among its arguments."""
    copies = {id(t): t.copy() for t in targets}
    args, kwargs = walk((args, kwargs), lambda _, leaf: copies.get(id(leaf), leaf))
    function(*args, **kwargs)
    return list(copies.values())


def numpy_call(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `function(*args, **kwargs)` is on traced values that follow NumPy.

    Args:
        function: NumPy's, or a ufunc of any package, or a method of one.
        name: for people, "numpy.sort"; decides whether shapes depend on data.
        args: traced values, arrays and what else the function takes, within tuples and lists too.
        kwargs: likewise.

    Raises:
        TraceError: it is no function of NumPy's whose results' shapes follow from its arguments'.
    """
    values = list(leaves((args, kwargs)))
    is_ufunc = isinstance(getattr(function, "__self__", function), np.ufunc) and not name.endswith(".at")
    if tracer_of(*map(_stored_in, values)) is None or not (
        is_ufunc
        or function in (assigned, _on_copies, operator.getitem, operator.pow)
        or name.removeprefix("numpy.") in NAMES
    ):
        raise refusals.refused(name)
    if "histogram" in name and any(type(bins) is str for bins in (*args[1:2], kwargs.get("bins"))):
        raise refusals.refused_shape(name)
    return numpy_node(function, name, args, kwargs)


def numpy_result(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What NumPy's function gives of numbers that graphs have no dtype for, as a call of its own.

    Raises:
        TraceError: it would write to an array.
    """
    if kwargs.get("out") is not None:
        refuse_to_write(f"{name} with out=")
    return numpy_node(function, name, args, {k: v for k, v in kwargs.items() if k != "out"})


def refuse_to_write(what: str) -> NoReturn:
    what = f"{what} is not traced where graphs have no dtype for the numbers"
    raise trace_error(what, "write y = ... for the new value")


def numpy_node(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Does what `numpy_call` does, for a function that is known to give shapes and dtypes that do not depend on
    elements.
    """
    tracer = tracer_of(*map(_stored_in, leaves((args, kwargs))))
    assert tracer is not None
    call = library_arguments.Arguments(tracer, (args, kwargs), "numpy")
    example = _example_of_index if function in (assigned, operator.getitem) else _example
    examples = [_known(tracer, v, example(v.shape, np.dtype(_dtype_name(v)))) for v in call.given]
    try:
        found = _called(function, call, examples)
    except Exception as error:
        line = user_line()
        raise type(error)(f"kfusion.{name.removeprefix('numpy.')}: {error}" + (f"\n  {line}" if line else "")) from None
    arrays = [np.asarray(a) for a in leaves(found) if isinstance(a, (np.ndarray, np.generic))]
    if not arrays:
        raise refusals.refused_result(name, found)
    if _depends_on_elements(function, call, examples, arrays):
        raise refusals.refused_shape(name)
    shown = [stored_numbers.numpy_spec(a) for a in arrays]
    types = [
        (dtype_of(a, name), a.shape) if s is None else (s.dtype, s.shape) for a, s in zip(arrays, shown, strict=True)
    ]
    made = tracer.library_call(name, _NumpyRun(function, call), call.values, types)
    numbers = [
        _beside(m, a, examples, call.given) if s is None else stored_numbers.numbers("numpy", m, a.dtype.name)
        for m, a, s in zip(made, arrays, shown, strict=True)
    ]
    slots = iter(numbers)
    return walk(found, lambda _, leaf: next(slots) if isinstance(leaf, (np.ndarray, np.generic)) else leaf)


def _called(function: Callable[..., Any], call: library_arguments.Arguments, arrays: Sequence[np.ndarray]) -> Any:
    args, kwargs = call.filled(arrays)
    with np.errstate(all="ignore"):
        return function(*args, **kwargs)


def _known(tracer: Tracer, value: Any, example: np.ndarray) -> np.ndarray:
    """An array of integers that the function names, as it is: results may be of as many elements as it says."""
    known = None if is_complex(value) or value._memory.version else tracer.input_of(tracer.node(value))
    is_array = known is not None and known.captured and isinstance(known.array, np.ndarray)
    return known.array if known is not None and is_array and example.dtype.kind in "ib" else example


def _depends_on_elements(
    function: Callable[..., Any], call: library_arguments.Arguments, examples: Sequence[Any], arrays: Sequence[Any]
) -> bool:
    """Whether other integers in traced values give other extents: how often elements are repeated, say."""
    if isinstance(getattr(function, "__self__", function), np.ufunc) or function in (assigned, operator.getitem):
        return False
    for step in (1, 3):
        others = [step * np.arange(e.size).reshape(e.shape).astype(e.dtype) if _is_one(e) else e for e in examples]
        if all(o is e for o, e in zip(others, examples, strict=True)):
            return False
        with contextlib.suppress(Exception):
            found = leaves(_called(function, call, others))
            if [np.shape(a) for a in found if isinstance(a, (np.ndarray, np.generic))] != [a.shape for a in arrays]:
                return True
    return False


def _is_one(example: np.ndarray) -> bool:
    return (
        example.dtype.kind in "ib" and example.ndim < 2 and example.size < _MOST_NUMBERS and bool((example == 1).all())
    )


_MOST_NUMBERS = 1024  # of an argument that says how many elements a result has


def _beside(made: Traced, found: np.ndarray, examples: Sequence[np.ndarray], values: Sequence[Any]) -> Traced:
    """A result, which is an argument itself or a view of one where NumPy's is."""
    for example, value in zip(examples, values, strict=True):
        if found is example:
            return value  # type: ignore[no-any-return]
        if isinstance(value, Traced) and np.may_share_memory(found, example):
            return made._tracer.value(made._tracer.node(made), value._memory)
    return made


def _stored_in(value: Any) -> Any:
    return value.pairs if is_complex(value) else value


def _dtype_name(value: Any) -> str:
    return value.dtype.name if is_complex(value) else value._dtype  # type: ignore[no-any-return]


class _NumpyRun:
    """Stands beside `library_runs.Run`, for NumPy and for what hands NumPy's functions over, such as CuPy."""

    def __init__(self, function: Callable[..., Any], call: library_arguments.Arguments) -> None:
        self._function = function
        self._structure = call.structure
        given = enumerate(zip(call.values, call.given, strict=True))
        self._views = [(i, g.dtype) for i, (v, g) in given if v is not g]

    def __call__(self, *arrays: Any) -> list[Any]:
        given = list(arrays)
        for i, dtype in self._views:
            given[i] = stored_numbers.numpy_seen(given[i], dtype)
        args, kwargs = fill(self._structure, given)
        result = self._function(*args, **kwargs)
        found = [np.asarray(a) if isinstance(a, np.generic) else a for a in leaves(result) if hasattr(a, "dtype")]
        return [stored_numbers.numpy_stored(_arrays.apart(a, given)) for a in found]


def assigned(x: Any, key: Any, value: Any) -> Any:
    """x with `value` at `key`, of NumPy."""
    x = x.copy()
    x[key] = value
    return x


_OPERATIONS = (assigned, _on_copies, operator.getitem, operator.pow)


def _example(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of a shape and dtype that functions of linear algebra take: a unit matrix."""
    return np.broadcast_to(np.eye(*shape[-2:], dtype=dtype), shape) if len(shape) > 1 else np.ones(shape, dtype)


def _example_of_index(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of positions that every axis has."""
    return np.zeros(shape, dtype)
