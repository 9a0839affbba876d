"""A fused function that is looked up on an instance."""

from __future__ import annotations

import inspect
from typing import Any


class FusedMethod:
    """A fused function as a method of one instance, which goes before the arguments."""

    def __init__(self, function: Any, instance: Any) -> None:
        self.__func__ = function
        self.__self__ = instance
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    @property
    def unfused(self) -> FusedMethod:
        """`FusedFunction.unfused`."""
        return FusedMethod(self.__func__.unfused, self.__self__)

    def plan(self, *args: Any, **kwargs: Any) -> Any:
        """`FusedFunction.plan`."""
        return self.__func__.plan(self.__self__, *args, **kwargs)

    def source(self, *args: Any, **kwargs: Any) -> Any:
        """`FusedFunction.source`."""
        return self.__func__.source(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("__func__", "__deepcopy__"):  # not set yet; the method is copied, not its function
            raise AttributeError(name)
        value = getattr(self.__func__, name)
        return _without_first(value) if name == "__signature__" else value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FusedMethod):
            return NotImplemented
        return self.__self__ is other.__self__ and self.__func__ is other.__func__

    def __hash__(self) -> int:
        return hash((id(self.__self__), self.__func__))

    def __reduce__(self) -> Any:
        return FusedMethod, (self.__func__, self.__self__)

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r} of {self.__self__!r}>"


def _without_first(signature: inspect.Signature) -> inspect.Signature:
    """The signature of a bound method: the instance is given (by a name of its own, or as the first of *args)."""
    first, *rest = signature.parameters.values()
    return signature if first.kind is first.VAR_POSITIONAL else signature.replace(parameters=rest)
