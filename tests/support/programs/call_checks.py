"""Calls of programs as users make them: NumPy's and torch's functions of containers, with several sizes, with and
without gradients, by one fused function each, whose results are written to before the next call."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import kfusion as kf

from . import interfaces
from .checks import Runner
from .grad_checks import Case, by_torch, one_thread, tensor
from .in_torch import TORCH
from .program import NUMPY, Language, Program
from .values import Unfit, Value

GROWTH = (lambda n: n, lambda n: n + 3, lambda n: 2 * n + 1, lambda n: n + 1, lambda n: n)
GRADIENTS = (True, True, False, True, True)  # of torch's calls


def resized(program: Program, grow: Callable[[int], int]) -> Program:
    """The program with another extent wherever an input has that of the first axis of the first input."""
    extent = program.inputs[0].shape[0] if program.inputs[0].ndim else 1

    def other(x: np.ndarray) -> np.ndarray:
        shape = tuple(grow(n) if n == extent else n for n in x.shape)
        if shape == x.shape:
            return x
        order = "C" if x.flags.c_contiguous or not x.flags.f_contiguous else "F"
        return np.asarray(np.resize(np.ascontiguousarray(x), shape), order=order)

    return dataclasses.replace(program, inputs=[other(x) for x in program.inputs])


def values_of(program: Program) -> list[Value] | None:
    """The values of its results; None where it says nothing of such inputs."""
    try:
        computed = program.values()
    except (Unfit, ValueError, IndexError):
        return None
    return [computed[o] for o in program.outputs]


def require_same(got: Any, want: Any, what: str, error: float = 0.0) -> None:
    """Asserts that two results are of the same classes and equal, arrays within an error. NumPy's arrays without axes
    count as scalars."""
    if isinstance(want, np.ndarray) and not want.shape:
        want, got = want[()], got[()] if isinstance(got, np.ndarray) and not got.shape else got
    assert type(got) is type(want), f"{what} is of {type(got).__name__}, not {type(want).__name__}"
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want), f"{what}: {len(got)} items, not {len(want)}"
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            require_same(g, w, f"{what}.{i}", error)
    elif isinstance(want, (torch.Tensor, np.ndarray, np.generic)):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{what}: {got.dtype} {got.shape}, not {want.shape}"
        if torch.is_grad_enabled():  # else torch's views say what their arguments do
            assert getattr(got, "requires_grad", None) == getattr(want, "requires_grad", None), f"{what}: requires_grad"
        g, w = (np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, np.float64) for x in (got, want))
        assert np.allclose(g, w, 0, error, equal_nan=True), f"{what}: {g} is not {w}"
    elif isinstance(want, dict):
        assert list(got) == list(want), f"{what} has {list(got)}, not {list(want)}"
        require_same(list(got.values()), list(want.values()), what, error)
    elif hasattr(want, "__dict__"):
        require_same(dict(vars(got)), dict(vars(want)), what, error)
    else:
        assert got == want, f"{what}: {got!r} is not {want!r}"


def require_as_before(
    held: Any, arrays: Sequence[Any], before: Sequence[bytes], interface: interfaces.Interface
) -> None:
    """Asserts that a call has left its argument as it was."""
    assert [np.asarray(x.detach() if isinstance(x, torch.Tensor) else x).tobytes() for x in arrays] == list(before), (
        "an argument has changed"
    )
    for one, other in zip(_leaves(held), _leaves(interface.held(arrays)), strict=True):
        assert one is other, "an argument holds something else"


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (interfaces.Held, interfaces.Box, SimpleNamespace)):
        value = vars(value)
    if isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


def states(scope: dict[str, Any]) -> dict[str, Any]:
    """What a program sets in the object, the class and the global that it names."""
    return {**vars(scope["STATE"]), "shared": scope["State"].shared, "LAST": scope["LAST"]}


def spoil(value: Any, named: Any) -> None:
    """Writes to the arrays of a result, but to those that the function has named."""
    for x in [value] if not isinstance(value, (tuple, list)) else value:
        if isinstance(x, np.ndarray) and x.flags.writeable and not np.shares_memory(x, named):
            x[...] = 77
        elif isinstance(x, torch.Tensor) and _storage(x) != _storage(named):
            x.detach().fill_(77)


class CallRunner(Runner):
    """One fused function of NumPy's arrays and one of torch's tensors, called again and again."""

    def says_something(self, program: Program) -> bool:
        return values_of(program) is not None and all(x.dtype.itemsize == 8 or x.dtype == bool for x in program.inputs)

    def script(self, program: Program) -> str:
        """Both functions, and their calls, not fused and fused."""
        lines = ["import kfusion as kf", "import numpy as np", "import torch", "from torch.nn import functional as F"]
        lines += ["from dataclasses import dataclass", "from typing import Any"]
        for language in (NUMPY, TORCH):
            source = program.source(language)
            lines += [*language.called_in(source), inspect.getsource(interfaces.Box), source]
        return "\n".join([*lines, *program.written_inputs(), f"# {program.interface}"])

    def check(self, program: Program, *, thorough: bool = False) -> None:
        with one_thread():
            for language, make in ((NUMPY, _array), (TORCH, tensor)):
                self._check_in(language, make, program)
            if thorough:
                self._check_gradients(dataclasses.replace(program, interface=None))

    def _check_gradients(self, program: Program) -> None:
        """Compares the gradients of one fused function, at sizes where they do not depend on who computes them."""
        fused = kf.fuse(program.function(TORCH))
        for number, grow in enumerate(GROWTH):
            try:
                case = Case.of(resized(program, grow))
            except (Unfit, ValueError, RuntimeError, IndexError, TypeError):
                continue
            results, gradients = by_torch(fused, case.program.inputs)
            case.require(f"gradients, call {number}", gradients, results)

    def _check_in(self, language: Language, make: Callable[[np.ndarray], Any], program: Program) -> None:
        scopes = [{"Box": interfaces.Box, "SimpleNamespace": SimpleNamespace} for _ in range(2)]
        function, other = (program.function(language, scope) for scope in scopes)
        fused = kf.fuse(other)
        for number, (grow, gradients) in enumerate(zip(GROWTH, GRADIENTS, strict=True)):
            sized = resized(program, grow)
            if (values := values_of(sized)) is not None:
                what = f"{language.imports[0].split()[1]}, call {number}"
                with torch.set_grad_enabled(gradients and language is TORCH):
                    self._check_call(function, fused, sized, values, make, what, scopes)

    def _check_call(
        self, function: Any, fused: Any, program: Program, values: Sequence[Value], make: Any, what: str, scopes: Any
    ) -> None:
        assert program.interface is not None
        arrays = [make(x) for x in program.inputs]
        held, other = program.interface.held(arrays), program.interface.held([make(x) for x in program.inputs])
        try:
            want = program.interface.items(function(other))
        except (ValueError, RuntimeError, IndexError, TypeError):  # constants of the text that do not fit
            return
        before = [x.tobytes() for x in program.inputs]
        got = program.interface.items(fused(held))
        if program.interface.sets:
            error = max(2 * v.error + 1e-13 * v.top for v in values)
            now, then = ([states(scope), x] for scope, x in zip(scopes[::-1], (held, other), strict=True))
            with torch.no_grad():  # what was set in a call without gradients says what its views do
                require_same(now, then, f"{what}, what is set", error)
        else:
            require_as_before(held, arrays, before, program.interface)
        assert len(got) == len(want), f"{what}: {len(got)} items, not {len(want)}"
        for i, (g, w) in enumerate(zip(got, want, strict=True)):
            error = 2 * values[i].error + 1e-13 * values[i].top if i < len(values) else 0.0
            require_same(g, w, f"{what}, result {i}", error)
        set_there = list(_leaves([states(scopes[0]), other])) if program.interface.sets else []
        for g, w in zip(got, want, strict=True):
            shared = [x for x in set_there if _share(w, x)]
            if not shared:
                spoil(g, scopes[1]["TABLE"])
            elif all(w is x for x in shared) and _is_writable(w):  # views that are set are copies
                spoil(g, scopes[1]["TABLE"])
                spoil(w, scopes[0]["TABLE"])


def _share(x: Any, y: Any) -> bool:
    """Whether both are arrays of one memory."""
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x is y or np.may_share_memory(x, y)
    return isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and _storage(x) == _storage(y)


def _storage(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _is_writable(x: Any) -> bool:
    """Whether it is an array to which users can write: not one that is broadcast."""
    if isinstance(x, np.ndarray):
        return x.flags.writeable
    return isinstance(x, torch.Tensor) and 0 not in (s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)


def _array(x: np.ndarray) -> np.ndarray:
    return x.copy("K") if x.flags.c_contiguous or x.flags.f_contiguous else x
