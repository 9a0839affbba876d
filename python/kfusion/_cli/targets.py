"""What a command's FUNCTION may be besides a function of a file: a kernel by its name, with shapes of its own."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from .. import _named, _user_code

Shape = tuple[tuple[int | str, ...], str | None]

_MATRIX: Shape = ((4096, 1024), None)
_ROW: Shape = ((1024,), None)
_CHANNELS: Shape = ((64,), None)
_VOCABULARY = 32000

# These are the arguments without defaults; those of a norm's weights are left out.
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


HELP = (
    f"{_user_code.FUNCTION}, whose file is executed, also of a torch module; or a named kernel (softmax, layernorm, "
    "...)"
)
READ = "graph.json or model.onnx, which are only read"  # what `kfusion plan` takes besides


def load(text: str, given: list[Any], who: str) -> tuple[Callable[..., Any], list[Any]]:
    """A function, and the shapes given for it: a named kernel has some by default.

    Raises:
        ValueError: there is none of that name.
        ImportError: its module cannot be imported.
    """
    if ":" in text:
        return _user_code.load(text, who), given
    return named(text, who), given or list(_shapes(text))


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
    raise ValueError(f"{who}: FUNCTION must be {_user_code.FUNCTION}, or a named kernel, got {text!r}; {known}")


def _shapes(name: str) -> tuple[Shape, ...]:
    """The shapes, with the dtypes of those that are no floats, of which a named kernel is planned by default."""
    return _SHAPES.get(name, (_MATRIX,))
