"""`kfusion.fuse` of a torch module: a module that is the same in everything but how it runs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from ._environment.modules import unfused


def fused_module(module: Any, fused: Callable[[Any], Any]) -> Any:
    """A module of a subclass of the module's own class. Both have one `__dict__`: parameters, buffers, submodules and
    the mode are the same ones, by the same names, whichever of the two sets them.

    Args:
        module: a torch module, fused or not.
        fused: makes a `FusedFunction` of a plain module.
    """
    module = unfused(module)
    kind: Any = type(module)
    kind = _class_of(kind)
    made = object.__new__(kind)  # torch.fx's modules make a class of their own in __new__
    for name, value in {"__dict__": vars(module), "__wrapped__": module, "fused_function": fused(module)}.items():
        object.__setattr__(made, name, value)
    return made


@functools.lru_cache(maxsize=256)
def _class_of(kind: Any) -> Any:
    class Fused(kind):  # type: ignore[misc]
        """The class of a fused module."""

        __slots__ = ("__wrapped__", "fused_function")
        __kfusion_fused_module__ = True
        __doc__ = kind.__doc__

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.fused_function(*args, **kwargs)

        @functools.wraps(kind.forward)
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.fused_function(*args, **kwargs)

        def __repr__(self) -> str:
            return f"<kfusion.fuse: {self.__wrapped__!r}>"

        def __reduce_ex__(self, protocol: Any) -> Any:
            return fused_module, (self.__wrapped__, _maker(self.fused_function))

        def __copy__(self) -> Any:
            return fused_module(copy.copy(self.__wrapped__), _maker(self.fused_function))

        def __deepcopy__(self, memo: Any) -> Any:
            return fused_module(copy.deepcopy(self.__wrapped__, memo), _maker(self.fused_function))

    for name in ("plan", "source", "unfused", "clear"):
        setattr(Fused, name, property(functools.partial(_of_function, name)))
    Fused.__name__, Fused.__qualname__, Fused.__module__ = kind.__name__, f"fused.{kind.__qualname__}", kind.__module__
    return Fused


def _of_function(name: str, module: Any) -> Any:
    return getattr(module.fused_function, name)


def _maker(function: Any) -> Callable[[Any], Any]:
    """What makes a fused function as this one of another module."""
    kind: Any = type(function)
    return functools.partial(kind, options=function._options)
