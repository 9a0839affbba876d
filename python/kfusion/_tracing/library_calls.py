"""Calls that a graph has no form for: nodes of their own, which the array library computes when the kernels run.

A torch function is called once on tensors without data (device="meta"), which gives the shapes and dtypes of its
results, says which arguments it writes to, and raises the errors that it would raise. NumPy has no such arrays: its
functions whose results have shapes that follow from the arguments' are listed here, and called once on other numbers.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import _arrays
from .._graph.number import is_number, read
from .._graph.sizes import has_sizes, is_size, of_call
from .._graph.source import TraceError, trace_error, user_line
from .._graph.structure import Constant, Slot, fill, leaves, walk
from .._graph.tracer import Tracer
from .._graph.values import Traced, WritingCall, tracer_of
from .._spec import DTYPES, is_array
from . import autocast, numpy_stored, refusals, torch_complex


def torch_call(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_tried: bool = False
) -> Any:
    """What `function(*args, **kwargs)` is on traced values: torch's own results, of the shapes that it gives.

    Values that it writes to (x.add_(y), out=x) are those values afterwards.

    Args:
        function: a function or a method of tensors.
        name: for people, "torch.sort".
        args: traced values, tensors and what else the function takes, within tuples, lists and dicts too.
        kwargs: likewise.
        is_tried: whether it is called on zeros at once, since some functions check dtypes only where there is data.

    Raises:
        TraceError: its results, or their shapes, depend on what is in its arguments.
    """
    tracer = tracer_of(*(getattr(leaf, "pairs", leaf) if is_complex(leaf) else leaf for leaf in leaves((args, kwargs))))
    if tracer is None:
        raise refusals.refused(name)
    if tracer.differentiates and _draws(name.removeprefix("torch."), args):
        raise refusals.refused_gradient(name)
    with tracer.trying():
        return _called(tracer, function, name, args, kwargs, is_tried)


def _called(tracer: Tracer, function: Callable[..., Any], name: str, args: Any, kwargs: Any, is_tried: bool) -> Any:
    call = _Arguments(tracer, (args, kwargs), "torch")
    tried = _Tried(function, name, call)
    shapes = [v.shape for v in call.values]
    found, shown, written = tried([of_call(shape, 0) for shape in shapes])
    results = _Results(name, found, shown)
    if not results.tensors and not written:
        if any(found is s for s in shown):  # x.contiguous() of what lies so
            return results.filled([], call.given)
        if name.removeprefix("torch.") in _OF_ANY_DATA:
            _require_no_sizes(tracer, shapes)
            return found
        raise refusals.refused_result(name, found)
    _require_writable(name, [call.given[i] for i in written])
    types: Any = [*_types(name, results, shown, written), *[_DONE] * len(written)]
    if has_sizes(shapes):
        types = tracer.recorded.compute_of(tried.types_of(tracer.recorded.types), shapes)  # type: ignore[union-attr]
    copied = tuple(k for k, t in enumerate(results.tensors) if any(_shares_memory(t, s) for s in shown))
    run = _Run(function, call, results.new(), tuple(written), copied)
    if is_tried:
        _require_no_sizes(tracer, shapes)
        run(*(without_data(v, _device_of([v])).zero_() for v in call.values))
    before = [tracer.node(call.values[i]) for i in written if _is_whole(call, i)]
    made = tracer.library_call(name, run, call.values, types)
    after = made[len(results.tensors) : len(results.tensors) + len(written)]
    for i, value in zip(written, after, strict=True):
        call.values[i]._write(name.removeprefix("torch."), value)  # type: ignore[attr-defined]
    if len(before) == len(written) == 1:
        tracer.writing_calls[tracer.node(after[0])] = WritingCall(run, *before, *map(tracer.node, (after[0], made[-1])))
    for k in copied:  # as with any view, what is written to it later would have to show in the others
        made[k] = tracer.value(tracer.node(made[k]), _owner(results.tensors[k], shown, call.values)._memory)
    numbers = [
        torch_complex.made(m, dtype) if (dtype := name_of_dtype(t)) in torch_complex.STORED else m
        for m, t in zip(made, results.tensors, strict=False)
    ]
    return results.filled(numbers, call.given)


_OF_SAMPLES = ("fractional_max_pool", "svd_lowrank", "pca_lowrank")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def _draws(name: str, args: Sequence[Any]) -> bool:
    """Whether a call draws random numbers, and others where its gradient computes it again."""
    drops = (type(p) is float and p > 0 and train is True for p, train in itertools.pairwise(args))
    return name.startswith(_OF_SAMPLES) or (name in _RECURRENT and any(drops))


def with_form(function: Callable[..., Any] | None, name: str, args: Any, kwargs: Any, build: Callable[[], Any]) -> Any:
    """What `build` makes of a call. Where that is of several stages, the graph learns that torch has a function for it,
    unless the call draws random numbers, writes to what it is given, or does without that.

    Args:
        function: torch's, None where it is not imported.
        name: for people, "torch.scaled_dot_product_attention".
        args: of the call, traced values among them.
        kwargs: likewise.
        build: adds the nodes.
    """
    tracer = tracer_of(*leaves((args, kwargs)))
    first, before = (tracer.graph.stages(), _effects(tracer)) if tracer is not None else (0, None)
    made = build()
    if tracer is None or function is None or not isinstance(made, Traced) or tracer.graph.stages() < first + 2:
        return made
    if _effects(tracer) != before:
        return made
    if any(map(is_number, leaves((args, kwargs)))):
        return made  # torch would take a float argument's value as it is now
    call = _Arguments(tracer, (args, kwargs), "torch")
    order = _ORDERS.get(name) if made.ndim == _ATTENTION_AXES else None
    run = _Run(function if order is None else _in_order(function, order), call)
    tracer.library_form(name, run, call.values, made, first, order or ())
    return made


def _effects(tracer: Tracer) -> tuple[Any, int]:
    return tracer.effects, tracer.heads.claims


# Functions that say of any tensors of those shapes and dtypes what they say of those without data.
_OF_ANY_DATA = ("is_signed", "is_conj", "is_neg", "is_inference", "is_same_size", "result_type", "dense_dim")
# Functions that torch does not have for tensors without data, although these would do: called on ones, on the CPU.
_ONLY_OF_DATA = ("cov", "corrcoef", "combinations", "histogram", "geqrf")
_ATTENTION_AXES = 4  # batch, heads, positions, elements
# The order in which the axes of torch's results lie in memory: heads are behind positions.
_ORDERS = {"torch.scaled_dot_product_attention": (0, 2, 1, 3)}


def _in_order(function: Callable[..., Any], order: Sequence[int]) -> Callable[..., Any]:
    """Attention, whose result has its axes in that order. torch's fast kernels want the rows of a mask dense."""

    def run(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **kwargs: Any) -> Any:
        mask = attn_mask if attn_mask is None else _of_dense_rows(attn_mask)
        return function(query, key, value, mask, *args, **kwargs).permute(order)

    return run


def _of_dense_rows(mask: Any) -> Any:
    """The mask, copied where its last axis is not the innermost; what is the same for all of another axis once."""
    if mask.stride(-1) == 1:
        return mask
    parts = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in mask.stride()[:-1])
    return mask[parts].contiguous().expand(mask.shape)


_DONE = ("int64", ())
_MOST_TYPES = 1024


def _is_whole(call: _Arguments, i: int) -> bool:
    """Whether a tensor of a call is all of an array, and not seen as numbers of another dtype."""
    return call.values[i]._path == () and call.given[i] is call.values[i]


class _Arguments:
    """A call's arguments with slots in place of its arrays."""

    def __init__(self, tracer: Tracer, arguments: Any, library: str) -> None:
        self._tracer = tracer
        self._library = library
        self.values: list[Traced] = []
        self.given: list[Any] = []  # what stands for them in the call: themselves, or complex numbers
        self._slots: dict[int, Slot] = {}
        self.structure = walk(arguments, self._visit)

    def filled(self, arrays: Sequence[Any]) -> Any:
        """The arguments with arrays in their slots."""
        return fill(self.structure, list(arrays))

    def viewed(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors, those that stand for complex numbers as such."""
        return [
            torch_complex.seen(t, name_of_dtype(g)) if g is not v else t
            for t, v, g in zip(tensors, self.values, self.given, strict=True)
        ]

    def _visit(self, _: str, leaf: Any) -> Any:
        if is_number(leaf):
            return read(leaf)
        if is_size(leaf):
            _require_no_sizes(self._tracer, leaf)
        if is_array(leaf) and self._library == "torch" and name_of_dtype(leaf).startswith("complex"):
            leaf = torch_complex.of_array(leaf, self._tracer)
        if is_complex(leaf):
            return self._slot(leaf, leaf.pairs)
        if self._library == "numpy" and numpy_stored.spec_of_stored(leaf) is not None:
            return leaf  # no kernel looks at it: the call itself reads it when it runs
        if is_array(leaf):
            leaf = self._tracer.lift(leaf, self._library)
        return self._slot(leaf, leaf) if isinstance(leaf, Traced) else leaf

    def _slot(self, given: Any, value: Traced) -> Slot:
        self._tracer.node(value)  # raises where it cannot be used
        if id(given) not in self._slots:
            self._slots[id(given)] = Slot(len(self.values))
            self.values.append(value)
            self.given.append(given)
        return self._slots[id(given)]


class _Tried:
    """A call on tensors without data: what it gives, the tensors, and the numbers of those that it writes to."""

    def __init__(self, function: Callable[..., Any], name: str, call: _Arguments) -> None:
        self._function = function
        self._name = name
        self._call = call
        self._dtypes = [v._dtype for v in call.values]
        self._has_data = name.removeprefix("torch.") in _ONLY_OF_DATA
        self._device = _device_of(call.values)
        self._is_cast = autocast.active(self._device) is not None
        self._structure = call.structure if self._is_cast else _moved(call.structure, call.values, "meta")

    def __call__(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Any, list[Any], list[int]]:
        torch = sys.modules["torch"]
        with _fake_tensors() if self._is_cast else contextlib.nullcontext():
            made = [
                torch.empty(shape, dtype=getattr(torch, dtype), device="cpu").fill_(1)
                if self._has_data
                else torch.empty(shape, dtype=getattr(torch, dtype), device=self._device if self._is_cast else "meta")
                for shape, dtype in zip(shapes, self._dtypes, strict=True)
            ]
            shown = self._call.viewed(made)
            versions = [t._version for t in shown]
            found = _called_without_data(self._function, self._name, fill(self._structure, shown))
        return found, shown, [i for i, t in enumerate(shown) if t._version != versions[i]]

    def types_of(self, known: dict[Any, list[Any]]) -> Callable[[list[tuple[int, ...]]], list[Any]]:
        """A function from shapes of arguments to the types of results. `known` are those of all calls of a trace: a
        model's layers call the same functions, and torch takes a millisecond for some.
        """
        constants = tuple((type(leaf), leaf) for leaf in leaves(self._structure))
        call = self._function, repr(self._structure), constants, tuple(self._dtypes)

        def types(shapes: list[tuple[int, ...]]) -> list[Any]:
            key = call, tuple(shapes)
            if not _is_hashable(key):
                return self._types(shapes)
            if key not in known:
                known.clear() if len(known) == _MOST_TYPES else None
                known[key] = self._types(shapes)
            return known[key]

        return types

    def _types(self, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        found, shown, written = self(shapes)
        made = _types(self._name, _Results(self._name, found, shown), shown, written)
        return [*made, *[_DONE] * len(written)]


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _types(name: str, results: _Results, shown: Sequence[Any], written: Sequence[int]) -> list[Any]:
    return [_type(t, name) for t in (*results.tensors, *(shown[i] for i in written))]


def _require_no_sizes(tracer: Tracer, shapes: Any) -> None:
    if tracer.recorded is not None and has_sizes(shapes):
        raise tracer.recorded.failed()


class _Results:
    """What a call on tensors without data gave: the new tensors, and where they are in the result."""

    def __init__(self, name: str, found: Any, shown: Sequence[Any]) -> None:
        self.tensors: list[Any] = []
        self._is_new: list[bool] = []  # of all tensors of the result
        self._shown = shown
        self._name = name
        self._structure = walk(found, self._visit)

    def _visit(self, _: str, leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        self._is_new.append(all(leaf is not argument for argument in self._shown))
        for i, argument in enumerate(self._shown):
            if leaf is argument:  # x.add_(y) returns x
                return Slot(-1 - i)
        if not self._shown or type(leaf) is not type(self._shown[0]) or leaf.device != self._shown[0].device:
            raise trace_error(
                f"{self._name} gives a tensor that is not made of its traced arguments", "make it outside"
            )
        self.tensors.append(leaf)
        return Slot(len(self.tensors) - 1)

    def new(self) -> list[int] | None:
        """The numbers of the new tensors among all of the result; None where all are new."""
        return None if all(self._is_new) else [i for i, is_new in enumerate(self._is_new) if is_new]

    def filled(self, made: Sequence[Any], given: Sequence[Any]) -> Any:
        """The result with traced values in place of tensors."""
        all_values = [*made[: len(self.tensors)], *given[::-1]]  # Slot(-1) is the first of those given
        return fill(self._structure, all_values)


class _Run:
    """The call as the kernels' steps make it: arrays in, a list of all results out; of each tensor that is written to,
    the new one, and a number that says so. `in_place`: the new one is the old one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        call: _Arguments,
        new: Sequence[int] | None = None,
        written: tuple[int, ...] = (),
        copied: tuple[int, ...] = (),
    ) -> None:
        self._device = _device_of(call.values)
        self._function = function
        self._autocast = autocast.active(self._device)
        self._any_autocast = sys.modules["torch"]._C._is_any_autocast_enabled
        self._new = new
        self._written = written
        self._copied = copied
        self.in_place = False
        given = enumerate(zip(call.values, call.given, strict=True))
        self._views = [(i, name_of_dtype(g)) for i, (v, g) in given if v is not g]
        self._args, self._kwargs = call.structure
        # Most arguments need no search for slots at each call, and what calls cost beside the functions counts.
        self._places = [(i, v.index) for i, v in enumerate(self._args) if isinstance(v, Slot)]
        self._names = [(k, v.index) for k, v in self._kwargs.items() if isinstance(v, Slot)]
        self._parts = [(i, v) for i, v in enumerate(self._args) if not _is_whole_or_fixed(v)]
        self._named_parts = [(k, v) for k, v in self._kwargs.items() if not _is_whole_or_fixed(v)]
        self._is_plain = new is None and not (written or copied or self._views or self._autocast)

    def __call__(self, *arrays: Any) -> list[Any]:
        if self._is_plain and not self._any_autocast():
            args, kwargs = self._filled(arrays)
            result = self._function(*args, **kwargs)
            return [torch_complex.stored(t) for t in _tensors(result)]
        return self._called(list(arrays))

    def _called(self, given: list[Any]) -> list[Any]:
        for i, dtype in self._views:
            given[i] = torch_complex.seen(given[i], dtype)
        for i in () if self.in_place else self._written:
            given[i] = given[i].clone()
        args, kwargs = self._filled(given)
        with autocast.as_traced(self._device, self._autocast):
            result = self._function(*args, **kwargs)
        tensors = _tensors(result)
        if self._new is not None:
            tensors = [tensors[i] for i in self._new]
        for k in self._copied:
            tensors[k] = tensors[k].clone()
        tensors += [given[i] for i in self._written]
        tensors += [given[i].new_zeros((), dtype=sys.modules["torch"].int64) for i in self._written]
        return [torch_complex.stored(t) for t in tensors]

    def _filled(self, arrays: Sequence[Any]) -> Any:
        args = list(self._args)
        for place, i in self._places:
            args[place] = arrays[i]
        for place, part in self._parts:
            args[place] = fill(part, list(arrays))
        if not (self._names or self._named_parts):
            return args, self._kwargs
        kwargs = self._kwargs | {k: arrays[i] for k, i in self._names}
        return args, kwargs | {k: fill(part, list(arrays)) for k, part in self._named_parts}


def _tensors(result: Any) -> list[Any]:
    if is_array(result):
        return [result]
    if isinstance(result, tuple) and all(map(is_array, result)):
        return list(result)
    return [t for t in leaves(result) if is_array(t)]


def _is_whole_or_fixed(value: Any) -> bool:
    """Whether an argument is an array, or the same at each call: the function cannot change it."""
    if isinstance(value, Slot):
        return True
    return _is_hashable(value) and not any(isinstance(leaf, (Slot, Constant)) for leaf in leaves(value))


def _require_writable(name: str, given: Sequence[Any]) -> None:
    """What is written to an argument is copied there, and a kernel would not copy the bits of small integers."""
    for value in given:
        if is_complex(value) and not value.dtype.is_complex and value.pairs._tracer.is_input(value.pairs):
            what = f"{name} writes to {name_of_dtype(value)}, which graphs have no dtype for"
            raise trace_error(what, "write to a copy of another dtype: x.to(torch.int32)")


def is_complex(value: Any) -> bool:
    """Whether value stands for complex numbers."""
    return hasattr(type(value), "__kfusion_complex__")


def _fake_tensors() -> Any:
    """A context in which tensors have no data and look as if they were where values are, as torch.autocast needs it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def _device_of(values: Sequence[Traced]) -> str:
    return str(getattr(values[0], "device", "cpu")) if values else "cpu"


def without_data(value: Traced, device: str = "meta") -> Any:
    """A tensor of the value's shape and dtype."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():  # it is nothing that the traced function makes
        return torch.empty(value.shape, dtype=getattr(torch, value._dtype), device=device)


def lying_so(value: Traced) -> Any:
    """As `without_data`, with the value's strides, where they are known."""
    shown, strides = without_data(value), value._tracer.strides(value)
    if strides is None or 0 in value.shape:
        return shown
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():
        return torch.empty_strided(value.shape, strides, dtype=shown.dtype, device="meta")


def lies_on(value: Any, device: Any) -> bool:
    """Whether a traced value is on a device, given as torch's object or a name."""
    if str(device) == "meta" and value._tracer.plans:
        return True  # the device of tensors that a plan takes for data
    return ("cuda:0" if str(device) == "cuda" else str(device)) == str(value.device)


def _moved(arguments: Any, values: Sequence[Traced], device: str) -> Any:
    """The arguments with the device of tensors without data in place of that of the values."""
    args, kwargs = walk(arguments, lambda _, leaf: device if _is_device_of(values, leaf) else leaf)
    if isinstance(named := kwargs.get("device"), str) and lies_on(values[0], named):
        kwargs = kwargs | {"device": device}
    return args, kwargs


def _is_device_of(values: Sequence[Traced], leaf: Any) -> bool:
    return isinstance(leaf, sys.modules["torch"].device) and lies_on(values[0], leaf)


def _called_without_data(function: Callable[..., Any], name: str, arguments: Any) -> Any:
    """Raises what the function raises where its arguments do not fit, with the user's line."""
    args, kwargs = arguments
    try:
        with sys.modules["torch"].no_grad():
            return function(*args, **kwargs)
    except TraceError:
        raise
    except Exception as error:
        if refusals.depends_on_data(error):
            raise refusals.refused_shape(name) from None
        line = user_line()
        raise type(error)(f"kfusion.{name.removeprefix('torch.')}: {error}" + (f"\n  {line}" if line else "")) from None


def _dtype(array: Any, name: str) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise trace_error(
            f"{name} gives {dtype}, and values of a traced function are of {', '.join(DTYPES)}",
            "convert it within a function that kf.call calls",
        )
    return dtype


def _type(tensor: Any, name: str) -> tuple[str, tuple[int, ...]]:
    """The dtype and extents of the value that a tensor is; complex numbers are pairs of floats."""
    stored = torch_complex.STORED.get(name_of_dtype(tensor)) or _dtype(tensor, name)
    return stored, (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


def name_of_dtype(tensor: Any) -> str:
    """ "uint8", without the name of torch."""
    return name_of(tensor.dtype)


def name_of(dtype: Any) -> str:
    """The name of one of torch's dtypes."""
    return str(dtype).removeprefix("torch.")


def _shares_memory(a: Any, b: Any) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def _owner(tensor: Any, shown: Sequence[Any], values: Sequence[Traced]) -> Traced:
    return next(v for t, v in zip(shown, values, strict=True) if _shares_memory(tensor, t))


# Functions of NumPy's whose results' shapes and dtypes do not depend on the elements of arrays.
_NUMPY_NAMES = """
    all amax amin angle any append apply_along_axis apply_over_axes argmax argmin argpartition argsort array_split
    average block choose count_nonzero geomspace histogram histogram2d histogram_bin_edges isin linspace logspace max
    lib.stride_tricks.sliding_window_view
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
    vander vdot vecdot vecmat vsplit vstack i0 isclose allclose round fix real_if_close nextafter
"""
_NUMPY = frozenset(_NUMPY_NAMES.split())


def has_numpy(name: str) -> bool:
    """Whether that function of NumPy's can be called among the kernels."""
    return name in _NUMPY


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
        is_ufunc or function in (assigned, _on_copies, operator.getitem) or name.removeprefix("numpy.") in _NUMPY
    ):
        raise refusals.refused(name)
    if "histogram" in name and any(type(bins) is str for bins in (*args[1:2], kwargs.get("bins"))):
        raise refusals.refused_shape(name)
    return numpy_node(function, name, args, kwargs)


def numpy_node(function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As `numpy_call`, for a function that is known to give shapes and dtypes that do not depend on elements."""
    tracer = tracer_of(*map(_stored_in, leaves((args, kwargs))))
    assert tracer is not None
    call = _Arguments(tracer, (args, kwargs), "numpy")
    example = _example_of_index if function in (assigned, operator.getitem) else _example
    given = call.filled([example(v.shape, np.dtype(_dtype_name(v))) for v in call.given])
    try:
        with np.errstate(all="ignore"):
            found = function(*given[0], **given[1])
    except Exception as error:
        line = user_line()
        raise type(error)(f"kfusion.{name.removeprefix('numpy.')}: {error}" + (f"\n  {line}" if line else "")) from None
    arrays = [np.asarray(a) for a in leaves(found) if isinstance(a, (np.ndarray, np.generic))]
    if not arrays:
        raise refusals.refused_result(name, found)
    shown = [numpy_stored.spec_of_stored(a) for a in arrays]
    types = [
        (_dtype(a, name), a.shape) if s is None else (s.dtype, s.shape) for a, s in zip(arrays, shown, strict=True)
    ]
    made = tracer.library_call(name, _NumpyRun(function, call), call.values, types)
    numbers = [
        m if s is None else numpy_stored.Stored(m, a.dtype.name) for m, a, s in zip(made, arrays, shown, strict=True)
    ]
    slots = iter(numbers)
    return walk(found, lambda _, leaf: next(slots) if isinstance(leaf, (np.ndarray, np.generic)) else leaf)


def _stored_in(value: Any) -> Any:
    return value.pairs if is_complex(value) else value


def _dtype_name(value: Any) -> str:
    return value.dtype.name if is_complex(value) else value._dtype  # type: ignore[no-any-return]


class _NumpyRun:
    """As `_Run`, for NumPy and for what hands NumPy's functions over, such as CuPy."""

    def __init__(self, function: Callable[..., Any], call: _Arguments) -> None:
        self._function = function
        self._call = call
        given = enumerate(zip(call.values, call.given, strict=True))
        self._views = [(i, g.dtype) for i, (v, g) in given if v is not g]

    def __call__(self, *arrays: Any) -> list[Any]:
        given = list(arrays)
        for i, dtype in self._views:
            given[i] = numpy_stored.seen(given[i], dtype)
        args, kwargs = self._call.filled(given)
        result = self._function(*args, **kwargs)
        found = [np.asarray(a) if isinstance(a, np.generic) else a for a in leaves(result) if hasattr(a, "dtype")]
        return [numpy_stored.stored(_arrays.apart(a, given)) for a in found]


def assigned(x: Any, key: Any, value: Any) -> Any:
    """x with `value` at `key`, of NumPy."""
    x = x.copy()
    x[key] = value
    return x


def assign(x: Any, key: Any, value: Any) -> Any:
    """x[key] = value; returns x."""
    x[key] = value
    return x


def _example(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of a shape and dtype that functions of linear algebra take: a unit matrix."""
    return np.broadcast_to(np.eye(*shape[-2:], dtype=dtype), shape) if len(shape) > 1 else np.ones(shape, dtype)


def _example_of_index(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Likewise, with positions that every axis has."""
    return np.zeros(shape, dtype)
