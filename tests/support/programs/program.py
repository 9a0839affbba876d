"""Programs of arrays: the text of a Python function, its inputs, and what its results must be."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes  # noqa: F401  # numpy.dtype("bfloat16")
import numpy as np

from . import writing
from .autograd_steps import OWN
from .interfaces import Box, Interface
from .operations import MAPS
from .reductions import REDUCTIONS
from .sized import SIZED, into_zeros
from .values import MAX_ELEMENTS, Unfit, Value

OPERATIONS = {**MAPS, **REDUCTIONS, **SIZED, **OWN}


@dataclass(frozen=True)
class Step:
    """A line: an operation, the numbers of the values that it reads, and constants."""

    op: str
    arguments: tuple[int, ...]
    constants: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Language:
    """How a library writes the steps: the text of each operation, modules, and functions that the texts call."""

    imports: tuple[str, ...]
    texts: Mapping[str, str | Callable[..., str]]
    functions: tuple[Callable[..., Any], ...]

    @property
    def name(self) -> str:
        """By which texts know the library."""
        return self.imports[0].split()[-1]

    def line(self, step: Step, names: Sequence[str]) -> str:
        text = self.texts[step.op]
        arguments = [names[a] for a in step.arguments]
        return text.format(*arguments) if isinstance(text, str) else text(*arguments, *step.constants)

    def called_in(self, source: str) -> list[str]:
        """The texts of the functions that a source calls."""
        return [inspect.getsource(f) for f in self.functions if f"{f.__name__}(" in source]


NUMPY = Language(
    ("import numpy as np", "import kfusion as kf"),
    {name: o.text for name, o in OPERATIONS.items()},
    (*writing.FUNCTIONS, into_zeros),
)


@dataclass
class Program:
    """`inputs` are arrays of their dtypes, laid out anyhow; values are numbered: the inputs, then a step each. With a
    `interface` it is a function of one argument that holds the arrays."""

    inputs: list[np.ndarray]
    steps: list[Step] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    interface: Interface | None = None

    def input_values(self) -> list[Value]:
        wide = {"b": np.bool_, "i": np.int64}
        return [Value(x.astype(wide.get(x.dtype.kind, np.float64)), str(x.dtype)) for x in self.inputs]

    def values(self) -> list[Value]:
        """Raises Unfit where a step says nothing."""
        values = self.input_values()
        for step in self.steps:
            values.append(value_of(step, values))
        return values

    @property
    def names(self) -> list[str]:
        letters = "abcdefgh"[: len(self.inputs)]
        return [*letters, *(f"v{i}" for i in range(len(self.inputs), len(self.inputs) + len(self.steps)))]

    def source(self, language: Language = NUMPY) -> str:
        """The function's text."""
        names, lines = self.names, []
        for name, step in zip(names[len(self.inputs) :], self.steps, strict=True):
            lines.append(f"    {name} = {language.line(step, names)}")
        results = ", ".join(names[i] for i in self.outputs)
        comma = "," if len(self.outputs) == 1 else ""
        given = names[: len(self.inputs)]
        plain = "\n".join([f"def f({', '.join(given)}):", *lines, f"    return {results}{comma}", ""])
        return (
            plain
            if self.interface is None
            else f"{plain}\n\n{self.interface.source(given, len(self.outputs), language.name)}"
        )

    def function(self, language: Language = NUMPY, scope: dict[str, Any] | None = None) -> Callable[..., Any]:
        """What the text defines; `scope` are names that it may use, and gets those that it defines."""
        scope = {} if scope is None else scope
        scope |= {f.__name__: f for f in (*language.functions, Box)}
        exec("\n".join([*language.imports, self.source(language)]), scope)
        return scope["f" if self.interface is None else "called"]

    def needed(self) -> Program:
        """Without the steps and inputs that no result needs."""
        n = len(self.inputs)
        used = set(self.outputs) | ({i for _, i in self.interface.extras} if self.interface else set())
        for i in reversed(range(len(self.steps))):
            if n + i in used:
                used.update(self.steps[i].arguments)
        kept = sorted(used)
        moved = {old: new for new, old in enumerate(kept)}
        steps = [self.steps[i - n] for i in kept if i >= n]
        steps = [replace(s, arguments=tuple(moved[a] for a in s.arguments)) for s in steps]
        interface = self.interface and self.interface.renumbered(moved)
        inputs = [self.inputs[i] for i in kept if i < n]
        return replace(self, inputs=inputs, steps=steps, outputs=[moved[o] for o in self.outputs], interface=interface)

    def reproducer(self) -> str:
        """A script of its own."""
        lines = ["from typing import Any", "", "import ml_dtypes", *NUMPY.imports, ""]
        lines += [*NUMPY.called_in(self.source()), self.source(), *self.written_inputs()]
        arguments = ", ".join(self.names[: len(self.inputs)])
        lines += ["fused = kf.fuse(f)", f"for got, apart in zip(fused({arguments}), fused.unfused({arguments})):"]
        lines += ["    print(got, apart, sep='\\n')", f"print(fused.plan({arguments}))"]
        return "\n".join(lines)

    def written_inputs(self) -> list[str]:
        """Their assignments."""
        lines = []
        for name, x in zip(self.names, self.inputs, strict=False):
            text = np.array2string(x.astype(float), threshold=10**6, separator=",", max_line_width=10**6)
            text = re.sub(r"\s+", "", text) if x.size <= 64 else f"np.resize({list(_period(x))}, {x.shape})"
            lines.append(f"{name} = np.array({text}).reshape({x.shape}).astype('{x.dtype}')  # strides {x.strides}")
        return lines


def _period(x: np.ndarray) -> list[float]:
    flat = x.astype(float).reshape(-1)
    for p in range(1, 65):
        if np.array_equal(flat, np.resize(flat[:p], flat.shape)):
            return [float(v) for v in flat[:p]]
    return [float(v) for v in flat]


def value_of(step: Step, values: Sequence[Value]) -> Value:
    arguments = [values[a] for a in step.arguments]
    extents = itertools.zip_longest(*(v.shape[::-1] for v in arguments), fillvalue=1)
    if math.prod(map(max, extents)) > MAX_ELEMENTS:  # before anything is computed
        raise Unfit
    with np.errstate(all="ignore"):
        return OPERATIONS[step.op].value(*arguments, *step.constants)
