"""The nodes of a graph while it grows."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .. import _core
from . import memory
from .heads import Heads
from .memory import DETACHED, Memory, Path
from .sizes import RecordedGraph
from .source import trace_error, user_line
from .values import Alternative, Attempt, Call, Node, Traced, WritingCall


class Nodes:
    """One graph, and the values of its nodes. `name` is the function's, for messages; an eager call names no lines; a
    graph that `runs` is computed. `recorded`: the graph, where it is recorded for calls with other sizes.
    """

    def __init__(
        self, name: str, *, eager: bool, runs: bool, attempt: Attempt | None, recorded: RecordedGraph | None
    ) -> None:
        self.name = name
        self.attempt = attempt or Attempt()
        self.graph: Any = _core.Graph() if recorded is None else recorded
        self.recorded = recorded
        self.calls: list[Call] = []
        self.library_calls: list[Callable[..., Any]] = []  # as the graph's nodes number them
        self.alternatives: list[Alternative] = []
        self.writing_calls: dict[int, WritingCall] = {}  # by the node after it
        self.is_open = True
        self.heads = Heads(self.attempt.whole)
        self.line_of: Callable[[], str] = user_line  # where an operation stands, for messages and plans
        self.module: Callable[[], str] = str  # the name of the one whose forward pass is running
        self.modules: list[str] = []  # of stages by number: the module that makes each
        self._eager = eager
        self._runs = runs
        self._differentiates = False
        self._stages = 0
        self._line = ""

    # ---- values ----

    def value(self, node: int, owner: Memory | None = None, path: Path | None = None) -> Traced:
        """The value of a node; a view shares the memory of what it looks at."""
        kind = Traced._classes[self.graph.library(node)]._made_as()
        return self._made(kind, node, Memory(node), ()) if owner is None else self._made(kind, node, owner, path)

    def copy(self, x: Traced) -> Traced:
        """A node as a value with memory of its own."""
        node = self.node(x)
        return self._made(type(x), node, Memory(node))

    def alias(self, x: Traced, *, is_view: bool = True) -> Traced:
        """A node as another value of x's memory; not `is_view`: it may be a copy."""
        return self._made(type(x), self.node(x), x._memory, x._path if is_view else None)

    def like(self, value: Traced, x: Traced) -> Traced:
        """A value of no library, which is made of constants only, with the methods that x has."""
        return self._made(type(x), self.node(value), Memory(self.node(value)))

    def become(self, x: Traced, value: Traced) -> None:
        """x is another value from now on, of the same elements."""
        object.__setattr__(x, "_node", self.node(value))
        if x._path == ():
            x._memory.node = self.node(value)

    def of_library(self, value: Traced, library: str) -> Traced:
        """A value with the methods of that library's arrays."""
        return self._made(Traced._classes[library]._made_as(), self.node(value), Memory(self.node(value)))

    def _made(self, kind: type[Traced], node: int | str, owner: Memory, path: Path | None = ()) -> Traced:
        value = kind.__new__(kind)
        made = object.__setattr__
        made(value, "_tracer", self)
        made(value, "_node", node)
        made(value, "_memory", owner)
        made(value, "_version", owner.version)
        made(value, "_path", path)
        return value

    def node(self, value: Traced, line: str | None = None) -> int:
        """The node of a value that may be used here and now; `line` is for messages, the user's present one by default.

        Raises:
            TraceError: it belongs to another trace, or its memory was written to through another value.
        """
        if value._tracer is not self or not self.is_open:
            what = f"a value of {value._tracer.name} is used outside its trace"
            raise trace_error(what, "return it, or pass it as an argument", line)
        if isinstance(value._node, str):
            raise trace_error(value._node, "", line)
        if value._version != value._memory.version:
            self._look_again(value, line)
        return value._node

    def _look_again(self, value: Traced, line: str | None) -> None:
        """A value whose memory was written to through another one: what is there now."""
        owner = value._memory
        if owner.node is None or value._path is None:
            what = f"this value shares memory with one that was changed in place ({owner.line})"
            raise trace_error(what, "write x = x + y there instead of x += y", line)
        node: Any = owner.node
        with self.with_gradients_on():
            for kind, argument in value._path:
                node = self._detached(node) if kind == DETACHED else self._build(kind, node, argument)
        object.__setattr__(value, "_node", node)
        object.__setattr__(value, "_version", owner.version)

    # ---- nodes ----

    def with_gradients_on(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which what is built is no constant, although the function turns torch's grad mode off."""
        return sys.modules["torch"].enable_grad() if self._differentiates else contextlib.nullcontext()

    def constant(self, x: Traced) -> Traced:
        """The value x, which gradients take for a constant; it shares x's memory."""
        path = None if x._path is None else (*x._path, (DETACHED, None))
        made = self._detached(self.node(x))
        return self._made(type(x), made, x._memory, path)

    def _detached(self, node: int) -> int:
        """A view of all of a node, which is a constant."""
        made = self._call("reshape", node, self.graph.shape(node))
        self._build("stop_gradient", made)
        self.heads.add_constant(made)
        return made

    def add(self, kind: str, *arguments: Any) -> Traced:
        """Calls a method of the graph, with nodes in place of values."""
        return self._result(self._call(kind, *arguments), arguments)

    def _result(self, node: int, arguments: Sequence[Any]) -> Traced:
        """The value of a node that is made of arguments: constants of torch's are torch's, too."""
        listed = (v for a in arguments for v in (a if isinstance(a, (list, tuple)) else (a,)))
        kind = next((type(v) for v in listed if isinstance(v, Traced) and v._library == "torch"), None)
        return self.value(node) if kind is None else self._made(kind, node, Memory(node))

    def view(self, kind: str, x: Traced, argument: Any) -> Traced:
        """Does what `add` does, for a view of x."""
        node = self._call(kind, x, argument)
        if kind == "reshape":  # without -1
            argument = list(self.graph.shape(node))
        self.heads.add_view(node, self.node(x), kind, argument)
        path = (*x._path, (kind, argument)) if x._path is not None and self._is_view(kind, x, argument) else None
        return self._made(type(x), node, x._memory, path)

    def _is_view(self, kind: str, x: Traced, argument: Any) -> bool:
        """Whether a view shares x's memory however that lies: where it does not fit, libraries copy elements."""
        if kind == "slice":
            return all(step == 1 for _, _, step in argument)
        if kind == "reshape":
            return memory.without_ones(x.shape) == memory.without_ones(argument) or bool(self.is_c_order(x))
        return kind == "transpose"

    def is_c_order(self, x: Traced) -> bool | None:
        """Whether x lies in C order, as an input or a view of one; None where nobody knows."""
        strides = self.strides(x)
        return None if strides is None else memory.is_c_order(x.shape, strides)

    def strides(self, x: Traced) -> Sequence[int] | None:
        """Those of x in elements, as an input or a view of one; None where nobody knows."""
        whole = x._memory.node
        if x._memory.strides is None or x._path is None or not isinstance(whole, int):
            return None
        return memory.strides_of(x._path, self.graph.shape(whole), x._memory.strides)

    def library_call(
        self,
        name: str,
        run: Callable[..., Any],
        values: Sequence[Traced],
        types: Sequence[tuple[str, tuple[int, ...]]],
        flops: int = 0,
    ) -> list[Traced]:
        """What a function of the array library computes.

        Args:
            name: of the function, for people: "torch.sort".
            run: called with an array for each of values when the kernels run; returns a sequence of results. Where it
                has a method `into`, that is called: with a dict of those results that are read, by number, as arrays
                to write to, None for one that it makes itself; it returns the dict with those, too.
            values: what it reads, at least one.
            types: (dtype, shape) of each result.
            flops: of its products; 0 where they are not known.
        """
        nodes = [self._stored(self.node(v)) for v in values]
        with self.stage(name.rpartition(".")[2]):
            made = self._build("library_call", nodes, types, name, len(self.library_calls), flops)
        self.library_calls.append(run)
        return [self._result(n, [values]) for n in made]

    def library_alternative(
        self,
        name: str,
        run: Callable[..., Any],
        values: Sequence[Traced],
        made: Traced,
        first: int,
        order: Sequence[int] = (),
    ) -> None:
        """Says that a function of the array library computes `made`, too, whose stages are those from `first` on; its
        axes lie in memory in that `order`, if not in C's."""
        nodes = [self._stored(self.node(v)) for v in values]
        if max(nodes) < self.node(made):
            self.graph.library_alternative(nodes, self.node(made), name, len(self.library_calls), first, order)
            self.library_calls.append(run)
            self.alternatives.append(Alternative(self.node(made), tuple(nodes), run, tuple(order)))

    def itself(self, x: Traced) -> Traced:
        """A view of all of x: another node, of which gradients can be told apart."""
        made = self.view("reshape", x, x.shape)
        self.heads.forget_view(self.node(made))
        return made

    def orders(self) -> dict[int, tuple[int, ...]]:
        """By node, the order in which its axes lie in memory where a function of the array library makes it."""
        return {alternative.result: alternative.order for alternative in self.alternatives if alternative.order}

    def _stored(self, node: int) -> int:
        """The node, or what a kernel makes of a float argument: libraries take no scalars of the graph."""
        base = self.graph.node(node)
        while base["op"] in ("reshape", "broadcast", "slice", "transpose"):
            base = self.graph.node(base["arguments"][0])
        return node if base.get("parameter", -1) < 0 else self._call("map", "positive", [node])

    def _call(self, kind: str, *arguments: Any) -> int:
        return int(self._build(kind, *arguments))

    def _build(self, kind: str, *arguments: Any) -> Any:
        """What a method of the graph gives."""
        watch = self.attempt.watch
        if watch is None:
            return self._built(kind, *arguments)
        watch.pause((kind, *(a for a in arguments if isinstance(a, str))))
        try:
            return self._built(kind, *arguments)
        finally:
            watch.resume()

    def _built(self, kind: str, *arguments: Any) -> Any:
        nodes = [self._nodes(a) for a in arguments]
        if self._stages == 0 and not self._eager:
            self._line = self.line_of()
            self.graph.set_source(self._line)
        try:
            made = getattr(self.graph, kind)(*nodes)
            if self._stages == 0 and self.plans:
                self._note_module()
            if self._differentiates and not sys.modules["torch"].is_grad_enabled():
                for node in made if isinstance(made, list) else [made] if isinstance(made, int) else ():
                    self.graph.stop_gradient(node)
                    self.heads.add_constant(node)
            return made
        except (ValueError, TypeError, OverflowError) as error:
            text = str(error).removeprefix("kfusion.")
            raise type(error)(f"kfusion.{text}" + (f"\n  {self._line}" if self._line else "")) from None

    def _nodes(self, argument: Any) -> Any:
        """Nodes in place of values, of lists of them too."""
        if type(argument) is list and argument and isinstance(argument[0], Traced):
            return [self.node(a) for a in argument]
        return self.node(argument) if isinstance(argument, Traced) else argument

    # ---- stages, and the end ----

    def record(self, name: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Remembers that a call made `result`; of calls within calls the outermost comes last."""
        if isinstance(result, Traced):
            given = {k: Node(self.node(v)) if isinstance(v, Traced) else v for k, v in arguments.items()}
            self.calls.append(Call(name, given, self.node(result)))

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What is built inside is one stage. Stages do not nest: the outermost name holds."""
        if self._stages == 0 and not self._eager:
            self._line = self.line_of()
        self.graph.begin_stage(name, self._line)
        self._stages += 1
        try:
            yield
        finally:
            self._stages -= 1
            self.graph.end_stage()
            if self._stages == 0 and self.plans:
                self._note_module()

    @property
    def plans(self) -> bool:
        """Whether the graph is for a plan only: nothing is computed with it."""
        return not (self._runs or self._eager)

    def _note_module(self) -> None:
        """Which module has made the last stage, if that is new."""
        if len(self.modules) < (stages := self.graph.stages()):
            self.modules += [self.module()] * (stages - len(self.modules))

    def close(self, outputs: Sequence[tuple[str, Traced]]) -> None:
        """Sets the results; values are of no use afterwards."""
        self.graph.set_outputs([(name, self.node(value, "")) for name, value in outputs])
        self.is_open = False
        if self.recorded is not None:
            self.recorded.close()
