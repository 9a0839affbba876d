"""How functions of random programs take their arguments and return their results, and what they return of sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


# The functions and classes that programs use; their text is part of a reproducer.
@dataclass
class Box:
    first: Any
    rest: Any


class Held:
    def __init__(self, items: Any) -> None:
        self.items = items


# From arrays to an argument, and from an argument's name to the expression of its arrays.
ARGUMENTS: dict[str, tuple[Callable[[list[Any]], Any], str]] = {
    "list": (list, "held"),
    "tuple": (tuple, "held"),
    "dict": (lambda xs: dict(zip("abcdefgh", xs, strict=False)), "held.values()"),
    "nested": (lambda xs: [{"x": xs[0]}, tuple(xs[1:])], "(held[0]['x'], *held[1])"),
    "dataclass": (lambda xs: Box(xs[0], xs[1:]), "(held.first, *held.rest)"),
    "object": (lambda xs: Held(list(xs)), "held.items"),
}
# From the texts of items to that of a result, and from a result to its items.
RESULTS: dict[str, tuple[Callable[[Sequence[str]], str], Callable[[Any], list[Any]]]] = {
    "tuple": (lambda t: f"({', '.join(t)},)", list),
    "list": (lambda t: f"[{', '.join(t)}]", list),
    "dict": (lambda t: "{" + ", ".join(f"'k{i}': {x}" for i, x in enumerate(t)) + "}", lambda r: list(r.values())),
    "nested": (
        lambda t: f"({{'first': {t[0]}}}, [{', '.join(t[1:])}])",
        lambda r: [r[0]["first"], *r[1]],
    ),
    "dataclass": (lambda t: f"Box({t[0]}, ({', '.join(t[1:])}{',' * (len(t) == 2)}))", lambda r: [r.first, *r.rest]),
}
# What is returned of the extents of an array, for NumPy and for torch.
EXTRAS: dict[str, tuple[str, str]] = {
    "shape": ("{0}.shape", "{0}.shape"),
    "rows": ("{0}.shape[0]", "{0}.size(0)"),
    "number": ("{0}.shape[0] // 2 + 1.5", "{0}.shape[0] // 2 + 1.5"),
    "elements": ("{0}.size", "{0}.numel()"),
    "axes": ("{0}.ndim", "{0}.dim()"),
    "bytes": ("{0}.nbytes", "{0}.nbytes"),
    "slice": ("slice(1, {0}.shape[0])", "slice(1, {0}.shape[0])"),
    "text": ("str({0}.shape[0])", "str({0}.shape[0])"),
    "set": ("{{{0}.shape[0]}}", "{{{0}.shape[0]}}"),
    "dataclass": ("Box({0}.shape[0], [{0}.ndim])", "Box({0}.shape[0], [{0}.ndim])"),
    "arange": ("np.arange({0}.shape[0])", "torch.arange({0}.shape[0])"),
    "zeros": ("np.zeros({0}.shape)", "torch.zeros({0}.shape)"),
    "full": ("np.full(({0}.shape[0], 2), 0.5)", "torch.full(({0}.shape[0], 2), 0.5)"),
    "eye": ("np.eye({0}.shape[0])", "torch.eye({0}.shape[0])"),
    "mask": ("np.tri({0}.shape[0]) > 0", "torch.ones({0}.shape[0], {0}.shape[0]).tril() > 0"),
    "linspace": ("np.linspace(0, 1, {0}.shape[0])", "torch.linspace(0, 1, {0}.shape[0])"),
    "rows of a constant": ("TABLE[: {0}.shape[0]]", "TABLE[: {0}.shape[0]]"),
    "constant": ("np.arange(3.0)", "torch.arange(3.0)"),
    "named constant": ("TABLE", "TABLE"),
}
# What a function sets beside its results: in an object that it names, and in its argument.
SETS = {
    "attribute": "STATE.last = {0}",
    "two attributes": "STATE.before, STATE.last = STATE.last, {0}",
    "new attribute": "STATE.fresh = {0}",
    "counter": "STATE.n += 1",
    "two numbers": "STATE.rate, STATE.n = STATE.rate * 0.5 + STATE.n, STATE.n + 2",
    "log": "STATE.log[:] = [*STATE.log, {0}][-2:]",
    "entry": "STATE.named['k'] = {0}",
    "nested entry": "STATE.named.setdefault('in', {{}})['k'] = [{0}, {0}.shape]",
    "replaced dict": "STATE.named = {{**STATE.named, 'l': {0}}}",
    "rows": "STATE.rows = STATE.rows + {0}.shape[0] if {0}.ndim else 0",
    "box": "STATE.box = Box({0}, (STATE.n, None))",
    "class": "State.shared = {0}",
    "global": "globals()['LAST'] = {0}",
}
SETS_IN = {
    "list": ("held.append({0})", "held[0] = {0}", "held.insert(0, {0}); held.pop()", "held.extend([{0}, None])"),
    "tuple": ("STATE.last = {0}",),
    "dict": ("held['new'] = {0}", "held.pop('a', None)", "held['a'] = held.pop('a', {0})", "held.update(a={0}, n=3)"),
    "nested": ("held[0]['y'] = {0}", "held.append([{0}])", "held[0].pop('x', None); held[0]['z'] = {0}"),
    "dataclass": ("held.first = {0}", "held.rest = ({0}, *held.rest)", "held.more = [{0}]"),
    "object": ("held.items.append({0})", "held.n = {0}", "held.items = [held.items[0], {0}]"),
}
STATE = """class State:
    shared = None

    def __init__(self):
        self.n, self.rate, self.rows, self.last, self.before = 0, 1.0, 0, None, None
        self.log, self.named, self.box = [], {}, None


STATE = State()
LAST = None
"""
TABLE = "TABLE = {}.arange(600.0) / 8"


@dataclass(frozen=True)
class Interface:
    """An argument of all arrays, a result of the program's results, and extras of an input (by number) behind these;
    what is set, each to a result (by number).
    """

    argument: str
    result: str
    extras: tuple[tuple[str, int], ...]
    sets: tuple[tuple[str, int], ...] = ()

    def source(self, names: Sequence[str], results: int, library: str) -> str:
        """The text of `called`, a function that calls `f`."""
        column = 0 if library == "np" else 1
        made = [f"y[{i}]" for i in range(results)]
        made += [EXTRAS[kind][column].format(names[n]) for kind, n in self.extras]
        lines = [f"    {', '.join(names)}, = {ARGUMENTS[self.argument][1]}", f"    y = f({', '.join(names)})"]
        lines += [f"    {text.format(f'y[{n % results}]')}" for text, n in self.sets]
        lines += [f"    return {RESULTS[self.result][0](made)}", ""]
        return "\n".join([TABLE.format(library), *[STATE] * bool(self.sets), "", "", "def called(held):", *lines])

    def held(self, arrays: Sequence[Any]) -> Any:
        """The argument."""
        return ARGUMENTS[self.argument][0](list(arrays))

    def items(self, result: Any) -> list[Any]:
        """The program's results, and the extras."""
        return RESULTS[self.result][1](result)

    def renumbered(self, inputs: Mapping[int, int]) -> Interface:
        """With other numbers for inputs."""
        return replace(self, extras=tuple((kind, inputs[n]) for kind, n in self.extras))

    def smaller(self) -> Iterator[Interface]:
        """With fewer extras, or simpler."""
        yield from (replace(self, extras=tuple(e for e in self.extras if e is not left)) for left in self.extras)
        yield from (replace(self, sets=tuple(s for s in self.sets if s is not left)) for left in self.sets)
        if any("held" in text for text, _ in self.sets):
            return
        if self.argument != "list":
            yield replace(self, argument="list")
        if self.result != "tuple":
            yield replace(self, result="tuple")
