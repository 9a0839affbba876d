"""A checking mode: each call of torch or NumPy that is traced is made on plain arrays, too, and both are compared.

`KFUSION_CHECK=library` in the environment, or `library_checks.using(raised)`, turns it on. What is compared: dtypes,
extents, strides of views, which result shares memory with which argument or other result, what is written to, and which
generators of random numbers move: those that all share, and those among the arguments. Values are not: other tests
compare these.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._graph.sizes import of_call
from .._graph.structure import leaves
from .._graph.values import Traced, tracer_of
from .._spec import FLOATS
from . import library_trials, randomness
from .dtype_names import is_complex, name_of_dtype
from .library_answers import StandIns

_MOST_ELEMENTS = 1 << 16  # of an array that stands for a traced value


class LibraryDifference(AssertionError):
    """A traced call is not what the library makes of it."""


def raised(text: str) -> None:
    """What is done with a difference by default."""
    raise LibraryDifference(text)


def _reports(mode: str) -> Callable[[str], None] | None:
    """What `KFUSION_CHECK` asks for. A misspelled value would turn checking off."""
    if mode not in ("", "library"):
        raise ValueError(f"KFUSION_CHECK must be 'library', got {mode!r}")
    return raised if mode else None


_report = _reports(os.environ.get("KFUSION_CHECK", ""))


@contextlib.contextmanager
def using(report: Callable[[str], None] | None) -> Iterator[None]:
    """A context in which `report` is called with the text of each difference; None: nothing is compared."""
    global _report
    before, _report = _report, report
    try:
        yield
    finally:
        _report = before


def compared(name: str, function: Any, args: Any, kwargs: Any, build: Callable[[], Any]) -> Any:
    """What `build` gives for function(*args, **kwargs) on traced values, compared with the library's own."""
    report = _report
    if report is None or function is None or _is_out_of_scope(args, kwargs):
        return build()
    asked = _Asked(function, args, kwargs)
    with using(None):  # what it is made of is not the user's
        made = build()
    for text in asked.differences(made) if asked.is_known else ():
        report(f"{name}: {text}; arguments {asked.described}")
    return made


def _is_out_of_scope(args: Any, kwargs: Any) -> bool:
    """Numbers that graphs have no dtype for are the library's own from the beginning."""
    given = list(leaves((args, kwargs)))
    return tracer_of(*given) is None or any(is_complex(v) for v in given)


class _Asked:
    """The library's own call, made before the traced one, which may write to its arguments."""

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        tracer: Any = tracer_of(*leaves((args, kwargs)))
        self._tracer = tracer
        self._values: list[Traced] = []
        self._stand_ins: list[Any] = []
        self._versions: list[int] = []
        self._drawn, self._calls = tracer.effects[0], len(tracer.library_calls)
        self.is_known = False
        self.described = ""
        for number in (1, 0):  # of which some functions take one only
            with contextlib.suppress(Exception), _aside(tracer):
                self._made, self._written, self._moved = self._call(function, args, kwargs, number)
                self.is_known = True
                break

    def _call(self, function: Any, args: Any, kwargs: Any, number: int) -> Any:
        is_torch = any(v._library == "torch" for v in leaves((args, kwargs)) if isinstance(v, Traced))
        made = StandIns((args, kwargs), lambda v: _stand_in(v, number, is_torch=is_torch), _apart)
        self._values, self._stand_ins, given, named = made.values, made.arrays, made.args, made.kwargs
        self._versions = [v._memory.version for v in self._values]
        arguments = list(leaves((given, named)))
        self.described = str([_described(v) for v in arguments])
        self._strides = [_strides(x) for x in self._stand_ins]  # x.t_() changes them
        before, generators = [_copy(x) for x in self._stand_ins], dict(randomness.generators_among(arguments))
        states = randomness.states_of(generators, (*_SHARED, *generators))
        made = function(*given, **named)
        after = randomness.states_of(generators, (*_SHARED, *generators))
        moved = sorted(name for name in after if after[name] != states.get(name))
        return made, [_is_changed(x, b) for x, b in zip(self._stand_ins, before, strict=True)], moved

    # ---- the comparison ----

    def differences(self, made: Any) -> Iterator[str]:
        """What is other than the library has it."""
        wanted = [v for v in leaves(self._made) if _is_library_array(v)]
        got = [v for v in leaves(tuple(made) if isinstance(made, tuple) else made) if isinstance(v, Traced)]
        if len(wanted) != len(got):
            if wanted and not any(map(is_complex, leaves(made))):
                yield f"gives {len(wanted)} arrays, traced {len(got)}"
            return
        for i, (w, g) in enumerate(zip(wanted, got, strict=True)):
            yield from self._of_result(f"result {i} " if len(got) > 1 else "", w, g)
        for (i, (w, g)), (k, (v, h)) in itertools.combinations(enumerate(zip(wanted, got, strict=True)), 2):
            if _overlap(w, v) and g._memory is not h._memory:
                yield f"results {i} and {k} share memory, traced they do not"
        for i, is_written in enumerate(self._written):
            if is_written and self._values[i]._memory.version == self._versions[i]:
                yield f"writes to argument {i}, traced it does not"
        if got and self._moved != (moved := self._traced_moves()):
            yield f"moves {_listed(self._moved)}, traced {_listed(moved)}"

    def _traced_moves(self) -> list[str]:
        """The generators that move when what was traced runs; a call of the library moves those that it moved here."""
        calls = self._tracer.library_calls[self._calls :]
        if calls:
            return self._moved if any(getattr(run, "is_random", False) for run in calls) else []
        return ["torch"] if self._tracer.effects[0] != self._drawn else []

    def _of_result(self, what: str, wanted: Any, got: Traced) -> Iterator[str]:
        dtype, shape = name_of_dtype(wanted), tuple(of_call(got.shape, 0))
        is_own_rule = "bfloat16" in (v._dtype for v in (*self._values, got)) and got._library == "numpy"
        if dtype != got._dtype and not is_own_rule:
            yield f"{what}is of {dtype}, traced of {got._dtype}"
        if tuple(wanted.shape) != shape:
            yield f"{what}has shape {tuple(wanted.shape)}, traced {shape}"
        shares = [_share(wanted, stand_in) for stand_in in self._stand_ins]
        of_shared = {id(v._memory) for v, is_shared in zip(self._values, shares, strict=True) if is_shared}
        if of_shared - {id(got._memory)}:
            yield f"{what}shares memory with argument {shares.index(True)}, traced it does not"
        owner = next((i for i, v in enumerate(self._values) if v._memory is got._memory), None)
        if owner is not None and shares[owner]:
            yield from self._of_view(what, owner, wanted, got)
        is_unknown = got._path is None and got._library == "numpy"  # nobody knows: a write is refused
        if owner is not None and not of_shared and math.prod(shape) and not is_unknown:
            maybe = "may share" if got._path is None else "shares"
            yield f"{what}shares no memory with argument {owner}, traced it {maybe} it"

    def _of_view(self, what: str, owner: int, wanted: Any, got: Traced) -> Iterator[str]:
        """Strides of a view, where the argument's stand-in lies as the argument."""
        strides = [self._tracer.strides(v) for v in (self._values[owner], got)]
        if None in strides or wanted.shape != tuple(got.shape) or 0 in wanted.shape:
            return
        of_argument, of_view = (list(of_call(tuple(s), 0)) for s in strides)
        found = _strides(wanted)
        differs = [n > 1 and s != w for n, s, w in zip(wanted.shape, of_view, found, strict=True)]
        if of_argument == self._strides[owner] and any(differs):
            yield f"{what}has strides {found}, traced {of_view}"


@contextlib.contextmanager
def _aside(tracer: Any) -> Iterator[None]:
    """A context in which calls are ours and nothing that they draw counts."""
    torch, state = sys.modules.get("torch"), np.random.get_state()  # noqa: NPY002 - the one that functions use
    with contextlib.ExitStack() as stack:
        stack.callback(np.random.set_state, state)
        stack.enter_context(tracer.trying())
        stack.enter_context(np.errstate(all="ignore"))
        if torch is not None:
            stack.enter_context(torch._C.DisableTorchFunction())
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.random.fork_rng(devices=[]))
        yield


_SHARED = ("torch", "numpy.random")  # generators, which everyone draws from


def _listed(names: list[str]) -> str:
    return f"generators {', '.join(names)}" if names else "no generator"


def _stand_in(value: Traced, number: float, *, is_torch: bool) -> Any:
    """An array of the value's dtype and extents, which lies as it does where that is known."""
    shape = tuple(of_call(value.shape, 0))
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError("too many elements")
    known = value._tracer.strides(value)
    strides = None if known is None or 0 in shape else of_call(tuple(known), 0)
    number = 0.5 if number and value._dtype in FLOATS else number  # which writes of ones change
    if is_torch:
        torch = sys.modules["torch"]
        made = torch.full(shape, number, dtype=getattr(torch, value._dtype))
        is_plain = strides is None or 0 in strides
        return made if is_plain else torch.empty_strided(shape, strides, dtype=made.dtype).copy_(made)
    made = np.full(shape, number, dtype=np.dtype(value._dtype))
    if strides is None:
        return made
    order = sorted(range(len(shape)), key=lambda axis: -abs(strides[axis]))
    return np.ascontiguousarray(made.transpose(order)).transpose(np.argsort(order))


def _apart(leaf: Any) -> Any:
    if hasattr(leaf, "untyped_storage"):
        return leaf.clone()
    is_generator = any(randomness.generators_among([leaf]))
    return leaf if not is_generator else leaf.clone_state() if hasattr(leaf, "clone_state") else copy.deepcopy(leaf)


def _strides(x: Any) -> list[int]:
    """Strides in elements."""
    return list(x.stride()) if hasattr(x, "untyped_storage") else [s // x.itemsize for s in x.strides]


def _is_library_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "untyped_storage")


def _share(a: Any, b: Any) -> bool:
    if hasattr(a, "untyped_storage"):
        return library_trials.shares_memory(a, b)
    return a is b or bool(np.shares_memory(a, b)) or (a.size == 0 and (a.base is b or a.base is b.base is not None))


def _overlap(a: Any, b: Any) -> bool:
    """Whether two results have elements in common; parts of one array may have none."""
    if not _share(a, b) or not hasattr(a, "untyped_storage"):
        return _share(a, b)
    torch = sys.modules["torch"]
    of_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return bool(np.shares_memory(*(t.view(of_size[t.element_size()]).numpy() for t in (a, b))))


def _copy(x: Any) -> Any:
    return x.clone() if hasattr(x, "untyped_storage") else x.copy()


def _is_changed(x: Any, before: Any) -> bool:
    """Whether elements were written to; x.t_() writes to none."""
    return tuple(x.shape) == tuple(before.shape) and bool((x != before).any())


def _described(value: Any) -> str:
    return f"{name_of_dtype(value)}{list(value.shape)}" if hasattr(value, "shape") else repr(value)[:40]
