"""LLVM, through llvmlite: from a CPU kernel's text to its object code. Nothing else of kfusion imports llvmlite."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SHOWN_LINES = 20  # of a text that does not compile

# llvmlite has a lock of its own around each call of LLVM. A child forked while another thread has it would wait for
# ever, so a fork waits for this one, which all compilation takes.
_turn = threading.RLock()
os.register_at_fork(before=_turn.acquire, after_in_parent=_turn.release, after_in_child=_turn.release)

_binding: Any = None  # llvmlite.binding, once it is needed
_targets: set[str] = set()  # processors that LLVM was told to know
_machines: dict[tuple[str, str, str], Any] = {}


def identity() -> str:
    """What changes with llvmlite's version; "" where there is no llvmlite. It does not import it."""
    try:
        spec = importlib.util.find_spec("llvmlite")
    except ValueError:  # something else was put in its place
        return ""
    if spec is None or spec.origin is None:
        return ""
    try:
        return Path(spec.origin).with_name("_version.py").read_text()
    except OSError:
        return spec.origin


def compile_object(text: str, triple: str, cpu: str, features: str) -> bytes:
    """The object code (ELF) of a module in LLVM's language.

    No passes over the text: they gained nothing and double the time.

    Raises:
        RuntimeError: the text is wrong.
    """
    with _turn:
        machine = _machine(triple, cpu, features)
        # A context of its own, or types and constants of all texts would stay. The module owns it: were it closed here,
        # an exception's traceback could keep a module without a context, which crashes when it is freed.
        with _refused(text), _binding.parse_assembly(text, _binding.create_context()) as module:
            module.verify()
            module.triple = triple
            module.data_layout = str(machine.target_data)
            return bytes(machine.emit_object(module))


@contextlib.contextmanager
def _refused(text: str) -> Iterator[None]:
    """Shows where a text begins that LLVM does not take."""
    try:
        yield
    except RuntimeError as error:
        lines = text.splitlines()
        shown = "\n".join(lines[:_SHOWN_LINES] + ["..."] * (len(lines) > _SHOWN_LINES))
        raise RuntimeError(f"kfusion: LLVM refuses the text of a kernel: {error}\n{shown}") from None


def _machine(triple: str, cpu: str, features: str) -> Any:
    key = triple, cpu, features
    if key not in _machines:
        _know(triple.split("-")[0])
        target = _binding.Target.from_triple(triple)
        _machines[key] = target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")
    return _machines[key]


def _know(processor: str) -> None:
    """Imports llvmlite when it is first needed: that takes some 40 ms and as many MB."""
    global _binding
    import llvmlite.binding

    _binding = llvmlite.binding
    if processor in _targets:
        return
    if _binding.get_process_triple().split("-")[0] == processor:
        _binding.initialize_native_target()
        _binding.initialize_native_asmprinter()
    else:
        _binding.initialize_all_targets()
        _binding.initialize_all_asmprinters()
    _targets.add(processor)
