"""ONNX models as functions of arrays: read, traced operator by operator, planned and run like any other function.

The rest of the package is imported when the first model is read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .function import FusedModel


def is_model(target: Any) -> bool:
    """Whether what is to be planned or fused is the path of a model.

    Raises:
        TypeError: it is a model in memory, which does not know where the data of its weights is.
    """
    if type(target).__name__ == "ModelProto" and type(target).__module__.startswith("onnx"):
        raise TypeError("kfusion.onnx: a model is read from its file: pass the file's path, got a ModelProto")
    return isinstance(target, (str, os.PathLike)) and os.fsdecode(target).endswith(".onnx")


def traced(path: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], trace: Callable[..., Any]) -> Any:
    """The trace of a model for a plan."""
    from . import function

    return function.traced(path, arguments, keywords, trace)


def fused(path: Any, fuse: Callable[[Callable[..., Any]], Any]) -> FusedModel:
    """A model as a function of arrays; `fuse` makes one of a function that is traced."""
    from . import function

    return function.FusedModel(path, fuse)


def called(target: Any, arguments: Any, keywords: Any, fuse: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """The function and the arguments of a call of what may be a model, its path or made of it by `kfusion.fuse`."""
    model = fuse(target) if is_model(target) else target
    module = sys.modules.get(f"{__name__}.function")
    if module is None or not isinstance(model, module.FusedModel):
        return target, arguments, keywords
    fused, given = model.at(*arguments, **keywords)
    return fused, (), given
