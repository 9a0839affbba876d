"""torch's modules: which a function runs, what their tensors are called, and what a trace changed in them."""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType, MethodType
from typing import Any

from . import sizes
from .source import trace_error

_TENSORS = ("_parameters", "_buffers")
# Attributes of torch's that do not decide what a forward pass computes.
WITHOUT_EFFECT = (
    *("_non_persistent_buffers_set", "_backward_pre_hooks", "_backward_hooks", "_is_full_backward_hook"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_OF_TORCH = frozenset({"training", "_modules", *_TENSORS})  # attributes that are looked at whoever sets them


def is_module(value: Any) -> bool:
    """Whether value is a torch module that is ready for use. torch is not imported for that."""
    return is_module_class(type(value)) and "_modules" in vars(value)


def is_module_class(kind: type) -> bool:
    """Whether objects of a class are torch modules."""
    module = getattr(sys.modules.get("torch.nn.modules.module"), "Module", None)
    return module is not None and issubclass(kind, module)


def unfused(value: Any) -> Any:
    """The module that a fused one was made of; anything else is itself."""
    while getattr(type(value), "__kfusion_fused_module__", False):
        value = value.__wrapped__
    return value


def children(module: Any) -> list[Any]:
    """The modules that a module has by name."""
    return [child for child in vars(module)["_modules"].values() if is_module(child)]


def contents(module: Any) -> dict[str, Any]:
    """The module's own attributes, with copies of those that are dicts or lists."""
    return {name: _copied(value) for name, value in vars(module).items()}


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value


def values(module: Any) -> Iterator[Any]:
    """What a module's attributes are bound to, and what those hold that are dicts or lists."""
    for value in vars(module).values():
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list):
            yield from value
        else:
            yield value


def tensors(module: Any) -> list[Any]:
    """The module's own parameters and buffers."""
    return [t for kind in _TENSORS for t in vars(module)[kind].values() if t is not None]


# ---- names ----


def tensor_names(roots: Iterable[tuple[str, Any]]) -> dict[int, tuple[str, Any]]:
    """Names of parameters and buffers, as torch's named_parameters() has them, by id; the tensors keep those valid.

    Args:
        roots: modules, each with what its tensors' names begin with. A tensor has the first name that is met.
    """
    names: dict[int, tuple[str, Any]] = {}
    for prefix, root in roots:
        for path, module in _named_modules(prefix, unfused(root), set()):
            for kind in _TENSORS:
                for name, tensor in vars(module)[kind].items():
                    if tensor is not None:
                        names.setdefault(id(tensor), (f"{path}.{name}" if path else name, tensor))
    return names


def module_names(roots: Iterable[tuple[str, Any]]) -> dict[int, tuple[str, Any]]:
    """Likewise of modules, as torch's named_modules() has them."""
    names: dict[int, tuple[str, Any]] = {}
    for prefix, root in roots:
        for path, module in _named_modules(prefix, unfused(root), set()):
            names.setdefault(id(module), (path, module))
    return names


def running(names: Mapping[int, tuple[str, Any]]) -> str:
    """The name of the innermost module whose forward pass this thread is in; "" where none of them is."""
    call = sys.modules["torch.nn.modules.module"].Module._call_impl.__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is call and (known := names.get(id(frame.f_locals["self"]))) is not None:
            return known[0]
        frame = frame.f_back
    return ""


def _named_modules(path: str, module: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in vars(module)["_modules"].items():
        if is_module(child):
            yield from _named_modules(f"{path}.{name}" if path else name, child, seen)


def roots_of(function: Any, named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A function that is a module, wraps one or is a method of one, and the modules among named values."""
    own = function.__self__ if isinstance(function, MethodType) else function
    while not is_module(own) and hasattr(own, "__wrapped__"):
        own = own.__wrapped__
    if is_module(own):
        yield "", own
    for name, value in named.items():
        if is_module(value):
            yield ("" if name == "self" else name), value


# ---- modes ----


def modes(modules: Iterable[Any]) -> list[tuple[Any, bool]]:
    """The modules (None: one that is gone), and whether they train."""
    return [(module, module.training) for module in modules if module is not None]


@contextlib.contextmanager
def in_modes(modes: Sequence[tuple[Any, bool]]) -> Iterator[None]:
    """Modules have the modes that they had, which decide what is computed again."""
    changed = [(module, module.training) for module, was in modes if module.training != was]
    for module, now in changed:
        module.training = not now
    try:
        yield
    finally:
        for module, now in changed:
            module.training = now


# ---- what a trace changes ----


class Effects:
    """What traces of a function set in modules. An attribute that two traces set is an effect, not what they depend on:
    a counter, the last result. One that only the first sets is a cache.
    """

    def __init__(self) -> None:
        self._once: set[str] = set()
        self.names: frozenset[str] = frozenset()

    def watched(
        self,
        function: str,
        modules: Iterable[Any],
        trace: Callable[[], Any],
        recorded: sizes.RecordedGraph | None = None,
    ) -> Any:
        """What `trace()` returns.

        Raises:
            TraceError: a parameter or buffer was set to a value of the trace, which no later call could use.
            NotTheSame: an attribute was set to a size, or to a tensor that is made of sizes.
        """
        before = [(module, contents(module)) for module in modules]
        try:
            traced = trace()
        finally:
            set_to_traced = [_restored(module, was) for module, was in before]
            set_to_sizes = [_without_sizes(vars(module), recorded) for module, _ in before]
        if any(set_to_sizes):
            raise sizes.NotTheSame
        for name in filter(None, set_to_traced):
            what = f"{function} sets a module's {name} to what it computes, and kernels write results only"
            raise trace_error(what, "return it, and set it outside", "")
        changed = {name for module, was in before for name in _changed(was, contents(module))} - _OF_TORCH
        self.names |= changed & self._once
        self._once |= changed
        return traced


def _restored(module: Any, before: Mapping[str, Any]) -> str:
    """Puts tensors back that a trace replaced by its own values; the name of one, or ""."""
    found = ""
    for kind in _TENSORS:
        for name, tensor in list(vars(module)[kind].items()):
            if hasattr(type(tensor), "__kfusion_traced__"):
                is_itself = tensor._tracer.stand_in(before[kind].get(name)) is tensor  # self.count += 1
                found = found if is_itself else name
                del vars(module)[kind][name]
                vars(module)[kind].update({name: before[kind][name]} if name in before[kind] else {})
    return found


def _without_sizes(held: Any, recorded: sizes.RecordedGraph | None) -> bool:
    """Makes sizes ints again, within dicts and lists too; whether there were any, or tensors that are made of some."""
    found = False
    for key, item in list(held.items() if isinstance(held, dict) else enumerate(held)):
        if sizes.is_size(item):
            held[key] = sizes.value(item, 0)
        elif type(item) in (dict, list):
            found = _without_sizes(item, recorded) or found
            continue
        found = found or item is not held[key] or (recorded is not None and recorded.is_made_of_sizes(item))
    return found


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in before.keys() | after.keys():
        if name not in before or name not in after or not _same(before[name], after[name]):
            yield name


def _same(x: Any, y: Any) -> bool:
    if type(x) is not type(y) or not isinstance(x, (dict, list)):
        return x is y
    if isinstance(x, dict):
        return list(x) == list(y) and all(x[key] is y[key] for key in x)
    return len(x) == len(y) and all(map(operator.is_, x, y))
