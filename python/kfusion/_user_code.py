"""The function that a command line names: module.py:function or package.module:function."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

FUNCTION = "module.py:function or package.module:function"


def load(target: str, who: str) -> Callable[..., Any]:
    """Imports the module, as Python would run it, and finds the function (dots lead into classes).

    A class of torch modules that needs no arguments gives a module.

    Raises:
        ValueError: the target has another form, there is no such function, or it is another class.
        ImportError: the module cannot be imported; the message has the reason.
    """
    module_name, _, name = target.rpartition(":")
    if not module_name or not name:
        raise ValueError(f"{who}: FUNCTION must be {FUNCTION}, got {target!r}")
    module = _import(module_name, who)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{who}: {module_name} has no {name}; {_known(name, module)}")
        found = getattr(found, part)
    if inspect.isclass(found):
        return _instance(found, module_name, name, who)
    if not callable(found):
        raise ValueError(f"{who}: {name} in {module_name} must be a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def require_arguments(function: Callable[..., Any], arguments: Sequence[Any], who: str) -> None:
    """Raises ValueError where the function does not take this number of arrays."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that does not say what it takes
        return
    most = _most_arrays(function, signature)
    if most is not None and len(arguments) > most:
        name = getattr(function, "__name__", type(function).__name__)
        count = "1 array" if most == 1 else f"{most} arrays"
        raise ValueError(f"{who}: {name} takes {count}, got {len(arguments)} --shape")
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{who}: --shape is needed for each array of {signature}: {error}") from None


def _most_arrays(function: Callable[..., Any], signature: inspect.Signature) -> int | None:
    """How many arrays fit its parameters; None if any number does."""
    parameters = signature.parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if (getattr(function, "__module__", None) or "").partition(".")[0] == __package__:  # an axis is no array
        positional = [p for p in positional if p.default in (p.empty, None)]
    return len(positional)


def _import(name: str, who: str) -> ModuleType:
    is_file = name.endswith(".py")
    if is_file and not os.path.isfile(name):
        raise FileNotFoundError(f"{who}: there is no file {name}")
    folder = str(Path(name).resolve().parent) if is_file else os.getcwd()
    sys.path.insert(0, folder)
    try:
        return _import_file(Path(name)) if is_file else importlib.import_module(name)
    except Exception as error:
        raise ImportError(f"{who}: {name} cannot be imported: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    name = path.stem if path.stem not in sys.modules else f"_kfusion_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _instance(found: type, module_name: str, name: str, who: str) -> Callable[..., Any]:
    """A torch module of a class that can be made of nothing."""
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(found, torch.nn.Module):
        empty = inspect.Parameter.empty
        parameters = inspect.signature(found).parameters.values()
        if not any(p.default is empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            return found()  # type: ignore[no-any-return]
    raise ValueError(
        f"{who}: {name} is a class: write `model = {name}(...)` in {module_name} and name {module_name}:model"
    )


def _known(name: str, module: ModuleType) -> str:
    """What may be meant by a name that the module does not have."""
    names = [n for n, value in vars(module).items() if not n.startswith("_") and _is_own(value, module)]
    close = difflib.get_close_matches(name, names, n=1)
    listed = ", ".join(names[:20]) or "no functions"
    return f"it has {listed}" + (f"; did you mean {close[0]}?" if close else "")


def _is_own(value: Any, module: ModuleType) -> bool:
    """Whether it is a function or class of the module, a torch module or a fused function."""
    if inspect.isfunction(value) or inspect.isclass(value):
        return bool(value.__module__ == module.__name__)
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(value, torch.nn.Module)
    return is_module or (callable(value) and type(value).__module__.partition(".")[0] == __package__)
