"""The versions of an operation made ready to be timed: checked, their arguments bound."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _arrays, _onnx, _timing
from .._fuse import fuse
from . import peers as _peers
from . import versions
from .oracle import Oracle, checked
from .problem import Problem, problem_of

Rival = Callable[[Problem], Callable[[], Any]]  # from the problem to what computes it once; nothing is computed yet


@dataclass(frozen=True)
class Contest:
    """What has passed the check. out: a result to write into, None where arrays cannot be written to.

    errors are the largest against float64, by version; difference that between fused and unfused; names are the
    libraries that were asked, calls those that can do it, notes say who was left out, and why.
    """

    problem: Problem
    out: Any
    errors: dict[str, float]
    difference: float
    names: list[str]
    calls: list[_peers.Call]
    notes: list[str]

    @property
    def variants(self) -> list[_timing.Variant]:
        """What to time: kfusion's versions, fused twice to show the noise, and the peers."""
        fused, unfused, _ = self.problem.versions
        call, out = self.problem.call, self.out
        ours = {"unfused": lambda: call(unfused, out)}
        ours |= dict.fromkeys(("fused", "fused, again"), lambda: call(fused, out))
        if out is not None:
            ours["fused, fresh"] = lambda: call(fused)
        variants = [_timing.Variant(name, run) for name, run in ours.items()]
        return variants + [_timing.Variant(c.name, c.run, is_peer=True) for c in self.calls]


def prepare(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    keywords: Mapping[str, Any],
    peers: Sequence[str] | None,
    rivals: Mapping[str, Rival] | None = None,
) -> Contest:
    """Checks all versions of what f computes on these arguments.

    Args:
        f: as for `kfusion.compare`.
        args: f's arguments.
        keywords: f's keyword arguments.
        peers: libraries, as for `kfusion.compare`.
        rivals: further peers, by name: such as were written for this operation.

    Raises:
        TypeError: f is no function, or an argument is of a wrong kind.
        ValueError: an array is empty, or a peer is none.
        ImportError: a named peer is not installed.
        AssertionError: a version of kfusion's is wrong by more than its rounding explains.
    """
    f, args, keywords = _onnx.called(f, args, keywords, fuse)
    problem = problem_of(versions.versions_of(f), args, keywords)
    oracle, out, errors, difference = checked(problem)
    names, notes = _peers.choose(peers, problem.cuda)
    entrants: dict[str, Rival] = {name: library(name) for name in names}
    calls = _admitted(entrants | dict(rivals or {}), problem, oracle, errors, notes)
    return Contest(problem, out, errors, difference, names, calls, notes)


def library(name: str) -> Rival:
    """A peer that runs any function that is traced."""
    return lambda problem: _peers.prepare(name, problem.traced, problem.arrays).run


def _admitted(
    entrants: Mapping[str, Rival],
    problem: Problem,
    oracle: Oracle,
    errors: dict[str, float],
    notes: list[str],
) -> list[_peers.Call]:
    """Peers that can do it, checked; a note for each that cannot: its refusal should not stop the rest."""
    calls = []
    for name, entrant in entrants.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a compiler's remarks on itself
                run = entrant(problem)
                first = run()
            errors[name] = oracle.require_of_peer(name, first)
        except Exception as error:
            notes.append(f"{name} is left out: {_first_line(error)}")
            continue
        calls.append(_peers.Call(name, run))
    return calls


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].removeprefix("kfusion.compare: ")


def clock(problem: Problem, *, flush: bool) -> _timing.Clock:
    """Events on the GPU, wall time on the CPU; flush empties the caches before each sample."""
    if problem.cuda:
        return _timing.CudaClock(flush=flush, device=_arrays.cuda_index(problem.largest))
    return _timing.CpuClock(flush=flush)
