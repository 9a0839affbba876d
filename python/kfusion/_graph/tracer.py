"""What traces a function: a graph with its inputs, the random numbers of its calls, and what gradients need."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._devices import running
from .._spec import FLOATS
from . import library_adjoints
from . import number as numbers
from .inputs import Inputs
from .memory import Memory
from .number import Instruction, Number, is_number, parameter_of
from .seeds import SEED, Draw, LibraryDraws, drawn, seed
from .sizes import RecordedGraph
from .source import trace_error
from .values import Attempt, Traced, Written, place_of

# The tracer of the function that this thread is tracing, for calls without a traced argument (`kfusion.iota`).
current: contextvars.ContextVar[Tracer | None] = contextvars.ContextVar("kfusion_tracer", default=None)


class Tracer(Inputs):
    """Builds one graph. `name` is the function's, for messages; an eager call names no lines; of a graph that `runs`
    the layouts of captured arrays count. `recorded`: the graph, where it is recorded for calls with other sizes.
    """

    def __init__(
        self,
        name: str,
        *,
        eager: bool = False,
        runs: bool = False,
        attempt: Attempt | None = None,
        recorded: RecordedGraph | None = None,
    ) -> None:
        super().__init__(name, eager=eager, runs=runs, attempt=attempt, recorded=recorded)
        self.draw: Draw = drawn  # random numbers, when the function is called
        self.writes = 0
        self.last_draw: list[Traced] = []  # that the last call of the library which draws random numbers has run
        self.counts: dict[float, Traced] = {}  # of batches, by the numbers that stand for their reciprocals
        self.takes_apart = False  # a function of torch's, whose operators must all be traced
        self.is_trying = False  # functions on tensors without data, which stand for values
        self._seed: Number | None = None
        self._streams = 0
        self._depth = 0  # of what is differentiated within what is
        self.grad_fns: dict[int, Any] = {}  # by node: what stands for torch's node of its gradient
        self._wanted: set[int] = set()  # nodes by which something is differentiated

    # ---- random numbers ----

    @property
    def is_random(self) -> bool:
        """Whether calls draw a seed."""
        return self._seed is not None

    @property
    def effects(self) -> tuple[int, int]:
        """How often random numbers were drawn, and memory was written to, so far."""
        return self._streams, self.writes

    def seed(self) -> Number:
        """A number that every call draws: a float that is an integer of seeds.BITS bits.

        Raises:
            TraceError: the function has too many numbers.
        """
        if self._seed is None:
            register = self.program.add(Instruction(functools.partial(self.draw, SEED, seed), (), (), float))
            if register < 0 or self.program.parameter(register) < 0:
                raise trace_error("there are too many numbers to draw random ones beside", "pass arrays in their place")
            self._seed = numbers.number(0.0, self, register)
        return self._seed

    def integer(self, number: Any) -> Traced:
        """An int64 for a float that is an integer."""
        value, index = parameter_of(number, self) if is_number(number) else (number, -1)
        return self.add("scalar", int(value)) if index < 0 else self.add("integer_parameter", index)

    def next_stream(self) -> int:
        """The number of a stream of random numbers that nobody else in this graph has."""
        self._streams += 1
        return self._streams - 1

    def library_draws(self, generators: Sequence[Any], device: str) -> LibraryDraws | None:
        """The draws of the library's next call, which draws; None where nothing may compute that call again."""
        number = self.next_stream()
        if self._depth == 0 and self.draw is drawn:
            return None
        return LibraryDraws(self.draw, number, generators, device)

    # ---- gradients ----

    @contextlib.contextmanager
    def differentiated(self, values: Sequence[Traced]) -> Iterator[None]:
        """What is built inside is differentiated by values, and by tensors of outside that require grad. It is constant
        where the function turns torch's grad mode off.
        """
        before, torch = self._differentiates, sys.modules.get("torch")
        self._differentiates = torch is not None
        self._depth += 1
        self._wanted |= set(map(self.node, values))
        try:
            with contextlib.nullcontext() if torch is None else torch.enable_grad():
                yield
        finally:
            self._differentiates = before
            self._depth -= 1

    @contextlib.contextmanager
    def taking_apart(self) -> Iterator[None]:
        """A context in which there are no calls of the library."""
        before, self.takes_apart = self.takes_apart, True
        try:
            yield
        finally:
            self.takes_apart = before

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """A context in which tensors without data are ours, and none of the function's."""
        before, self.is_trying = self.is_trying, True
        try:
            yield
        finally:
            self.is_trying = before

    @property
    def differentiates(self) -> bool:
        """Whether what is built now is differentiated."""
        return self._differentiates and bool(sys.modules["torch"].is_grad_enabled())

    @property
    def takes_gradients(self) -> bool:
        """Whether something that is built now is differentiated."""
        return self._depth > 0

    @property
    def is_differentiated_once(self) -> bool:
        """Whether what is built now has gradients, and these have none."""
        return self._depth == 1

    @property
    def wants_gradients(self) -> bool:
        """Whether what is built now has gradients, in torch's grad mode if there is one."""
        torch = sys.modules.get("torch")
        return self._depth > 0 and (torch is None or bool(torch.is_grad_enabled()))

    def requires_grad(self, x: Traced) -> bool:
        """Whether gradients pass through x, as torch's attribute says."""
        return self.differentiates and self.has_gradients(x)

    def has_gradients(self, x: Traced) -> bool:
        """Whether gradients pass through x, whatever the grad mode is now."""
        if x._dtype not in FLOATS:
            return False
        known = zip(self._input_nodes, self.inputs, strict=True)
        captured = {node for node, i in known if i.captured and getattr(i.array, "requires_grad", False) is True}
        with self.with_gradients_on():
            return bool(self._build("reaching", [self.node(x)], sorted(self._wanted | captured)))

    def require_grad(self, x: Traced) -> None:
        """Says of floats that `requires_grad` holds of them and of what is made of them."""
        if x._dtype not in FLOATS:
            raise RuntimeError(f"kfusion.{self.name}: only floats can require gradients, got {x._dtype}")
        self._wanted.add(self.node(x))

    def with_gradients(self, result: Traced, values: Sequence[Traced], gradients: Sequence[Traced]) -> Traced:
        """The value `result`, whose gradients by `values`, which have shapes that broadcast to its own, are `gradients`
        times its own gradient, whatever computes it.
        """
        made = self.itself(result)
        self._build("set_gradients", [made], list(values), [], list(gradients))
        return made

    def with_backward(
        self, results: Sequence[Traced], backward: Callable[[Sequence[Traced]], Sequence[tuple[Traced, Traced]]]
    ) -> list[Traced]:
        """The floats `results`, whose gradients are what `backward` gives, whatever computes them: pairs of a value and
        its gradient. It is called at once, with values that stand for the gradients of results.
        """
        made = [self.itself(y) for y in results]
        cotangents = [self._stand_in(y) for y in made]
        pairs = backward(cotangents)
        if pairs and made:
            self._build("set_gradients", made, [x for x, _ in pairs], cotangents, [g for _, g in pairs])
            return made
        return [self.constant(y) for y in made]

    def _stand_in(self, y: Traced) -> Traced:
        """A value like y, which nothing computes."""
        types = [(y._dtype, y.shape)]
        made = self._build("library_call", self._input_nodes[:1], types, "gradient", 0, 0)
        self._build("stop_gradient", made[0])
        return self._made(type(y), made[0], Memory(made[0]))

    def with_adjoint(
        self, results: Sequence[Traced], values: Sequence[Traced], name: str, run: Any, flops: int = 0
    ) -> list[Traced]:
        """Results whose gradients by values are those of a function of the array library: `run.adjoint(numbers)` is
        called with those of values by number, and gives a function of values and the gradients of results.
        """
        made = [self.itself(y) for y in results]
        self._build("set_gradients", made, list(values), [], [], name, len(self.library_calls), flops)
        self.library_calls.append(run)
        return made

    def vjp(self, results: Sequence[Traced], cotangents: Sequence[Traced], values: Sequence[Traced]) -> list[Traced]:
        """The gradients of values, for gradients of results (cotangents); nodes of the same graph.

        Raises:
            TypeError: the results depend on a value through something that has no adjoint.
        """
        nodes = [list(map(self.node, listed)) for listed in (results, cotangents, values)]
        made, adjoints = self._build("vjp", *nodes, len(self.library_calls))
        self.library_calls += [library_adjoints.function_for(a, self.library_calls) for a in adjoints]
        return [self._result(n, [x]) for n, x in zip(made, values, strict=True)]

    def kept_for_backward(
        self,
        results: Sequence[Traced],
        values: Sequence[Traced],
        memory: int | None = None,
        device: dict[str, Any] | None = None,
    ) -> list[tuple[int, int]]:
        """What a forward pass keeps for the gradients of values: nodes, and which of the results they are, or -1. By
        the prices of a device, as Device.to_dict() gives it; None: of that on which the function runs.
        """
        nodes = [list(map(self.node, listed)) for listed in (results, values)]
        device = device or running.device(place_of(self.inputs)).to_dict()
        return list(self._build("kept_for_backward", *nodes, device, memory))

    def explain_kept(
        self, results: Sequence[Traced], values: Sequence[Traced], device: dict[str, Any], memory: int | None
    ) -> list[tuple[int, int, int, float]]:
        """What is kept: nodes, which of the results they are, bytes of their own, seconds that each saves."""
        nodes = [list(map(self.node, listed)) for listed in (results, values)]
        return list(self._build("explain_kept", *nodes, device, memory))

    def computed(self) -> tuple[int, list[int]]:
        """What the function does so far, as a hash, and the nodes of all that it computes: the same in every trace."""
        made: tuple[int, list[int]] = self._build("computed")
        return made

    def needed_backward(self, results: Sequence[Traced], values: Sequence[Traced], candidates: list[int]) -> list[int]:
        """Those of the candidates that the gradients of values need."""
        nodes = [list(map(self.node, listed)) for listed in (results, values)]
        return list(self._build("needed_backward", *nodes, candidates))

    def reached(self, results: Sequence[Traced], values: Sequence[Traced]) -> list[bool]:
        """For each of values, whether gradients of results reach it."""
        nodes = [list(map(self.node, listed)) for listed in (results, values)]
        return list(self._build("reached", *nodes))

    def are_apart(self, written: Sequence[Written], results: Sequence[Traced], values: Sequence[Traced]) -> bool:
        """Whether gradients of results by values neither read what is written to, nor are to pass through what is
        written there.
        """
        targets = [self._input_nodes[w.input] for w in written]
        new = [self.node(w.result) for w in written]
        wanted = [self.node(v) for v in values]
        if set(targets) & set(wanted) or self.reaching(new, values):
            return False
        return not results or not self.needed_backward(results, values, targets)

    def reaching(self, nodes: Iterable[int], values: Sequence[Traced]) -> set[int]:
        """Those of the nodes through which gradients of values pass."""
        return set(self._build("reaching", list(nodes), list(map(self.node, values))))

    def require_no_product(self, results: Sequence[Traced]) -> None:
        """Raises `WholeProduct` where results, or what is written, are made of a product without which a loss is."""
        written = [w.result for w in self.written()]
        self.heads.require_unread(self.graph, map(self.node, [*results, *written]))

    def replace(self, nodes: Sequence[int], values: Sequence[Traced]) -> None:
        """Readers of the nodes, and of all nodes of the same values, read the values instead, which came first."""
        self._build("replace", list(nodes), list(map(self.node, values)))

    def donate(self, value: Traced) -> None:
        """Nobody reads that input after the run, which may use its memory."""
        self._build("donate", self.node(value))


def constant(x: Any) -> Any:
    """x, which gradients take for a constant."""
    return x._tracer.constant(x)
