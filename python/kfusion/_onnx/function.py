"""A model as a function that is traced: for plans by specs, for calls by arrays."""

from __future__ import annotations

import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import _arrays
from .._graph.tracer import current
from .._spec import Spec, is_array
from .._spec import spec as make_spec
from . import rows_elementwise, rows_networks, rows_reductions, rows_shapes, tensors  # noqa: F401 - they enter rows
from .evaluation import of_bits
from .interpreter import Interpreter
from .model import Model
from .values import AllKnown, NeedsValues, carrier, is_graph_dtype, is_unknown, stored

_MOST_KEPT = 64  # functions, by shapes and values


class Traceable:
    """A model as a function of its inputs by name: those of the model, and weights with default values that are given.

    `static` has those whose values are known; `device` is that of torch's tensors.
    """

    def __init__(self, model: Model, static: Mapping[str, np.ndarray], device: Any = None) -> None:
        self.__name__ = self.__qualname__ = model.name
        self._model = model
        self._static = static
        self._device = device
        self.is_known = False  # every result is, since the last trace
        self.results: dict[str, Any] = {}  # of the last trace, by name: arrays that are known, dtypes of others

    def __call__(self, **inputs: Any) -> Any:
        tracer = current.get()
        assert tracer is not None
        at = Interpreter(self._model, tracer, self._static, self._device)
        infos = [i for i in self._model.arguments if _key(i.name) in inputs]
        given = {i.name: at.input(i.name, inputs[_key(i.name)], self._model.dtype(i, "the input")) for i in infos}
        found = at.run(given)
        unknown = {n: at.result(v) for n, v in found.items() if is_unknown(v)}
        self.results = {n: unknown[n][1] if n in unknown else v for n, v in found.items()}
        self.is_known = not unknown
        if not unknown:
            raise AllKnown(self)
        return [v for v, _ in unknown.values()]


def traced(
    path: str | os.PathLike[str], arguments: tuple[Any, ...], keywords: dict[str, Any], trace: Callable[..., Any]
) -> Any:
    """The trace of a model for a plan: `kfusion.plan` says what the keywords are."""
    model = Model(path)
    sizes, default = _sizes(keywords.pop("sizes", None) or {}), keywords.pop("default_size", None)
    default = sizes.pop("default_size", None) if default is None else _sizes({"default_size": default})["default_size"]
    given = _bound(model, arguments, keywords, complete=False)
    infos = [*model.inputs, *(i for n, i in model.defaults.items() if n in given)]
    dtypes = {i.name: model.dtype(i, "the input") for i in infos}  # refuses those that are no tensors
    for name, dtype in dtypes.items():
        carrier(dtype, f"the input {name!r}")
    shapes = model.sizes(sizes, default, given)
    static: dict[str, np.ndarray] = {}
    specs: dict[str, Any] = {}
    for info in infos:
        dtype = dtypes[info.name]
        value = given.get(info.name)
        if value is None:
            specs[_key(info.name)] = make_spec(shapes[info.name], carrier(dtype, f"the input {info.name!r}"))
        elif isinstance(value, Spec):
            specs[_key(info.name)] = _checked(value, info.name, dtype)
        else:
            static[info.name] = np.asarray(value).astype(dtype, copy=False)
    try:
        return trace(Traceable(model, static), **specs)
    except NeedsValues as error:
        names = ", ".join(f"{n}=numpy.array(...)" for n in sorted(error.names))
        raise ValueError(f"kfusion.onnx: {error.who}: its result depends on values of inputs: pass {names}") from None
    except AllKnown:
        raise ValueError("kfusion.onnx: every result is known without computing: there is no kernel to plan") from None


def _sizes(given: Any) -> dict[str, int]:
    """Sizes by name.

    Raises:
        TypeError: they are none.
    """
    try:
        return {str(name): operator.index(size) for name, size in given.items()}
    except (AttributeError, TypeError):
        what = f'sizes must be integers by name, such as {{"batch": 8}}, got {given!r}'
        raise TypeError(f"kfusion.onnx: {what}") from None


def _key(name: str) -> str:
    """An input's name among the keywords of a function that is traced, which takes `out` and `stream` itself."""
    return f"{name}_" if name in ("out", "stream") else name


def _checked(given: Spec, name: str, dtype: np.dtype[Any]) -> Spec:
    wanted = carrier(dtype, f"the input {name!r}")
    if given.dtype != wanted:
        raise TypeError(f"kfusion.onnx: {name} must be of {dtype.name}, got a spec of {given.dtype}")
    return given


def _bound(model: Model, arguments: Any, keywords: Mapping[str, Any], *, complete: bool) -> dict[str, Any]:
    """The arguments by the names of the model's inputs.

    Raises:
        TypeError: there are too many, one is no input or given twice, or (if they must be complete) one is missing.
    """
    names = [i.name for i in model.inputs]
    if len(arguments) > len(names):
        raise TypeError(f"kfusion.onnx: {model.name} takes {len(names)} inputs, got {len(arguments)}")
    given = dict(zip(names, arguments, strict=False))
    for name, value in keywords.items():
        if name in given:
            raise TypeError(f"kfusion.onnx: {name} is given twice")
        if name not in names and name not in model.defaults:
            known = ", ".join([*names, *model.defaults]) or "none"
            raise TypeError(f"kfusion.onnx: {name} is no input of {model.name}; it has {known}")
        given[name] = value
    if complete and (missing := [n for n in names if n not in given]):
        raise TypeError(f"kfusion.onnx: {model.name} needs the input {', '.join(missing)}")
    return given


class FusedModel:
    """A model as a function of arrays. `kfusion.fuse` says what it does.

    f(x, y), f(x, y=y)   the model's outputs: an array, or a tuple of several, in its order
    f(x, y, w=w)         with another value for a weight that is an input, too
    f.plan(x, y)         the Plan that the call runs
    f.clear()            forgets what was traced
    f.input_names, f.default_names, f.output_names
    """

    def __init__(self, path: str | os.PathLike[str], fused: Callable[[Callable[..., Any]], Any]) -> None:
        self._model = Model(path)
        self._model.with_weights = True
        self._fused = fused
        self._lock = threading.Lock()
        self._static: set[str] = set()  # inputs whose values decide on shapes
        self._functions: OrderedDict[Any, tuple[Traceable, Any]] = OrderedDict()
        self.__name__ = self._model.name
        self.input_names = tuple(i.name for i in self._model.inputs)
        self.default_names = tuple(self._model.defaults)
        self.output_names = tuple(o.name for o in self._model.graph.output)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The model's outputs for its inputs, by position or by name."""
        given, library = self._given(arrays, named)
        try:
            function, outputs = self._called(given, lambda fused, inputs: fused(**inputs))
        except AllKnown as known:
            function, outputs = known.function, []
        found, device = iter(outputs), _device_of(given)
        made = [_result(function.results[n], found, library, device) for n in self.output_names]
        return made[0] if len(made) == 1 else tuple(made)

    def plan(self, *arrays: Any, device: Any = None, **named: Any) -> Any:
        """The kernels that a call with these arrays runs, counted and priced. Nothing is computed."""
        given, _ = self._given(arrays, named)
        try:
            return self._called(given, lambda fused, inputs: fused.plan(**inputs, device=device))[1]
        except AllKnown:
            raise ValueError("kfusion.onnx: every result is known without computing: there is no kernel") from None

    def at(self, *arrays: Any, **named: Any) -> tuple[Any, dict[str, Any]]:
        """The fused function of a call with these arrays, and its arguments by name."""

        def planned(fused: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            fused.plan(**inputs)
            return fused, inputs

        found: tuple[Any, dict[str, Any]] = self._called(self._given(arrays, named)[0], planned)[1]
        return found

    def clear(self) -> None:
        """Forgets all traces."""
        with self._lock:
            self._functions.clear()

    def _given(self, arrays: Any, named: Any) -> tuple[dict[str, Any], str]:
        """The arrays by name, all NumPy's or all torch's, and the library whose arrays results are."""
        bound = _bound(self._model, arrays, named, complete=True)
        given, infos = {}, {i.name: i for i in self._model.arguments}
        for name, array in bound.items():
            dtype = self._model.dtype(infos[name], "the input")
            carrier(dtype, f"the input {name!r}")
            given[name] = array = _as_array(array, name)
            if tensors.dtype_of(array) != dtype:
                got = tensors.dtype_of(array).name
                raise TypeError(f"kfusion.onnx: {name} must be of {dtype.name}, got {got}")
            _require_shape(self._model, infos[name], array)
        return tensors.of_one_kind(given), tensors.library_of(bound.values())

    def _called(self, given: dict[str, Any], call: Callable[[Any, dict[str, Any]], Any]) -> tuple[Traceable, Any]:
        """Calls the function of these shapes and values; one that asks for more values is traced again with them."""
        while True:
            static = {n: tensors.to_numpy(a) for n, a in given.items() if n in self._static}
            function, fused = self._function(given, static)
            if function.is_known:
                raise AllKnown(function)
            try:
                return function, call(fused, {_key(n): _stored(a) for n, a in given.items() if n not in static})
            except NeedsValues as error:
                with self._lock:
                    self._functions.clear()
                    self._static |= error.names

    def _function(self, given: dict[str, Any], static: dict[str, np.ndarray]) -> tuple[Traceable, Any]:
        device = _device_of(given)
        values = tuple((n, tuple(a.shape), static[n].tobytes() if n in static else None) for n, a in given.items())
        key = (str(device), *values)
        with self._lock:
            if key not in self._functions:
                made = Traceable(self._model, {n: a.copy() for n, a in static.items()}, device)
                self._functions[key] = (made, self._fused(made))
                if len(self._functions) > _MOST_KEPT:
                    self._functions.popitem(last=False)
            self._functions.move_to_end(key)
            return self._functions[key]

    def __repr__(self) -> str:
        return f"<kfusion.fuse: {self._model.path.name}({', '.join(self.input_names)})>"


def _result(result: Any, outputs: Any, library: str, device: Any) -> Any:
    """An output: a copy of what is known, or the next array that the kernels made."""
    if isinstance(result, np.ndarray):
        return tensors.made(result.copy(), library, device)
    array = next(outputs)
    if not is_graph_dtype(result):
        return tensors.made(of_bits(tensors.to_numpy(array), result), library, device)
    return tensors.back(array, library)


def _device_of(given: dict[str, Any]) -> Any:
    """Where the tensors are; None for NumPy's arrays."""
    return next((a.device for a in given.values() if not isinstance(a, np.ndarray)), None)


def _stored(array: Any) -> Any:
    """An array as kernels are given it."""
    if isinstance(array, np.ndarray):
        return stored(array)
    return tensors.stored(array, carrier(tensors.dtype_of(array), "an array"))


def _as_array(array: Any, name: str) -> Any:
    """NumPy's array or torch's tensor.

    Raises:
        TypeError: it is no array.
    """
    if isinstance(array, (bool, int, float, np.generic, list, tuple)):
        return np.asarray(array)
    if isinstance(array, np.ndarray):
        return array
    if not is_array(array):
        pass
    elif tensors.is_tensor(array) or _arrays.on_cuda(array):
        return tensors.taken(array, name)
    elif hasattr(array, "__array__"):
        return np.asarray(array)
    raise TypeError(f"kfusion.onnx: {name} must be an array, got {type(array).__name__}")


def _require_shape(model: Model, info: Any, array: Any) -> None:
    dims = model.shape(info)
    if dims is None:
        return
    fits = len(dims) == array.ndim and all(isinstance(d, str) or d == n for d, n in zip(dims, array.shape, strict=True))
    if not fits:
        wanted = ", ".join(str(d or "?") for d in dims)
        raise ValueError(f"kfusion.onnx: {info.name} must have shape ({wanted}), got {tuple(array.shape)}")
