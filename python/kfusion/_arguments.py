"""What is wrong with the arguments of a function in C++, in the words of all other messages."""

from __future__ import annotations

import collections.abc
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

# What a parameter takes, what a message calls it, and whether a value is such a thing.
_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    typing.SupportsInt: ("an integer", lambda v: hasattr(v, "__index__") and not isinstance(v, float)),
    typing.SupportsFloat: ("a number", lambda v: hasattr(v, "__float__") or hasattr(v, "__index__")),
    Sequence: ("a sequence", lambda v: isinstance(v, Sequence) and not isinstance(v, str)),
    Callable: ("a function", callable),
    str: ("a str", lambda v: isinstance(v, str)),
    bool: ("a bool", lambda v: isinstance(v, bool)),
    dict: ("a dict", lambda v: isinstance(v, dict)),
    bytes: ("bytes", lambda v: isinstance(v, bytes)),
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
        first, *others = _types(bound.signature.parameters[name].annotation)
        kind, fits = _KINDS.get(first, ("", lambda v: True))
        if not fits(value) and not (value is None and type(None) in others):
            return f"{name} must be {kind}, got {type(value).__name__}"
    for name, value in bound.arguments.items():
        if hasattr(value, "__index__") and not -(2**31) <= operator.index(value) < 2**31:
            return f"{name} is out of range: {value}"
    came = ", ".join(f"{name}: {type(value).__name__}" for name, value in bound.arguments.items())
    return f"arguments must be as help() says, got {came}"


def _types(annotation: str) -> list[Any]:
    """The alternatives of an annotation as pybind11 writes it; a type of ours is object."""
    try:
        hint = eval(annotation, {"typing": typing, "collections": collections})
    except (NameError, AttributeError):
        return [object]
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [typing.get_origin(t) or t for t in (typing.get_args(hint) if is_union else (hint,))]


def _parameters(written: str) -> list[inspect.Parameter]:
    """The parameters of "x: object, weight: object = None, *, eps: object = 1e-05"."""
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
    """Splits at the commas that stand in no brackets."""
    parts, depth = [""], 0
    for letter in written:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part]
