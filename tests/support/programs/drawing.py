"""Random programs: steps that are drawn one after the other, each on the values so far."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from kinds import np_dtype

from .attention import draw_attention
from .autograd_steps import OWN
from .interfaces import ARGUMENTS, EXTRAS, RESULTS, SETS, SETS_IN, Interface
from .operations import COMPARISONS, FUNCTIONS
from .profiles import BASES, Profile
from .program import Program, Step, value_of
from .sized import SIZED
from .values import HALF, Unfit, Value


class Choices(Protocol):
    """Where choices come from: a seed, or hypothesis."""

    def integer(self, low: int, high: int) -> int: ...  # both included
    def one_of(self, things: Sequence[Any]) -> Any: ...


class Seeded:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def one_of(self, things: Sequence[Any]) -> Any:
        return things[int(self._random.random() * len(things))]


class Drawing:
    """A program that grows by random steps."""

    def __init__(self, c: Choices, profile: Profile, bases: Sequence[tuple[int, int]]) -> None:
        self.c, self.profile = c, profile
        self.values: list[Value] = []
        self.program = Program([])
        self._inputs(*c.one_of(bases))

    def flag(self, one_in: int = 2) -> bool:
        return self.c.integer(1, one_in) == 1

    def _inputs(self, m: int, n: int) -> None:
        shapes = [(m, n)] * 6 + [(n,), (m, 1), (1, n), (n, m), (2, m, n), ()]
        for i in range(self.c.integer(1, 1 if self.profile.layers else 4)):
            shape = self.c.one_of(shapes if i else shapes[: 1 if self.profile.layers else 11])
            dtype = self.c.one_of(self.profile.dtypes)
            self.program.inputs.append(self._laid_out(self._array(shape, dtype)))
        if "take" in self.profile.kinds:
            dtype = self.c.one_of(["int64", "int32"])
            self.program.inputs.append(np.array([self.c.integer(-1, 1) for _ in range(3)], dtype))
        self.values = self.program.input_values()

    def _array(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        period = [self.c.integer(-16, 16) for _ in range(self.c.one_of([5, 7, 11, 13]))]
        divisor = 1 if self.profile.whole or not dtype.startswith(("f", "b")) else 8
        array = np.resize(np.array(period) / divisor / (4 if divisor == 1 and self.profile.whole else 1), shape)
        return np.asarray(np.rint(array) if divisor == 1 else array, np_dtype(dtype))

    def _laid_out(self, x: np.ndarray) -> np.ndarray:
        if x.ndim == 0 or not self.flag(6):
            return x
        if x.ndim > 1 and self.flag():
            return np.ascontiguousarray(x.T).T
        owner = np.full([e * 2 for e in x.shape], 77, x.dtype)
        view = owner[tuple(slice(None, None, self.c.one_of([2, -2])) for _ in x.shape)]
        view[...] = x
        return view

    def push(self, op: str, arguments: Sequence[int], *constants: Any) -> int:
        step = Step(op, tuple(arguments), constants)
        value = value_of(step, self.values)
        self.program.steps.append(step)
        self.values.append(value)
        return len(self.values) - 1

    # What a step reads: recent values more often than others.

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> int:
        numbers = [i for i, v in enumerate(self.values) if fits(v)]
        if not numbers:
            raise Unfit
        return int(self.c.one_of(numbers[-3:] if self.flag() else numbers))

    def number(self) -> int:
        return self.pick(lambda v: v.dtype != "bool")

    def partner(self, i: int) -> int:
        shape = self.values[i].shape

        def fits(y: Value) -> bool:
            pairs = zip(shape[::-1], y.shape[::-1], strict=False)
            return y.dtype != "bool" and all(m == n or 1 in (m, n) for m, n in pairs)

        return self.pick(fits)

    def axes(self, i: int) -> Any:
        ndim = len(self.values[i].shape)
        if ndim == 0 or self.flag(4):
            return None
        chosen = sorted({self.c.integer(0, ndim - 1) for _ in range(self.c.one_of([1, 1, 1, 2]))})
        return chosen[0] if len(chosen) == 1 else tuple(chosen)

    def step(self) -> None:
        """A step or two, or none where what was drawn does not fit."""
        getattr(self, "_" + self.c.one_of(self.profile.kinds))()

    def _sized(self) -> None:
        self.push(self.c.one_of(list(SIZED)), [self.pick()])

    def _own(self) -> None:
        self.push(self.c.one_of(list(OWN)), [self.number()])

    def interface(self) -> Interface:
        """How the program is called."""
        arrays = [i for i, x in enumerate(self.program.inputs) if x.ndim]
        extras = [(self.c.one_of(list(EXTRAS)), self.c.one_of(arrays)) for _ in range(self.c.integer(0, 3))]
        argument, result = self.c.one_of(list(ARGUMENTS)), self.c.one_of(list(RESULTS))
        own = [*SETS.values(), *SETS_IN[argument] * 3]
        sets = {self.c.one_of(own): self.c.integer(0, 5) for _ in range(self.c.integer(1, 4) * self.profile.sets)}
        return Interface(argument, result, tuple(extras), tuple(sets.items()))

    def _unary(self) -> None:
        functions = ["negative", "absolute", "tanh", "sin", "square", "exp", "cos", "arctan", "relu", "sqrt"]
        rarer = ["log", "log1p", "expm1", "arcsinh", "clip", "power"]
        self.push(self.c.one_of(rarer if self.flag(4) else functions), [self.number()])

    def _exact(self) -> None:
        self.push(self.c.one_of(["negative", "absolute", "relu", "square", "sign", "floor", "rint"]), [self.number()])

    def _function(self) -> None:
        self.push(self.c.one_of(list(FUNCTIONS)), [self.number()])

    def _binary(self) -> None:
        x = self.number()
        y = self.partner(x)
        if x == y and self.flag():
            y = self.partner(x)
        pair = [x, y] if self.flag() else [y, x]
        ops = ["add", "subtract", "multiply", "maximum", "minimum", *([] if self.profile.whole else ["divide"])]
        if not self.profile.whole and self.flag(8):
            ops = ["hypot", "arctan2"]
        self.push(self.c.one_of(ops), pair)

    def _broadcast(self) -> None:
        """Functions of a value that is small for what reads them, so that computing them there costs more."""
        x = self.pick(lambda v: v.is_float and v.array.ndim > 0)
        shape = self.values[x].shape

        def is_small(y: Value) -> bool:
            pairs = zip(shape[::-1], y.shape[::-1], strict=False)
            return y.is_float and y.array.size < math.prod(shape) and all(n in (m, 1) for m, n in pairs)

        y = self.pick(is_small) if self.flag() else self.push("max", [x], self.axes(x), True)
        for _ in range(self.c.integer(1, 8)):
            y = self.push(self.c.one_of(["tanh", "sin", "cos", "arctan", "exp"]), [y])
        self.push(self.c.one_of(["add", "subtract", "multiply", "maximum"]), [x, y])

    def _scale(self) -> None:
        c = self.c.one_of([2, -1, 3, 1] if self.profile.whole else [2, -1, 0.5, 1.1, 1.5, 0.3])
        self.push("scale", [self.number()], c, self.c.one_of("+*-"))

    def _kept(self) -> None:
        x = self.pick(lambda v: v.is_float and v.array.ndim > 0)
        self.push("kept", [x], self.c.integer(0, self.values[x].array.ndim - 1), self.c.integer(0, 99))

    def _compare(self) -> None:
        x = self.pick(lambda v: v.error == 0)
        operator = self.c.one_of(list(COMPARISONS))
        if self.flag() and self.values[x].dtype != "bool":
            self.push("threshold", [x], self.c.one_of([0, 1, -1]), operator)
        else:
            shape = self.values[x].shape
            self.push("compare", [x, self.pick(lambda v: v.error == 0 and v.shape == shape)], operator)

    def _logical(self) -> None:
        x = self.pick(lambda v: v.dtype == "bool")
        if self.flag(3):
            self.push("not", [x])
        else:
            shape = self.values[x].shape
            y = self.pick(lambda v: v.dtype == "bool" and v.shape == shape)
            self.push("logical", [x, y], self.c.one_of("&|^"))

    def _select(self) -> None:
        m = self.pick(lambda v: v.dtype == "bool")
        shape = self.values[m].shape
        x = self.pick(lambda v: v.shape == shape)
        y = self.pick(lambda v: v.shape in (shape, ()))
        self.push("where", [m, x, y] if self.flag() else [m, y, x])

    def _reduce(self) -> None:
        x = self.pick()
        names = ["any", "all", "sum", "sum"]
        if self.values[x].dtype != "bool":
            names = ["sum", "sum", "mean", "max", "min", *(["argmax", "argmin"] if not self.values[x].error else [])]
            names += ["prod"] if self.flag(4) else []
        self.push(self.c.one_of(names), [x], self.axes(x), self.flag())

    def _normalise(self) -> None:
        """What the value's own rows, columns or all of it read again: x / x.sum(axis)."""
        x = self.number()
        source = x
        if self.flag():  # something positive
            source = self.push(self.c.one_of(["square", "absolute", "exp"]), [x])
        r = self.push(self.c.one_of(["sum", "mean", "max"]), [source], self.axes(source), True)
        if self.flag(3):
            r = self.push("scale", [r], 1, "+")
        if self.flag(4):
            r = self.push("sqrt", [r])
        self.push("divide", [x, r])

    def _centre(self) -> None:
        x = self.number()
        r = self.push(self.c.one_of(["mean", "max", "sum", "min"]), [x], self.axes(x), True)
        self.push(self.c.one_of(["subtract", "subtract", "multiply", "add"]), [x, r])

    def _beside(self) -> None:
        """Rows that are reduced, and sums of the columns of what has their shape: as gradients of weights are."""
        x = self.pick(lambda v: v.dtype != "bool" and len(v.shape) > 1 and v.array.size >= 64 * 128)
        shape = self.values[x].shape
        r = self.push(self.c.one_of(["mean", "max", "sum", "min"]), [x], -1, True)
        if self.flag():
            self.push(self.c.one_of(["subtract", "multiply", "add"]), [x, r])
        summed = self.pick(lambda v: v.is_float and v.shape == shape)
        axes = tuple(range(len(shape) - 1)) if self.flag() else 0
        self.push("sum", [summed], axes, self.flag())

    def _nested(self) -> None:
        """A reduction of another one's results, or of all of a value whose rows are reduced, too."""
        x = self.pick(lambda v: v.dtype != "bool" and len(v.shape) > 1)
        names = ["max", "min", "sum", "mean"]
        name, keepdims = self.c.one_of(names), self.flag()
        inner = self.push(name, [x], self.c.one_of([-1, 0]), keepdims)
        if self.flag():
            self.push(self.c.one_of(names), [x], None, False)
        else:
            self.push(name if self.flag() else self.c.one_of(names), [inner], self.c.one_of([-1, 0]), keepdims)

    def _reduced(self, i: int) -> int:
        """A reduction of a value or of its square, and perhaps a small kernel after it."""
        if self.c.integer(1, 10) <= 6:
            i = self.push("multiply", [i, i])
        axis = self.c.one_of([0, 1, None, None])
        i = self.push(self.c.one_of(["sum", "mean", "mean"]), [i], axis, axis is not None)
        return self.push("sqrt", [i]) if self.c.integer(1, 10) <= 7 and self.values[i].array.min() > 0.1 else i

    def _mixed(self, x: int, y: int) -> int:
        if x == y or self.c.integer(1, 10) <= 6:
            y = self._reduced(y)
        return self.push(self.c.one_of(["add", "subtract", "multiply", "divide"]), [x, y])

    def layers(self) -> None:
        """Several normalisations of a value, their products, and reductions of these that all read again: kernels that
        may neither be merged nor ordered carelessly."""
        before, last = [], [0]
        for _ in range(self.profile.layers):
            layer: list[int] = []
            for _ in range(self.c.integer(3, 4)):
                pool = last + before if self.flag(3) else last
                for _ in range(4):  # until one fits
                    try:
                        layer.append(self._mixed(self.c.one_of(pool), self.c.one_of(pool)))
                        break
                    except Unfit:
                        pass
            before, last = last, layer or last
        for i in last[1:]:
            with contextlib.suppress(Unfit):
                last[0] = self.push(self.c.one_of(["add", "subtract"]), [last[0], i])

    def _round(self) -> None:
        """To a half type and back."""
        x = self.number()
        wide = self.values[x].dtype
        h = self.push("cast", [x], self.c.one_of(HALF))
        if not self.flag(4):
            self.push("cast", [h], wide if wide in ("float32", "float64") else "float32")

    def _cast(self) -> None:
        self.push("cast", [self.pick()], self.c.one_of(self.profile.casts))

    def _composite(self) -> None:
        x = self.number()
        name = self.c.one_of(
            ["softmax", "log_softmax", "logsumexp", "layernorm", "var", "std", "gelu", "silu", "softplus"]
        )
        if name in FUNCTIONS:
            self.push(name, [x])
        elif name in ("softmax", "log_softmax", "layernorm"):
            self.push(name, [x], self.axes(x))
        else:
            self.push(name, [x], self.axes(x), self.flag())

    def _head(self) -> None:
        """What a network's layers and its loss are made of, beside products."""
        x = self.pick(lambda v: v.is_float and v.array.ndim > 1 and v.array.size <= 4096)
        shape = self.values[x].shape
        kind = self.c.one_of(["rmsnorm", "attention", "cross_entropy"])
        if kind == "rmsnorm":
            self.push(kind, [x, self.pick(lambda v: v.is_float and v.shape == shape[-1:])])
        elif kind == "attention":
            k, v = (self.pick(lambda v: v.is_float and v.shape == shape) for _ in range(2))
            self.push(kind, [x, k, v], self.flag())
        else:
            x = self.pick(lambda v: v.is_float and v.error == 0 and v.array.ndim == 2)
            targets = self.push("argmax", [x], 1, False)
            self.push(kind, [self.pick(lambda v: v.is_float and v.shape == self.values[x].shape), targets])

    def _matmul(self) -> None:
        """With its own transpose, of which the product is one of rows, or with anything that fits."""
        x = self.pick(lambda v: v.is_float and v.array.ndim == 2 and v.array.size <= 4096)
        t = self.push("transpose", [x], (1, 0))
        self.push("matmul", [x, t] if self.flag() else [t, x])

    def _convolve(self) -> None:
        x = self.pick(lambda v: v.is_float and v.array.ndim == 2 and v.array.size <= 4096)
        y = self.pick(lambda v: v.is_float and v.array.ndim == 2)
        window = tuple(slice(0, self.c.integer(1, 3)) for _ in range(2))
        self.push("convolve", [x, self.push("slice", [y], window)])

    def _scan(self) -> None:
        x = self.pick(lambda v: v.is_float and v.array.ndim > 0)
        self.push("cumsum", [x], self.c.integer(0, self.values[x].array.ndim - 1))

    def _join(self) -> None:
        """Two values, the halves of one in another order, neighbours in pairs, or a border."""
        x = self.pick(lambda v: 0 < v.array.ndim < 4)
        shape = self.values[x].shape
        axis = self.c.integer(0, len(shape) - 1)
        kind = self.c.one_of(["any", "any", "halves", "pairs", "border"])
        if kind == "border":
            widths = [(self.c.integer(0, 1), self.c.integer(0, 1)) if n else (0, 0) for n in shape]
            self.push("pad", [x], widths, self.c.one_of(["constant", "edge"]))
        elif kind == "any":
            others = [v for v in self.values if len(v.shape) == len(shape)]
            fits = [
                v
                for v in others
                if all(m == n or d == axis for d, (m, n) in enumerate(zip(v.shape, shape, strict=True)))
            ]
            y = self.c.one_of(fits)
            self.push("concatenate", [x, next(i for i, v in enumerate(self.values) if v is y)], axis)
        else:
            self._halves(x, axis, kind == "pairs" and shape[axis] % 2 == 0)

    def _halves(self, x: int, axis: int, in_pairs: bool) -> None:
        shape = self.values[x].shape
        half = shape[axis] // 2
        ranges = (slice(1, None, 2), slice(0, None, 2)) if in_pairs else (slice(half, None), slice(0, half))
        parts = [self.push("slice", [x], (slice(None),) * axis + (r,)) for r in ranges]
        if self.values[x].dtype != "bool" and self.flag():
            parts[0] = self.push("negative", [parts[0]])
        if in_pairs:
            self.push("reshape", [self.push("stack", parts, axis + 1)], shape)
        else:
            self.push("concatenate", parts, axis)
        if self.values[x].dtype != "bool" and self.flag():
            self.push("add", [len(self.values) - 1, x])

    def _take(self) -> None:
        self.push("take", [self.pick(), self._indices()])

    def _along(self) -> None:
        x = self.pick(lambda v: v.array.ndim > 0)
        self.push("along", [x, self._indices()], self.c.integer(0, self.values[x].array.ndim - 1))

    def _sort(self) -> None:
        self.push("sort", [self.pick()])

    def _write(self) -> None:
        kind = self.c.one_of(["add_to", "add_to", "set_part", "set_masked", "set_before", "set_in_copies"])
        x = self.pick(lambda v: v.array.ndim > 0)
        if kind in ("set_before", "set_in_copies"):
            self.push(kind, [x])
            return
        y = self.push("threshold", [x], 0, "<") if kind == "set_masked" else self.pick()
        self.push(kind, [x, y])

    def _indices(self) -> int:
        given = len(self.program.inputs) - 1
        return given if self.flag() else self.push("negative", [given])

    def _view(self) -> None:
        x = self.pick()
        shape = self.values[x].shape
        kind = self.c.one_of(["transpose", "transpose", "reshape", "slice", "slice", "reverse", "broadcast", "newaxis"])
        if kind == "transpose" and len(shape) > 1:
            axes = list(range(len(shape)))[::-1]
            if len(shape) > 2 and self.flag():
                axes = axes[1:] + axes[:1]
            self.push("transpose", [x], tuple(axes))
        elif kind == "reshape":
            m, n = shape[-2:] if len(shape) > 1 else (1, math.prod(shape))
            options = [(-1,), shape[::-1], (1, *shape), (*shape, 1), (n, -1), (m, n)]
            to = self.c.one_of([t for t in options if math.prod(shape) % max(1, abs(math.prod(t))) == 0])
            if math.prod(shape) and (-1 in to or math.prod(to) == math.prod(shape)):
                self.push("reshape", [x], to)
        elif kind in ("slice", "reverse", "newaxis"):
            index = [self._range(e) if kind == "slice" else slice(None) for e in shape]
            if kind == "reverse" and index:
                index[self.c.integer(0, len(index) - 1)] = slice(None, None, -1)
            if kind == "newaxis":
                index.insert(self.c.integer(0, len(index)), None)
            self.push("slice", [x], tuple(index))
        elif kind == "broadcast":
            self.push("broadcast", [x], (self.c.integer(2, 3), *shape))

    def _range(self, extent: int) -> slice:
        kind = self.c.integer(0, 7)
        half = extent // 2
        options = [slice(None)] * 4 + [slice(0, half), slice(half, None), slice(None, None, 2), slice(1, None)]
        return options[kind]

    def outputs(self) -> list[int]:
        """What nothing else reads, and some of all."""
        first = len(self.program.inputs)
        read = {a for s in self.program.steps for a in s.arguments}
        sinks = [i for i in range(first, len(self.values)) if i not in read]
        some = [self.c.integer(first, len(self.values) - 1) for _ in range(self.c.integer(0, 3))]
        chosen = sinks if self.flag() else [self.c.one_of(sinks)]
        return list(dict.fromkeys((chosen + some)[:8]))


def draw_program(c: Choices, profile: Profile, bases: Sequence[tuple[int, int]] = BASES) -> Program:
    if profile.of_torch:
        return draw_attention(c)
    drawing = Drawing(c, profile, profile.bases or bases)
    if drawing.profile.layers:
        drawing.layers()
        drawing.program.outputs = [len(drawing.values) - 1]
    else:
        draw_steps(drawing)
    if profile.interfaces:
        drawing.program.interface = drawing.interface()
    return drawing.program


def draw_steps(drawing: Drawing) -> None:
    """Draws as many steps as the profile says, and which values are results."""
    low, high = drawing.profile.steps
    for _ in range(drawing.c.integer(low, high) * (3 if drawing.flag(12) else 1)):
        with contextlib.suppress(Unfit):
            drawing.step()
    while not drawing.program.steps:
        drawing.push("slice", [0], ())
    drawing.program.outputs = drawing.outputs()
