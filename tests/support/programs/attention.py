"""Random products, attentions and what surrounds them, as functions of torch's tensors: extents coincide often, so that
nothing but strides tells the axes of two arrays apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kinds import np_dtype

from .program import Step
from .torch_programs import SEEN, TorchProgram
from .values import HALF

if TYPE_CHECKING:
    from .drawing import Choices

EXTENTS = (1, 2, 3, 4, 5, 8, 16, 17, 32, 33)
DTYPES = ("float32", "float32", "bfloat16", "float16", "float64")
MOST_ELEMENTS = 40_000  # of scores


@dataclass(eq=False)
class Tensor:
    shape: tuple[int, ...]
    dtype: str
    array: np.ndarray | None = None  # of an input
    step: str = ""
    arguments: tuple[Tensor, ...] = field(default=(), repr=False)
    constants: tuple[Any, ...] = ()


def _program(outputs: Sequence[Tensor]) -> TorchProgram:
    """With the inputs first, then each step after what it reads."""
    order: list[Tensor] = []

    def visit(t: Tensor) -> None:
        for a in t.arguments:
            visit(a)
        if t not in order:
            order.append(t)

    for o in outputs:
        visit(o)
    order.sort(key=lambda t: t.array is None)  # stable
    steps = [Step(t.step, tuple(map(order.index, t.arguments)), t.constants) for t in order if t.array is None]
    return TorchProgram([t.array for t in order if t.array is not None], steps, [order.index(o) for o in outputs])


def _promoted(a: str, b: str) -> str:
    if a == b or b in ("bool", "int64"):
        return a
    return _promoted(b, a) if a in ("bool", "int64") else "float32" if a in HALF and b in HALF else max(
        a, b, key=lambda d: np_dtype(d).itemsize)  # fmt: skip


class AttentionDrawing:
    def __init__(self, c: Choices) -> None:
        self.c = c
        self.random = np.random.default_rng(c.integer(0, 2**31 - 1))
        some = [c.one_of(EXTENTS) for _ in range(3)]
        while True:
            b, h, s, t, d, e = (c.one_of(some) for _ in range(6))
            # Products of extents coincide, too.
            s, t = c.one_of([(s, t), (s, t), (s, t), (s, b * h), (b * h, t), (h, t), (s, h), (h, h), (b, h)])
            if b * h * s * max(t, e, d) <= MOST_ELEMENTS:
                break
            some[c.integer(0, 2)] = c.one_of(EXTENTS[:5])
        self.leading: tuple[int, ...] = c.one_of([(b, h), (b, h), (b, h), (b, h), (1, h), (h,), ()])
        self.s, self.t, self.d = s, t, c.one_of([d, 8, 16, 32])
        self.e = c.one_of([e, self.d, self.d])
        self.dtype = c.one_of(DTYPES)
        self.inputs = 0

    def flag(self, one_in: int = 2) -> bool:
        return self.c.integer(1, one_in) == 1

    # ---- arrays -----------------------------------------------------------------------------------------------------

    def given(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        self.inputs += 1
        if dtype == "bool":
            array = self.random.random(shape) < 0.7
            array[..., :1] = True  # no row sees nothing
        else:
            array = self.random.standard_normal(shape).astype(np_dtype(dtype))
        return Tensor(shape, dtype, self.laid_out(array))

    def laid_out(self, x: np.ndarray) -> np.ndarray:
        how = self.c.one_of(
            ["C", "C", "C", "turned", "permuted", "steps", "repeated"] if x.ndim > 1 else ["C", "steps"]
        )
        if how in ("turned", "permuted"):
            order = list(range(x.ndim))
            order[-2], order[-1 if how == "turned" else x.ndim // 2 - 1] = (
                order[-1 if how == "turned" else x.ndim // 2 - 1],
                order[-2],
            )
            return np.ascontiguousarray(x.transpose(order)).transpose(order)
        if how == "steps":
            axis = self.c.integer(0, x.ndim - 1)
            owner = np.zeros([e * (2 if a == axis else 1) for a, e in enumerate(x.shape)], x.dtype)
            view = owner[(slice(None),) * axis + (slice(None, None, 2),)]
            view[...] = x
            return view
        if how == "repeated" and x.ndim > 2:  # along the first axis
            return np.lib.stride_tricks.as_strided(x, x.shape, (0, *x.strides[1:]))
        return x

    def push(
        self, step: str, arguments: Sequence[Tensor], *constants: Any, shape: Any = None, dtype: str = ""
    ) -> Tensor:
        shapes = [a.shape for a in arguments]
        promoted = arguments[0].dtype
        for a in arguments[1:]:
            promoted = _promoted(promoted, a.dtype)
        shape = np.broadcast_shapes(*shapes) if shape is None else tuple(shape)
        return Tensor(shape, dtype or promoted, None, step, tuple(arguments), constants)

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        return x if x.dtype == dtype else self.push("cast", [x], dtype, dtype=dtype)

    def part_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Some of its axes; the others are 1, or left out where they are the first."""
        part = tuple(e if self.flag() else 1 for e in shape)
        while part and part[0] == 1 and self.flag():
            part = part[1:]
        return part or (shape[-1],)

    # ---- what happens to scores and results -------------------------------------------------------------------------

    def operand(self, shape: tuple[int, ...]) -> Tensor:
        """An array of some of the axes, or a map of one or two."""
        x = self.given(self.part_of(shape), self.c.one_of([self.dtype, self.dtype, "float32"]))
        if self.flag(3) and self.inputs < 7:
            x = self.push(self.c.one_of(["multiply", "add"]), [x, self.given(self.part_of(shape), x.dtype)])
        if self.flag(3):
            x = self.push(self.c.one_of(["tanh", "sigmoid", "relu"]), [x])
        return x

    def mask(self, x: Tensor) -> Tensor:
        s, t = x.shape[-2:]
        if self.flag() and self.inputs < 7:
            return self.given(self.part_of(x.shape), "bool")
        kind = self.c.one_of(list(SEEN))
        return self.push("seen", [x], s, t, kind, self.c.integer(max(1, t - s), max(t, 2)), shape=(s, t), dtype="bool")

    def changed(self, x: Tensor) -> Tensor:
        """One more map of what has the product's shape, which it keeps."""
        kind = self.c.one_of(["scale", "operand", "operand", "slopes", "mask", "mask", "cap", "cast", "tanh"])
        if kind == "scale":
            return self.push("scale", [x], self.c.one_of([0.18, 2, 0.5, 1.25]), self.c.one_of("**/+"))
        if kind == "operand" and self.inputs < 7:
            return self.push(self.c.one_of(["add", "add", "subtract", "multiply"]), [x, self.operand(x.shape)])
        if kind == "slopes" and self.inputs < 7:
            return self.push(self.c.one_of(["add", "subtract"]), [x, self.slopes(x)])
        if kind == "mask":
            low = self.c.one_of(["float('-inf')", "-1e4"]) if x.dtype != "float64" or self.flag() else "-1e9"
            m, how = self.mask(x), self.c.one_of(["where", "where", "filled", "masked"])
            dtype = _promoted(x.dtype, "float32") if how == "masked" else x.dtype
            return self.push(how, [m, x], low, shape=x.shape, dtype=dtype)
        if kind == "cap":
            return self.push("capped", [x], self.c.one_of([2, 20]))
        return self.cast(x, self.c.one_of(["float32", self.dtype])) if kind == "cast" else self.push("tanh", [x])

    def slopes(self, x: Tensor) -> Tensor:
        """Distances, or a matrix, times a number of each head."""
        s, t = x.shape[-2:]
        number = self.given((*x.shape[-3:-2], 1, 1), self.c.one_of([self.dtype, "float32"]))
        number = self.push("scale", [number], 0.06, "*")
        if self.flag():
            of = self.push("distance", [x], s, t, shape=(s, t), dtype="int64")
        else:
            of = self.given((s, t), number.dtype)
        return self.push("multiply", [number, of])

    def several(self, x: Tensor, most: int) -> Tensor:
        for _ in range(self.c.integer(0, most)):
            x = self.changed(x)
        return x

    # ---- forms ------------------------------------------------------------------------------------------------------

    def heads(self, n: int, numbers: int) -> tuple[Tensor, int]:
        """Keys or values, perhaps of fewer heads, and how many heads share them."""
        share = self.c.one_of([g for g in range(1, self.leading[-1] + 1) if self.leading[-1] % g == 0]) if (
            self.leading and self.flag(3)) else 1  # fmt: skip
        leading = (*self.leading[:-1], self.leading[-1] // share) if self.leading else ()
        return self.given((*leading, n, numbers), self.dtype), share

    def shared(self, x: Tensor, share: int) -> Tensor:
        if share == 1:
            return x
        shape = (*self.leading, *x.shape[-2:])
        return self.push(self.c.one_of(["repeated", "expanded"]), [x], share, shape=shape)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        return self.push("matmul", [left, right], shape=(*left.shape[:-1], right.shape[-1]), dtype=left.dtype)

    def turned(self, x: Tensor) -> Tensor:
        return self.push("turned", [x], shape=(*x.shape[:-2], x.shape[-1], x.shape[-2]))

    def scores(self) -> Tensor:
        q = self.given((*self.leading, self.s, self.d), self.dtype)
        k = self.shared(*self.heads(self.t, self.d))
        if self.flag(4):
            q = self.push("scale", [q], 1 / math.sqrt(self.d), "*")
        if self.flag(4):
            q, k = self.cast(q, "float32"), self.cast(k, "float32")
            if self.dtype == "float64":
                q, k = self.cast(q, "float64"), self.cast(k, "float64")
        x = self.product(q, self.turned(k))
        return x if self.flag(4) else self.push("scale", [x], 1 / math.sqrt(self.d), "*")

    def weights(self, x: Tensor) -> Tensor:
        kind = self.c.one_of(["softmax", "softmax", "weights", "formula"])
        if kind == "weights":
            dtype = "float64" if x.dtype == "float64" else "float32"
            return self.push("weights", [x], dtype, dtype=dtype)
        return (
            self.push("softmax", [x]) if kind == "softmax" else self.push("quotient", [self.push("exponentials", [x])])
        )

    def attention(self) -> Tensor:
        p = self.weights(self.several(self.scores(), 4))
        if self.flag(12):
            p = self.changed(p)  # no attention
        if self.s == self.t and self.flag(40):
            return self.product(p, self.c.one_of([p, self.turned(p)]))
        v = self.shared(*self.heads(self.t, self.e))
        p = self.cast(p, v.dtype)
        return self.product(p, v) if not self.flag(8) else self.product(self.turned(v), self.turned(p))

    def call(self) -> Tensor:
        """The library's own."""
        q = self.given((*self.leading, self.s, self.d), self.dtype)
        leading, grouped = self.leading, False
        if len(leading) == 2 and self.flag(3):
            share = self.c.one_of([g for g in range(1, leading[1] + 1) if leading[1] % g == 0])
            leading, grouped = (leading[0], leading[1] // share), True
        k, v = self.given((*leading, self.t, self.d), self.dtype), self.given((*leading, self.t, self.e), self.dtype)
        scale = self.c.one_of([None, None, 0.3])
        causal = self.flag(3) and self.s <= self.t
        mask = []
        if not causal and self.flag():
            shape = (*self.part_of(self.leading or (1,)), *self.c.one_of([(self.s, self.t), (1, self.t), (self.s, 1)]))
            mask = [self.given(shape[-2:] if not self.leading else shape, self.c.one_of(["bool", self.dtype]))]
        return self.push("sdpa", [q, k, v, *mask], causal, scale, grouped, shape=(*q.shape[:-1], self.e), dtype=q.dtype)

    def reduced(self) -> Tensor:
        """A product whose rows or columns are reduced."""
        x = self.several(self.scores(), 3)
        axis, keep = self.c.one_of([-1, -1, -2]), self.flag()
        shape = list(x.shape)
        shape[axis] = 1
        y = self.push(self.c.one_of(["sum", "mean", "amax", "amin", "logsumexp"]), [x], axis, True, shape=shape)
        if keep and self.flag():
            return self.push("subtract", [x, y])
        return self.push("add", [y, self.operand(y.shape)]) if keep else self.push("tanh", [y])

    def joined(self, y: Tensor) -> Tensor:
        """Its heads behind one another."""
        return self.push("joined", [y], shape=(*y.shape[:-3], y.shape[-2], y.shape[-3] * y.shape[-1]))

    def run(self) -> TorchProgram:
        form = self.c.one_of(["attention"] * 5 + ["call"] * 2 + ["scores", "reduced"])
        y = getattr(self, form)()
        if form == "scores":
            y = self.several(y, 5)
        elif form != "reduced" and self.flag():
            y = self.joined(y) if self.leading and self.flag() else self.changed(y)
        return _program([y])


def draw_attention(c: Choices) -> TorchProgram:
    return AttentionDrawing(c).run()
