"""The function that a command line names: module.py:function or package.module:function."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def load(target: str, who: str) -> Callable[..., Any]:
    """Imports the module, as Python would run it, and finds the function (dots lead into classes).

    Raises:
        ValueError: the target has another form, or there is no such function.
        ImportError: the module cannot be imported; the message has the reason.
    """
    module_name, _, name = target.rpartition(":")
    if not module_name or not name:
        raise ValueError(f"{who}: must be module.py:function, package.module:function or graph.json, got {target!r}")
    module = _import(module_name, who)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{who}: {module_name} has no {name}; it has {_functions(module)}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{who}: {name} in {module_name} must be a function, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def require_arguments(function: Callable[..., Any], arguments: Sequence[Any], who: str) -> None:
    """Raises ValueError where the function does not take this number of arrays."""
    try:
        signature = inspect.signature(function)
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{who}: --shape is needed for each array of {signature}: {error}") from None
    except ValueError:  # a builtin that does not say what it takes
        pass


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


def _functions(module: ModuleType) -> str:
    names = [n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__]
    return ", ".join(names[:20]) or "no functions"
