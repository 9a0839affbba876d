"""What is wrong with the arguments of a function in C++, in the words of all other messages."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Sequence
from typing import Any

# How pybind11 writes what a parameter takes, what a message calls it, and whether a value is such a thing.
_KINDS: dict[str, tuple[str, Any]] = {
    "typing.SupportsInt": ("an integer", lambda v: hasattr(v, "__index__") and not isinstance(v, float)),
    "typing.SupportsFloat": ("a number", lambda v: hasattr(v, "__float__") or hasattr(v, "__index__")),
    "collections.abc.Sequence": ("a sequence", lambda v: isinstance(v, Sequence) and not isinstance(v, str)),
    "collections.abc.Callable": ("a function", callable),
    "str": ("a str", lambda v: isinstance(v, str)),
    "bool": ("a bool", lambda v: isinstance(v, bool)),
    "dict": ("a dict", lambda v: isinstance(v, dict)),
    "bytes": ("bytes", lambda v: isinstance(v, bytes)),
}
_MESSAGE = re.compile(
    r"(\w+)\(\): incompatible (?:function|constructor) arguments\..*?\n +1\. ([\w.]*)\((.*?)\)(?: ->.*?)?\n"
)


def reworded(text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The message for `text`, which pybind11 says; None for what others say."""
    found = re.match(_MESSAGE, text + "\n")
    if found is None:
        return None
    name, made, written = found.groups()
    parameters = _parameters(written)
    if name == "__init__":
        name, args = made, args[1:]
        parameters = [p for p in parameters if p.name != "self"]
    elif parameters and parameters[0].name == "self":
        name = f"{parameters[0].annotation}.{name}"
        args, parameters = args[1:], parameters[1:]
    who = "kfusion." + name.removeprefix("kfusion._core.").removeprefix("kfusion.")
    try:
        bound = inspect.Signature(parameters).bind(*args, **kwargs)
    except TypeError as error:
        return f"{who}: {error}"
    return f"{who}: {_wrong(bound)}"


def _wrong(bound: inspect.BoundArguments) -> str:
    for name, value in bound.arguments.items():
        annotation = bound.signature.parameters[name].annotation
        for written, (kind, fits) in _KINDS.items():
            if annotation.startswith(written) and not fits(value) and not (value is None and "None" in annotation):
                return f"{name} must be {kind}, got {type(value).__name__}"
    for name, value in bound.arguments.items():
        if hasattr(value, "__index__") and not -(2**31) <= operator.index(value) < 2**31:
            return f"{name} is out of range: {value}"
    came = ", ".join(f"{name}: {type(value).__name__}" for name, value in bound.arguments.items())
    return f"arguments must be as help() says, got {came}"


def _parameters(written: str) -> list[inspect.Parameter]:
    """Of "x: object, weight: object = None, *, eps: object = 1e-05"."""
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = []
    for part in _split(written):
        if part == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
            continue
        name, _, rest = part.partition(": ")
        annotation, has_default, _ = rest.partition(" = ")
        default = None if has_default else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation))
    return parameters


def _split(written: str) -> list[str]:
    """At the commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in written:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part]
