"""What a command's FUNCTION may be besides a function of a file: a kernel by its name, with shapes of its own."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from .. import _named

Shape = tuple[tuple[int | str, ...], str | None]

_MATRIX: Shape = ((4096, 1024), None)
_ROW: Shape = ((1024,), None)
_CHANNELS: Shape = ((64,), None)
_VOCABULARY = 32000

# Of arguments without defaults; those of a norm's weights are left out.
_SHAPES: dict[str, tuple[Shape, ...]] = {
    "batchnorm": (((32, 64, 56, 56), None), _CHANNELS, _CHANNELS),
    "bias_relu_log": (_MATRIX, _ROW),
    "mul_add_relu": (_MATRIX, _ROW, _ROW),
    "mse": (_MATRIX, _MATRIX),
    "cross_entropy": (((4096, _VOCABULARY), None), ((4096,), "int64")),
    "linear_cross_entropy": (_MATRIX, ((_VOCABULARY, 1024), None), ((4096,), "int64")),
    "add_layernorm": (_MATRIX, _MATRIX),
    "add_rmsnorm": (_MATRIX, _MATRIX),
}


def named(text: str, who: str) -> Callable[..., Any]:
    """The function of a named kernel.

    Raises:
        ValueError: there is none of that name; the message has those whose names are nearest, or all.
    """
    functions = {f.__name__: f for f in _named.KERNELS}
    if text in functions:
        return functions[text]
    close = difflib.get_close_matches(text, functions, n=3, cutoff=0.5)
    known = f"did you mean {' or '.join(close)}?" if close else f"the named ones are {', '.join(functions)}"
    raise ValueError(
        f"{who}: FUNCTION must be module.py:function, package.module:function or graph.json, got {text!r}, which is no "
        f"named kernel either; {known}"
    )


def shapes(name: str) -> tuple[Shape, ...]:
    """The shapes, with the dtypes of those that are no floats, of which a named kernel is planned by default."""
    return _SHAPES.get(name, (_MATRIX,))
