"""torch's modules: which a function runs, what their tensors are called, and what a trace changed in them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType, MethodType
from typing import Any

from .._graph.appended import Appended

_TENSORS = ("_parameters", "_buffers")
# Attributes of torch's that do not decide what a forward pass computes.
WITHOUT_EFFECT = (
    "_non_persistent_buffers_set",
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_module(value: Any) -> bool:
    """Whether value is a torch module that is ready for use. torch is not imported for that."""
    return is_module_class(type(value)) and "_modules" in vars(value)


def is_module_class(kind: type) -> bool:
    """Whether objects of a class are torch modules."""
    module = getattr(sys.modules.get("torch.nn.modules.module"), "Module", None)
    return module is not None and issubclass(kind, module)


def hooks_of_all() -> tuple[Any, frozenset[str]]:
    """The Python module that has the hooks which torch calls for each module, and their names there."""
    return sys.modules["torch.nn.modules.module"], frozenset(f"_global{name}" for name in _HOOKS)


def unfused(value: Any) -> Any:
    """The module that a fused one was made of; anything else is itself."""
    while getattr(type(value), "__kfusion_fused_module__", False):
        value = value.__wrapped__
    return value


def values(module: Any, without: Sequence[str] = ()) -> Iterator[Any]:
    """What a module's attributes are bound to, but those, and what is held by those that are dicts or lists."""
    for value in (v for name, v in vars(module).items() if name not in without):
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list) and type(value) is not Appended:
            yield from value
        else:
            yield value


def tensors(module: Any, without: Sequence[str] = ()) -> list[Any]:
    """The module's own parameters and buffers, but those in attributes of these names."""
    return [t for kind in _TENSORS if kind not in without for t in vars(module)[kind].values() if t is not None]


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
    """The names of modules, as torch's named_modules() has them."""
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
