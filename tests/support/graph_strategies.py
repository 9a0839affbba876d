"""The random programs of `programs`, drawn by hypothesis, as graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import kfusion as kf
from kfusion import _core
from kinds import DTYPES
from programs.drawing import draw_program
from programs.profiles import Profile, many
from programs.values import Value

BASES = [(3, 5), (1, 5), (7, 11), (0, 5)]
LARGER_BASES = [(33, 67), (2, 1030), (1030, 2), (1, 4100)]  # vectors and tiles with their remainders, rows that are cut
_MAPS = many(join=1, unary=2, function=1, binary=4, scale=1, compare=1, select=1, logical=1, view=3, cast=1)
_REDUCTIONS = many(reduce=3, normalise=2, centre=1, composite=1)
_GATHERS = many(take=2, along=2)
_CONTRACTIONS = many(matmul=2)


class Drawn:
    """Choices that hypothesis makes, and makes simpler where a test fails."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def one_of(self, things: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(things))


@dataclass
class Case:
    graph: _core.Graph
    inputs: list[np.ndarray]
    outputs: list[Value]

    def check(self, results: Sequence[Any]) -> None:
        """Asserts that `results` are the outputs within the error that a correct executor may make."""
        for got, want in zip(results, self.outputs, strict=True):
            want.check(got)


@st.composite
def cases(
    draw: st.DrawFn,
    max_steps: int = 12,
    dtypes: tuple[str, ...] = DTYPES,
    contractions: bool = False,
    gathers: bool = False,
    reductions: bool = True,
    bases: list[tuple[int, int]] = BASES,
) -> Case:
    """Graphs over inputs of `dtypes` and of extents from `bases`; with matrix products and gathers, if asked for."""
    kinds = _MAPS + (_REDUCTIONS if reductions else ()) + (_CONTRACTIONS if contractions else ())
    kinds += _GATHERS if gathers else ()
    profile = Profile("drawn", kinds, dtypes, dtypes, (1, max_steps))
    program = draw_program(Drawn(draw), profile, bases).needed()
    values = program.values()
    # In C order: tests choose how inputs lie.
    inputs = [np.ascontiguousarray(x).reshape(x.shape) for x in program.inputs]
    return Case(kf.trace(program.function(), *inputs), inputs, [values[o] for o in program.outputs])
