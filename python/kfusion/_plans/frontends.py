"""What is planned and fused: a function of arrays, or in its place a graph, the path of an ONNX model, a program of
torch.export."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .. import _onnx
from .._core import Graph
from .._tracing import exported, through_jax
from .._tracing import trace as _trace
from . import sizes as _sizes


class Frontend:
    """A function or a torch module."""

    without_gradients = ""  # what it is, where it has none

    def __init__(self, given: Any) -> None:
        self.given = given

    def filled(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], sizes: Mapping[str, int], who: str = "kfusion.plan"
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with numbers for named sizes."""
        return _sizes.filled(self.given, arguments, keywords, sizes, who)

    def traced(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[str, Graph, tuple[str, ...]]:
        """The name, graph and modules by stage of what is to be planned."""
        function = self.given
        if isinstance(inner := getattr(function, "__wrapped__", None), through_jax.Differentiates):
            function = inner  # so that JAX traces what is differentiated, and the gradients are ours
        traced = through_jax.attempted(
            function, (arguments, keywords), lambda f: _trace.trace(f, *arguments, **keywords)
        )
        return traced.name, traced.graph, traced.modules

    def fused(self, fuse: Callable[[Any], Any]) -> Any:
        """What `fuse` makes of it as a function or a module."""
        return fuse(self.given)


class _Graph(Frontend):
    def traced(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[str, Graph, tuple[str, ...]]:
        if arguments or keywords:
            raise TypeError("kfusion.plan: a Graph has its inputs and takes no arguments")
        return "", self.given, ()


class _OnnxModel(Frontend):
    without_gradients = "an ONNX model"

    def filled(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], sizes: Mapping[str, int], who: str = "kfusion.plan"
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its own symbols have sizes."""
        return arguments, keywords | {"sizes": sizes}

    def traced(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[str, Graph, tuple[str, ...]]:
        made = _onnx.traced(self.given, arguments, keywords, _trace.trace)
        return made.name, made.graph, made.modules

    def fused(self, fuse: Callable[[Any], Any]) -> Any:
        return _onnx.fused(self.given, fuse)


class _Exported(Frontend):
    def traced(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[str, Graph, tuple[str, ...]]:
        program = exported.Program(self.given)
        inputs, held = program.specs()
        return Frontend(program).traced(arguments or inputs, held | keywords)

    def fused(self, fuse: Callable[[Any], Any]) -> Any:
        return fuse(self.given.module())


def frontend_of(given: Any) -> Frontend:
    """By the kind of what is given.

    Raises:
        TypeError: it is an ONNX model in memory.
    """
    if _onnx.is_model(given):
        return _OnnxModel(given)
    if isinstance(given, Graph):
        return _Graph(given)
    return (_Exported if exported.is_program(given) else Frontend)(given)
