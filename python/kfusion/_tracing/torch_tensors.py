"""torch's tensors that a traced function meets as such: those that it makes, and those of outside that it names.

Reading one is reading a constant. What the function writes to one becomes a traced value, which stands for the tensor
from then on: a tensor of its own is a value like any other, and one of outside is written to when the kernels have run.
torch says what happens to tensors through a mode (`torch.overrides.TorchFunctionMode`) while the function is traced.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, NamedTuple

from .._graph.source import trace_error
from .._graph.structure import leaves, walk
from .._graph.tracer import Tracer
from .._graph.values import ReadAsConstant, Traced, has_no_data
from . import user_functions
from .torch_sizes import SizedTensors
from .traced import BINARY

_IN_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_OPERATORS = {"__setitem__", "__imatmul__", *(f"__i{name}__" for name in BINARY)}
_WRITE_NOTHING = ("requires_grad_", "share_memory_", "pin_memory_")
_NO_VIEWS = ("_base", "grad")  # attributes
_VIEWS = ("T", "mT", "H", "mH", "real", "imag")
_COMPUTING = ("getitem", "matmul", "rmatmul", "neg", "abs")  # Python's operators, beside BINARY
_READ_VALUES = (
    *("item", "tolist", "numpy", "equal", "allclose", "is_nonzero"),
    *("__bool__", "__float__", "__int__", "__index__", "__complex__", "__contains__", "__array__"),
)
_OF_KINDS = ("zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty")  # which read no elements
_OF_OTHERS = (
    "as_tensor",
    "asarray",
    "frombuffer",
    "from_dlpack",
    "from_file",
    "from_numpy",
)  # memory of another library
_FILLED = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}


@contextlib.contextmanager
def watched(tracer: Tracer, is_named: Callable[[Any], bool]) -> Iterator[None]:
    """A context in which torch tells of all calls. Nothing where torch is not imported.

    `torch.compiler.is_compiling()` is true in it where the attempt says so: libraries of models then leave out what
    looks at values, such as whether a mask is all true. (The flag is the process's, as it is for torch.export.)

    Args:
        tracer: of the function.
        is_named: whether a tensor is one of outside that the function knows by name.
    """
    overrides = sys.modules.get("torch.overrides")
    if overrides is None:
        yield
        return
    tensors = _Tensors(tracer, is_named)
    compiling = _compiling if tracer.attempt.compiles else contextlib.nullcontext()
    with compiling, _intercepting, _mode(overrides)(tensors):
        yield
    if tensors.error is not None:
        raise tensors.error


class _WhileTracing:
    """A context in which something is so that is the process's. The first of several traces at once sets it by `begin`,
    and the last one calls what that has given.
    """

    def __init__(self, begin: Callable[[], Callable[[], None]]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._traces = 0
        self._end: Callable[[], None] = _nothing
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def __enter__(self) -> None:
        with self._lock:
            if self._traces == 0:
                self._end = self._begin()
            self._traces += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._traces -= 1
            if self._traces == 0:
                self._end()

    def _forget(self) -> None:
        """Forgets them in a forked child, where nobody ends the traces of other threads."""
        if self._traces > 0:
            self._end()
        self._lock, self._traces = threading.Lock(), 0


def _nothing() -> None:
    pass


def _compiles() -> Callable[[], None]:
    compiler = sys.modules.get("torch.compiler")
    before = getattr(compiler, "_is_compiling_flag", None)
    if compiler is None or before is None:  # another thread is importing torch
        return _nothing
    compiler._is_compiling_flag = True  # type: ignore[attr-defined]
    return lambda: setattr(compiler, "_is_compiling_flag", before)


_compiling = _WhileTracing(_compiles)
_intercepting = _WhileTracing(user_functions.intercept)


@functools.cache
def _mode(overrides: Any) -> Any:
    class Mode(overrides.TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, tensors: _Tensors) -> None:
            super().__init__()
            self._tensors = tensors

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self._tensors.call(function, args, kwargs or {})

    return Mode


class _View(NamedTuple):
    """A tensor that shares the memory of another, and how it is made of that."""

    tensor: Any
    base: Any
    of: Callable[[Any], Any]


class _Tensors:
    """What is known of the tensors of one trace. All are kept alive, so that no other gets their ids."""

    def __init__(self, tracer: Tracer, is_named: Callable[[Any], bool]) -> None:
        self._tracer = tracer
        self._is_named = is_named
        self._own: dict[int, tuple[Any, str]] = {}  # by storage: tensors made while tracing, and by which function
        self._views: dict[int, _View] = {}  # by id
        self._values: dict[int, tuple[Any, Traced]] = {}  # by id: those that were written to, and what is in them
        self._written: set[int] = set()  # their storages
        self._read: set[int] = set()  # storages of outside that functions have computed with at once
        self.error: TypeError | None = None  # of a write
        self._sized = None if tracer.recorded is None else SizedTensors(tracer, tracer.recorded, is_named)
        self._without_data: dict[int, Any] = {}  # by id: those that the function made so
        tracer.stand_in, tracer.to_write, tracer.is_made = self.value, self.value_to_write, self.is_own
        if tracer.plans:
            tracer.without_data = lambda tensor: id(tensor) in self._without_data or is_named(tensor)
        for tensor in tracer.attempt.changed:
            self._adopt(tensor, tracer.writable(tensor))

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function gives, where tensors that were written to are the values that stand for them."""
        name = getattr(function, "__name__", "")
        if _is_transformed(args, kwargs):
            what = "torch.func's grad, vmap and others do not see into traced functions"
            hint = "take kfusion.grad or vjp inside, or kfusion.call(torch.func.vmap(f), x, result=...)"
            raise trace_error(what, hint)
        args, kwargs = self._with_values(name, args, kwargs)
        if self._tracer.differentiates and not self._tracer.is_trying and _computes(function, name):
            args, kwargs = walk((args, kwargs), self._differentiated)
        takes_any = self._tracer.plans and not self._tracer.is_trying  # also tensors without data
        if takes_any and _computes(function, name):
            args, kwargs = walk((args, kwargs), self._given_data)
        is_traced = any(hasattr(type(v), "__kfusion_traced__") for v in leaves((args, kwargs)))
        targets = [t for t in _targets(name, args, kwargs) if _is_tensor(t)]
        if not is_traced:
            targets += filter(_is_tensor, _targets_of_operator(function, args, kwargs))
        if self._sized is not None and not is_traced:
            result = self._sized.call(function, args, kwargs, targets)
            if result is not NotImplemented:
                self._remember(function, name, args, kwargs, result)
                return result
        if targets:
            result = self._written_to(targets, is_traced, function, name, args, kwargs)
        else:
            result = _applied(function, name, args, kwargs)
        if is_traced:
            self._computed_with(filter(self._may_be_a_number, leaves((args, kwargs))))
        else:
            if takes_any and all(map(self._tracer.without_data, filter(_has_no_data, leaves((args, kwargs))))):
                self._without_data |= {id(v): v for v in leaves(result) if _has_no_data(v)}
            self._remember(function, name, args, kwargs, result)
            if self._sized is not None:
                self._sized.keep(result)
        return result

    def _differentiated(self, _: str, leaf: Any) -> Any:
        """A traced value for a tensor that requires grad, so that gradients pass through what is made of it."""
        return self._tracer.lift(leaf, "torch") if _is_tensor(leaf) and leaf.requires_grad else leaf

    def _given_data(self, _: str, leaf: Any) -> Any:
        """A traced value for a tensor without data, with which torch cannot compute."""
        is_input = _has_no_data(leaf) and self._tracer.without_data(leaf)
        return self._tracer.lift(leaf, "torch") if is_input else leaf

    def _written_to(self, targets: list[Any], is_traced: bool, function: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Does what `call` does, for a function that writes to tensors. torch's x += y takes a TypeError for a reason
        to compute x = x + y: so it is kept.
        """
        try:
            for target in targets:
                self._write(target, is_traced)
            return _applied(function, name, *self._with_values(name, args, kwargs))
        except TypeError as error:
            self.error = self.error or error
            raise

    def value(self, tensor: Any) -> Traced | None:
        """What stands for a tensor that was written to, or shares memory with one; None for any other.

        Raises:
            TraceError: it shares memory with one, and nobody knows how.
        """
        if id(tensor) in self._values:
            return self._values[id(tensor)][1]
        if not self._written or not _is_tensor(tensor) or _storage(tensor) not in self._written:
            return None
        if id(tensor) not in self._views:
            what = "this tensor shares memory with one that the function has written to"
            raise trace_error(what, "write the slice of that tensor in its place")
        view = self._views[id(tensor)]
        made = view.of(self.value(view.base))
        self._values[id(tensor)] = tensor, made
        return made  # type: ignore[no-any-return]

    def is_own(self, tensor: Any) -> bool:
        """Whether a tensor was made while tracing: eager torch would make it anew in each call."""
        return _is_tensor(tensor) and not _has_no_data(tensor) and _storage(tensor) in self._own

    def value_to_write(self, tensor: Any) -> Any:
        """What stands for a tensor to which a traced value is about to be written."""
        if _is_tensor(tensor) and self.value(tensor) is None:
            try:
                self._write(tensor, True)
            except TypeError as error:
                self.error = self.error or error
                raise
        return self.value(tensor) if _is_tensor(tensor) else tensor

    def _with_values(self, name: str, args: Any, kwargs: Any) -> Any:
        if not self._values:
            return args, kwargs
        found = walk((args, kwargs), lambda _, leaf: leaf if (v := self.value(leaf)) is None else v)
        if name == "is_neg" and isinstance(found[0][0], Traced):  # which kfusion asks of tensors that it computes with
            what = "a function that computes at once gets a tensor that the traced function has written to"
            raise trace_error(what, "call torch's function instead")
        return found

    def _write(self, tensor: Any, is_traced: bool) -> None:
        """Before a call that writes to a tensor: finds out whose it is. `is_traced`: it writes a traced value."""
        base = tensor
        while id(base) in self._views:
            base = self._views[id(base)].base
        storage = _storage(base)
        if storage in self._own:
            if is_traced:
                self._adopt(base, self._constant(base, *self._own[storage]))
            else:
                self._tracer.release_captured(lambda array: _is_tensor(array) and _storage(array) == storage)
        elif self._is_named(base):
            captured = (i.array for i in self._tracer.inputs if i.captured and i.array is not base)
            if storage in self._read or any(_is_tensor(a) and _storage(a) == storage for a in captured):
                raise ReadAsConstant(base)
            self._adopt(base, self._tracer.writable(base))
        elif is_traced:
            what = "a traced value is written to a tensor that is no argument, and that the function does not name"
            raise trace_error(what, "pass the tensor as an argument")

    def _adopt(self, base: Any, value: Traced) -> None:
        self._values[id(base)] = base, value
        self._written.add(_storage(base))

    def _constant(self, tensor: Any, first: Any, made_by: str) -> Traced:
        """A tensor of the function's own as a value: what was written to it so far is in it."""
        tracer = self._tracer
        shape, strides = tensor.shape, tensor.stride()
        if tracer.recorded is not None:
            shape, strides = tracer.recorded.extents(tensor)
        if tensor is first and made_by in _FILLED and tensor._version == 0:
            dtype = str(tensor.dtype).removeprefix("torch.")
            scalar = tracer.add("cast", tracer.lift(_FILLED[made_by], "torch"), dtype)
            value = tracer.of_library(tracer.view("broadcast", scalar, list(shape)), "torch")
        else:
            value = tracer.copy(tracer.lift(tensor, "torch"))
        value._memory.strides = list(strides)
        return value

    def _remember(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """New tensors among the results, and views of tensors that were given."""
        if name == "__get__" and function.__self__.__name__ in _NO_VIEWS:
            return
        if name in _READ_VALUES or any(map(self._is_computed, _targets(name, args, kwargs))):
            self._computed_with(leaves((args, kwargs)))
        results = enumerate(result) if isinstance(result, (tuple, list)) else [(None, result)]
        for i, tensor in results:
            if not _is_tensor(tensor):
                continue
            storage = _storage(tensor)
            base = next((v for v in leaves((args, kwargs)) if _is_tensor(v) and _storage(v) == storage), None)
            if base is not None:
                if base is not tensor and tensor is not self._own.get(storage, (None,))[0]:
                    of = functools.partial(_again, function, name, args, kwargs, base, i)
                    self._views.setdefault(id(tensor), _View(tensor, base, of))
                continue
            if name not in _OF_KINDS:
                self._computed_with(leaves((args, kwargs)))
            if _is_function_of_torch(function) and name not in _OF_OTHERS:  # else it may be anybody's
                self._own.setdefault(storage, (tensor, name))

    def _may_be_a_number(self, value: Any) -> bool:
        """Whether a value, among the arguments of a call with traced ones, is a tensor that it may have taken for a
        number or sizes: it is no operand.
        """
        is_alone = _is_tensor(value) and not self._tracer.is_captured(value)
        return is_alone and (value.numel() == 1 or not value.is_floating_point())

    def _is_computed(self, tensor: Any) -> bool:
        """Whether a tensor is the function's own and holds what torch has computed, no traced value."""
        return _is_tensor(tensor) and _storage(tensor) in self._own.keys() - self._written

    def _computed_with(self, values: Iterable[Any]) -> None:
        """The elements of the tensors among these values decide what the trace gives."""
        for tensor in filter(_is_tensor, values):
            if (storage := _storage(tensor)) in self._own:
                continue
            self._read.add(storage)
            base = tensor
            while id(base) in self._views:
                base = self._views[id(base)].base
            if self._is_named(base):
                self._tracer.looked_at[id(tensor)] = base, tensor


def _is_transformed(args: Any, kwargs: Any) -> bool:
    """Whether a transform of torch.func's has taken a traced value for a tensor."""
    functorch = sys.modules["torch"]._C._functorch
    if functorch.peek_interpreter_stack() is None:
        return False
    wrapped = (v for v in leaves((args, kwargs)) if isinstance(v, sys.modules["torch"].Tensor))
    return any(isinstance(_innermost(functorch, v), Traced) for v in wrapped)


def _innermost(functorch: Any, tensor: Any) -> Any:
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _is_function_of_torch(function: Any) -> bool:
    return isinstance(function, _IN_C) or getattr(function, "namespace", "") in ("aten", "prims")


def _again(function: Any, name: str, args: Any, kwargs: Any, base: Any, i: int | None, value: Traced) -> Any:
    """The call with a value in the place of a tensor: its result, or that of number i."""
    args, kwargs = walk((args, kwargs), lambda _, leaf: value if leaf is base else leaf)
    found = _applied(function, name, args, kwargs)
    return found if i is None else found[i]


def _applied(function: Any, name: str, args: Any, kwargs: Any) -> Any:
    """What the function gives. Python's operators and attributes of a traced value are its own."""
    if not name.startswith("__") or not args or not isinstance(args[0], Traced):
        return function(*args, **kwargs)
    if name in ("__get__", "__set__"):
        return (getattr if name == "__get__" else setattr)(args[0], function.__self__.__name__, *args[1:])
    return getattr(args[0], name)(*args[1:], **kwargs)


def _computes(function: Any, name: str) -> bool:
    """Whether a call may give what gradients pass through."""
    if name == "__get__":
        return function.__self__.__name__ in _VIEWS
    if name.startswith("__"):
        return name.strip("_") in _COMPUTING or name.strip("_").removeprefix("r") in BINARY
    return name not in _READ_VALUES and name != "requires_grad_"


def _targets(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """What a call writes to."""
    is_named = name.endswith("_") and not name.endswith("__") and name not in _WRITE_NOTHING
    if is_named or name in _OPERATORS or kwargs.get("inplace") is True:
        yield from leaves(args[0] if args else kwargs.get("input"))
    yield from leaves(kwargs.get("out"))


def _targets_of_operator(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """What an operator of torch.ops writes to, as its schema says."""
    schema = getattr(function, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from leaves(args[position] if position < len(args) else kwargs.get(argument.name))


def _has_no_data(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor) and not isinstance(value, Traced) and has_no_data(value)


def _is_tensor(value: Any) -> bool:
    """Whether value is a tensor with data in memory."""
    tensor = sys.modules["torch"].Tensor
    return isinstance(value, tensor) and not isinstance(value, Traced) and _storage(value) != 0


def _storage(tensor: Any) -> int:
    """A number of the memory that a tensor shares with its views; 0 where there is none."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():  # the mode would be asked again
        if tensor.is_meta or tensor.layout is not torch.strided:
            return 0
        try:
            return int(tensor.untyped_storage()._cdata)
        except NotImplementedError:  # of a tensor within torch.vmap
            return 0
