"""Functions drawn once, of the kinds that programs are made of: no plan may take clearly longer than what it replaces.

`kfusion bench drawn` fails where one does: the worst that a user can meet is a function that is slower fused.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import kfusion as kf
from kfusion import _timing
from kfusion._cli.demo import numpy_dtype

from .inputs import Inputs
from .layers import LayerCase, Shape, alike, numbers, of_axes
from .options import Options
from .results import Measured, Results

COUNT = 60
BOUND = 1.2  # times of the faster of unfused and the library
_SEED = 36
_PEERS = ("numpy", "torch")
_STEPS = 8  # at most, of a chain
_DTYPES = {"cuda": "bfloat16", "cpu": "float32"}  # of products

# A number is made of one by these; in a text, `F(x)` is one to three of them, `C(x)` up to eight.
_FUNCTIONS = ("tanh({})", "exp(-abs({}))", "sin({})", "erf({})", "log1p(abs({}))", "(abs({}) + 0.5)**1.7",
              "sqrt(abs({}) + 1)", "sigmoid({})", "gelu({})", "relu({})", "(0.5 * {} + 1)", "square({})")  # fmt: skip


class Kind(NamedTuple):
    """Texts of one kind of function, of arrays that `of` makes of a shape by name. products: whether it has any."""

    shape: Shape
    texts: tuple[str, ...]
    products: bool = False


_MATRIX = (8192, 4096)
_WIDE, _SCORES, _HEADS = (8192, 32000), (2048, 4096), (8, 12, 1024, 64)
_OF: dict[str, Callable[[Inputs, Shape, str], Any]] = {
    "x": alike(0),
    "y": alike(1),
    "row": of_axes(2, -1),
    "bias": of_axes(3, -1),
    "column": lambda inputs, shape, dtype: inputs.random((*shape[:-1], 1), dtype, 4),
    "number": lambda inputs, shape, dtype: inputs.random((1,), dtype, 5),
    # products of about 1: the sine of large numbers shows how a product that is stored was rounded, and nothing else
    "w": lambda inputs, shape, dtype: inputs.random((shape[-1], shape[-1]), dtype, 6, scale=shape[-1] ** -0.5),
    "few": lambda inputs, shape, dtype: inputs.random((32, shape[-1]), dtype, 7),
    "classes": numbers(8),
    "q": alike(9),
    "k": alike(10),
    "v": alike(11),
    "heads": lambda inputs, shape, dtype: inputs.random((shape[1], 1, 1), dtype, 12),
    "positions": lambda inputs, shape, dtype: inputs.random((shape[2], 1), dtype, 13),
    "keys": lambda inputs, shape, dtype: inputs.random((shape[2],), dtype, 14),
}
_KINDS = (
    Kind(_MATRIX, ("x * C(row)", "x + C(column)", "F(x) - C(row) * C(column)", "where(x > C(row), x, F(y))",
                   "x * C(number) + y", "F(x * C(row) + bias)", "F(C(row) + C(column)) * x")),
    Kind(_MATRIX, ("softmax(F(x) * C(row))", "layernorm(x + F(y), C(row), bias)", "rmsnorm(F(x), C(row)) + x",
                   "F(x) / (sum(abs(F(x)), -1, keepdims=True) + 1)", "logsumexp(F(x) + C(row), -1)",
                   "max(F(x) * C(column), -1)", "sum(x * C(row), -1)", "var(F(x), -1)")),
    Kind(_MATRIX, ("sum(F(x) * C(column), 0)", "F(x) - mean(F(x), 0)", "max(F(x) + C(row), 0)", "mean(F(x) * y, 0)",
                   "(x - mean(x, 0)) / sqrt(var(x, 0) + 1)", "sum(F(x), 0) * C(row)")),
    Kind(_MATRIX, ("concatenate([F(x), F(y)], 0) * C(row)", "concatenate([F(x), y * C(row)], -1)",
                   "stack([F(x), F(y)], 0)", "roll(F(x), 1, -1) + x * C(row)", "pad(F(x), ((0, 0), (2, 0)))",
                   "sum(concatenate([F(x), F(y)], -1), -1)")),
    Kind(_SCORES, ("gelu(x @ w + C(row))", "F(x) @ w", "F(x @ w) * C(column)", "softmax(x @ w + C(row), -1)",
                   "F(few @ w + row)", "sum(F(x @ w), -1)", "x + F(x @ w) * row"), products=True),
    Kind(_HEADS, ("softmax(q @ matrix_transpose(k) * 0.125 - C(positions - keys) * heads, -1) @ v",
                  "softmax(q @ matrix_transpose(k) * 0.125 + F(positions) * C(keys), -1) @ v",
                  "softmax(F(q @ matrix_transpose(k) * 0.125), -1) @ v", "attention(F(q), k, v, causal=True)",
                  "attention(q, k, v) + F(q)", "softmax(q @ matrix_transpose(k) * C(heads), -1) @ v"), products=True),
    Kind(_WIDE, ("cross_entropy(F(x), classes)", "cross_entropy(x + C(row), classes, label_smoothing=0.1)",
                 "mean((F(x) - y)**2)", "sum(where(abs(x - y) < 1, (x - y)**2 / 2, abs(x - y) - 0.5))",
                 "-mean(sum(softmax(y) * log_softmax(F(x)), -1))", "mean(logsumexp(x * C(column), -1))")),
    Kind(_SCORES, ("sum(square(expand_dims(few, 1) - expand_dims(few, 0)), -1)",
                   "sum(F(expand_dims(few, 1) - expand_dims(row, 0)), (0, 1))",
                   "max(expand_dims(C(row), 1) - C(row), 1)", "sum(exp(-abs(expand_dims(F(row), 1) - row)), 0)",
                   "mean(expand_dims(C(row), 1) * C(bias), -1)")),
)  # fmt: skip


def texts() -> list[tuple[Kind, str]]:
    """The functions, always the same."""
    draw, found, turns = random.Random(_SEED), dict[str, Kind](), itertools.count()
    while len(found) < COUNT:
        round_, i = divmod(next(turns), len(_KINDS))
        of_kind = _KINDS[i].texts
        found.setdefault(_drawn(of_kind[round_ % len(of_kind)], draw), _KINDS[i])
    return [(kind, text) for text, kind in found.items()]


def _drawn(text: str, draw: random.Random) -> str:
    """Puts a chain of functions in the place of each `F()` and `C()`, the innermost first."""
    while (chain := re.search(r"\b([FC])\((?=((?:[^()]|\([^()]*\))*)\))", text)) is not None:
        inner, most = chain[2], 3 if chain[1] == "F" else _STEPS
        for _ in range(draw.randint(1, most)):
            inner = draw.choice(_FUNCTIONS).format(inner)
        text = text[: chain.start()] + inner + text[chain.end() + len(chain[2]) + 1 :]
    return text


def function_of(text: str) -> Callable[..., Any]:
    """The function of arrays that a text means; its parameters are the names of arrays in it, in order."""
    names = dict.fromkeys(name for name in re.findall(r"\w+", text) if name in _OF)
    made: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {text}", vars(kf).copy())
    made.__name__ = made.__qualname__ = "drawn"
    return made


@dataclass(frozen=True)
class DrawnCase(LayerCase):
    """A drawn function: what is slow is measured twice, so that it is not noise."""

    def measure(self, inputs: Inputs, options: Options, report: _timing.Progress) -> Measured:
        """Measures a case, and a slow one again."""
        first = super().measure(inputs, options, report)
        if first.slowdown <= BOUND:
            return first
        return min(first, super().measure(inputs, options, report), key=lambda case: case.slowdown)


def cases(suite: str, options: Options) -> Iterator[DrawnCase]:
    """All of them, or for a quick run one of each kind."""
    for kind, text in texts()[: len(_KINDS) if options.quick else COUNT]:
        function = function_of(text)
        of = tuple(_OF[name] for name in function.__code__.co_varnames)
        for dtype in options.dtypes or (_DTYPES[options.device] if kind.products else "float32",):
            yield DrawnCase(suite, text, function, _shape(kind, dtype, options), dtype, _PEERS, of=of)


def _shape(kind: Kind, dtype: str, options: Options) -> Shape:
    """The extents of a kind's arrays: a CPU's first axis is shorter, and the longest are where --bytes says so."""
    first, *others = kind.shape
    shape = [max(first // (16 if options.device == "cpu" else 1), 1), *others]
    most = (options.nbytes or math.inf) / numpy_dtype(dtype).itemsize
    while math.prod(shape) > max(most, 1):
        longest = shape.index(max(shape))
        shape[longest] //= 2
    return tuple(shape)


def require_no_loss(results: Results) -> None:
    """Raises AssertionError with the names of those that take too long or were not measured."""
    lost = [case for case in results.of_suite("drawn") if case.slowdown > BOUND]
    if lost:
        names = "\n  ".join(f"{case.slowdown:.2f}  {case.name}" for case in lost)
        raise AssertionError(
            f"kfusion bench: of {len(results.of_suite('drawn'))} drawn functions {len(lost)} take more than {BOUND} "
            f"times the faster of unfused and the library:\n  {names}"
        )
