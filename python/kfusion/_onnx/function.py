"""A model as a function that is traced: for plans by specs, for calls by arrays."""

from __future__ import annotations

import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._graph.tracer import current
from .._spec import Spec, is_array
from .._spec import spec as make_spec
from . import rows_elementwise, rows_networks, rows_reductions, rows_shapes  # noqa: F401 - they enter their rows
from .evaluation import of_bits
from .interpreter import Interpreter
from .model import Model
from .values import AllKnown, NeedsValues, carrier, has_form, is_unknown, stored

_MOST_KEPT = 64  # functions, by shapes and values


class Traceable:
    """A model as a function of its inputs by name. `static` has those whose values are known."""

    def __init__(self, model: Model, static: Mapping[str, np.ndarray]) -> None:
        self.__name__ = self.__qualname__ = model.name
        self._model = model
        self._static = static
        self.is_known = False  # every result is, since the last trace
        self.results: dict[str, Any] = {}  # of the last trace, by name: arrays that are known, dtypes of others

    def __call__(self, **inputs: Any) -> Any:
        tracer = current.get()
        assert tracer is not None
        at = Interpreter(self._model, tracer, self._static)
        infos = [i for i in self._model.inputs if i.name not in self._static]
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
    default = None if default is None else _sizes({"default_size": default})["default_size"]
    given = _bound(model, arguments, keywords, complete=False)
    dtypes = {i.name: model.dtype(i, "the input") for i in model.inputs}  # refuses those that are no tensors
    for name, dtype in dtypes.items():
        carrier(dtype, f"the input {name!r}")
    shapes = model.sizes(sizes, default, given)
    static: dict[str, np.ndarray] = {}
    specs: dict[str, Any] = {}
    for info in model.inputs:
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
        if name not in names or name in given:
            raise TypeError(f"kfusion.onnx: {name} is {_why_not(model, name, is_given=name in given)}")
        given[name] = value
    if complete and (missing := [n for n in names if n not in given]):
        raise TypeError(f"kfusion.onnx: {model.name} needs the input {', '.join(missing)}")
    return given


def _why_not(model: Model, name: str, *, is_given: bool) -> str:
    if is_given:
        return "given twice"
    if name in model.defaults:
        return "a weight with a default value, which cannot be replaced: take it out of the model's initializers"
    return f"no input of {model.name}; it has {', '.join(i.name for i in model.inputs) or 'none'}"


class FusedModel:
    """A model as a function of arrays. `kfusion.fuse` says what it does.

    f(x, y), f(x, y=y)   the model's outputs: an array, or a tuple of several, in its order
    f.plan(x, y)         the Plan that the call runs
    f.clear()            forgets what was traced
    f.input_names, f.output_names
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
        self.output_names = tuple(o.name for o in self._model.graph.output)

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The model's outputs for its inputs, by position or by name."""
        given = self._given(arrays, named)
        try:
            function, outputs = self._called(given, lambda fused, inputs: fused(**inputs))
        except AllKnown as known:
            function, outputs = known.function, []
        found = iter(outputs)
        made = [_result(function.results[n], found) for n in self.output_names]
        return made[0] if len(made) == 1 else tuple(made)

    def plan(self, *arrays: Any, device: Any = None, **named: Any) -> Any:
        """The kernels that a call with these arrays runs, counted and priced. Nothing is computed."""
        given = self._given(arrays, named)
        try:
            return self._called(given, lambda fused, inputs: fused.plan(**inputs, device=device))[1]
        except AllKnown:
            raise ValueError("kfusion.onnx: every result is known without computing: there is no kernel") from None

    def clear(self) -> None:
        """Forgets all traces."""
        with self._lock:
            self._functions.clear()

    def _given(self, arrays: Any, named: Any) -> dict[str, np.ndarray]:
        bound = _bound(self._model, arrays, named, complete=True)
        given = {}
        for info in self._model.inputs:
            dtype, array = self._model.dtype(info, "the input"), bound[info.name]
            carrier(dtype, f"the input {info.name!r}")
            if not isinstance(array, np.ndarray):
                array = _as_numpy(array, info.name)
            if array.dtype != dtype:
                raise TypeError(f"kfusion.onnx: {info.name} must be of {dtype.name}, got {array.dtype.name}")
            _require_shape(self._model, info, array)
            given[info.name] = array
        return given

    def _called(
        self, given: dict[str, np.ndarray], call: Callable[[Any, dict[str, Any]], Any]
    ) -> tuple[Traceable, Any]:
        """Calls the function of these shapes and values; one that asks for more values is traced again with them."""
        while True:
            static = {n: a for n, a in given.items() if n in self._static}
            function, fused = self._function(given, static)
            if function.is_known:
                raise AllKnown(function)
            try:
                return function, call(fused, {_key(n): stored(a) for n, a in given.items() if n not in static})
            except NeedsValues as error:
                with self._lock:
                    self._functions.clear()
                    self._static |= error.names

    def _function(self, given: dict[str, np.ndarray], static: dict[str, np.ndarray]) -> tuple[Traceable, Any]:
        key = tuple((a.shape, a.tobytes() if n in static else None) for n, a in given.items())
        with self._lock:
            if key not in self._functions:
                made = Traceable(self._model, {n: a.copy() for n, a in static.items()})
                self._functions[key] = (made, self._fused(made))
                if len(self._functions) > _MOST_KEPT:
                    self._functions.popitem(last=False)
            self._functions.move_to_end(key)
            return self._functions[key]

    def __repr__(self) -> str:
        return f"<kfusion.fuse: {self._model.path.name}({', '.join(self.input_names)})>"


def _result(result: Any, outputs: Any) -> np.ndarray:
    """An output: a copy of what is known, or the next array that the kernels made."""
    if isinstance(result, np.ndarray):
        known: np.ndarray = result.copy()
        return known
    array: np.ndarray = next(outputs)
    return array if has_form(result) else of_bits(array, result)


def _as_numpy(array: Any, name: str) -> np.ndarray:
    if isinstance(array, (bool, int, float, np.generic, list, tuple)):
        return np.asarray(array)
    if is_array(array) and hasattr(array, "__array__"):
        made: np.ndarray = np.asarray(array)
        return made
    raise TypeError(f"kfusion.onnx: {name} must be an array, got {type(array).__name__}")


def _require_shape(model: Model, info: Any, array: np.ndarray) -> None:
    dims = model.shape(info)
    if dims is None:
        return
    fits = len(dims) == array.ndim and all(isinstance(d, str) or d == n for d, n in zip(dims, array.shape, strict=True))
    if not fits:
        wanted = ", ".join(str(d or "?") for d in dims)
        raise ValueError(f"kfusion.onnx: {info.name} must have shape ({wanted}), got {array.shape}")
