"""LLVM, through llvmlite: from a CPU kernel's text to its object code. Nothing else of kfusion imports llvmlite."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SHOWN_LINES = 20  # of a text that does not compile
_STACK_BYTES = 16 << 20  # LLVM recurses, and its callers' threads may have little

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
        RuntimeError: the text is wrong, or there is no llvmlite.
    """
    return _apart(lambda: _in_turn(text, triple, cpu, features))


def _apart(work: Callable[[], bytes]) -> bytes:
    """work(), by a thread with a stack of _STACK_BYTES that no signal's handler interrupts.

    The main thread may be interrupted while it waits. Ctrl-C inside llvmlite would leave its lock taken for ever.
    """
    done = threading.Lock()
    done.acquire()
    results: list[bytes] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            done.release()

    try:
        _start(threading.Thread(target=run, name="kfusion compiles"))
    except RuntimeError:  # the interpreter shuts down, or the system has no more threads
        return work()
    done.acquire()
    if errors:
        raise errors.pop()  # out of the list: it would keep this frame, and the frame it
    return results[0]


def _start(thread: threading.Thread) -> None:
    with _turn:  # two of these at once would leave the setting changed
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)


def _in_turn(text: str, triple: str, cpu: str, features: str) -> bytes:
    with _turn:
        machine = _machine(triple, cpu, features)
        try:
            return _compiled(text, machine)
        except RuntimeError as error:
            import traceback  # nothing else needs it

            traceback.clear_frames(error.__traceback__)  # frees the module now: later, a fork would not wait for that
            raise RuntimeError(_refusal(text, error)) from None


def _compiled(text: str, machine: Any) -> bytes:
    # A context of its own, or types and constants of all texts would stay. The module owns it.
    with _binding.parse_assembly(text, _binding.create_context()) as module:
        module.verify()
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        return bytes(machine.emit_object(module))


def _refusal(text: str, error: RuntimeError) -> str:
    lines = text.splitlines()
    shown = "\n".join(lines[:_SHOWN_LINES] + ["..."] * (len(lines) > _SHOWN_LINES))
    return f"kfusion: LLVM refuses the text of a kernel: {error}\n{shown}"


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
    try:
        import llvmlite.binding
    except ImportError as error:
        raise RuntimeError(
            f"kfusion: kernels of the CPU are compiled by llvmlite (pip install llvmlite): {error}"
        ) from error
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
