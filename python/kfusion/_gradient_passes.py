"""The two passes of a fused function of tensors that require grad, as functions to trace: forward gives the results and
what backward reads of it, backward computes the rest again, and gradients.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Iterable, Sequence
from itertools import starmap
from typing import Any

import numpy as np

from . import _core
from ._environment import calls, guards
from ._environment.elements import as_they_are
from ._environment.frozen import Frozen
from ._environment.reach import reached
from ._environment.state import Snapshot
from ._graph.seeds import Seeds
from ._graph.structure import holds_arrays, may_hold_results, picked, walk
from ._graph.tracer import Tracer, current
from ._graph.values import Traced, Written
from ._spec import FLOATS, is_array


def _writes(name: str) -> RuntimeError:
    """The error for functions that write to arrays of which gradients are made: backward computes again what they do,
    of what is in the arrays then.
    """
    what = "it writes to arrays that its gradients need, or gradients would have to pass through"
    return RuntimeError(f"kfusion.{name}: {what}: call it under torch.no_grad()")


class ForwardPass:
    """The function itself. What it computes of weights alone is computed in every call.

    It gives what the function does, and what `_kept` says. Its other arguments tell apart calls that differ in which
    tensors require grad.
    """

    def __init__(
        self, function: Any, name: str, seeds: Seeds, memory: int | None, device: dict[str, Any] | None = None
    ) -> None:
        self.__wrapped__ = function
        self.__signature__ = inspect.signature(lambda call, captured, wanted: None)
        self.__name__ = name
        self._seeds = seeds
        self._memory = memory
        self._device = device  # to price on, None for that of the arrays
        self._captured: dict[int, weakref.ref[Any]] = {}
        self._frozen: list[weakref.ref[Frozen]] = []

    def captured(self) -> list[Any]:
        """The tensors that require grad among those which the function names, as far as it was traced."""
        alive = (known() for known in self._captured.values())
        return [t for t in alive if t is not None and t.requires_grad]

    def known(self, ids: Iterable[int]) -> list[Any]:
        """Captured tensors by id, as far as they are alive."""
        alive = (self._captured[i]() for i in ids if i in self._captured)
        return [t for t in alive if t is not None]

    def _environment(self, found: list[guards.Guard]) -> Frozen:
        """What the function depends on beside the arguments, as it is: of what is the same one object."""
        made = Frozen(found)
        known = next((f for weak in self._frozen if (f := weak()) is not None and f.is_like(made)), made)
        self._frozen = [weak for weak in self._frozen if weak() not in (None, known)] + [weakref.ref(known)]
        return known

    def __call__(self, call: Any, captured: Any, wanted: Sequence[bool]) -> Any:
        tracer = _current()
        tracer.draw = self._seeds.of(tracer.draw)
        args, kwargs = call
        asked = iter(wanted)
        given = picked(call, lambda leaf: _is_value(leaf) and next(asked), holds_arrays)
        arguments = [(), *zip(guards.guarded(call))]
        guarded = [guard for argument in arguments for guard in guards.guards(self.__wrapped__, *argument)]
        frozen = self._environment(guarded)
        before = list(guards.values(*guarded))  # `m.count += 1` leaves what stands for a tensor there
        with tracer.differentiated(given):
            result = _with_objects(tracer, self.__wrapped__(*args, **kwargs))
            values_of(result)  # which computes what is computed when it is read, as in the backward pass
        frozen.after(guarded)
        if (written := tracer.written()) and not _are_apart(tracer, written, result, given):
            raise _writes(self.__name__)
        now = guards.guards(self.__wrapped__)
        named = [*before, *guards.values(*now)]
        found = [*named, *(i.array for i in tracer.inputs if i.captured)]
        tensor = getattr(sys.modules.get("torch"), "Tensor", ())
        self._captured |= {id(t): weakref.ref(t) for t in found if isinstance(t, tensor)}
        computed, nodes = _computed(tracer, now)
        kept = _kept(tracer, nodes, result, given, self._memory, self._device)
        passing = _passing(tracer, result, given)
        return result, passing, _reached(tracer, result, passing, given), computed, *kept, _named(tracer, named), frozen


def _computed(tracer: Tracer, found: Sequence[guards.Guard]) -> tuple[str, list[int]]:
    """What the function computes, and of which elements that it has looked at, as a hash; the nodes that do it."""
    computed, nodes = tracer.computed()
    with as_they_are():
        return " ".join([hex(computed), *sorted(starmap(_digest, calls.looked_at(tracer, found)))]), nodes


def _digest(array: Any, elements: Any) -> str:
    if elements is None and not isinstance(array, np.ndarray):  # many: torch counts changes of tensors
        return str(None if array.is_inference() else array._version)
    return str(_core.digest(array if elements is None else elements))


def _passing(tracer: Tracer, result: Any, given: Sequence[Traced]) -> tuple[int, ...]:
    """The numbers of results that gradients pass through: not of constants, nor of what no_grad or detach() made."""
    results = {n: tracer.node(y) for n, y in enumerate(_traced(tracer, values_of(result))) if y is not None}
    reached = tracer.reaching(results.values(), [*given, *_captured_parameters(tracer)])
    return tuple(n for n, node in results.items() if node in reached)


def _reached(
    tracer: Tracer, result: Any, passing: Sequence[int], given: Sequence[Traced]
) -> tuple[tuple[bool, ...], tuple[int, ...]]:
    """Whether gradients of results reach the given values, and the ids of captured tensors that they reach."""
    values = _traced(tracer, values_of(result))
    results = [y for n in passing if (y := values[n]) is not None]
    captured = [i.array for i in tracer.inputs if i.captured and _requires_grad(i.array)]
    reached = tracer.reached(results, [*given, *_captured_parameters(tracer)])
    named = (id(t) for t, is_reached in zip(captured, reached[len(given) :], strict=True) if is_reached)
    return tuple(reached[: len(given)]), tuple(named)


def _traced(tracer: Tracer, values: Iterable[Any]) -> list[Traced | None]:
    """What stands for values: traced ones, those of tensors that the function has written to; None for constants."""
    return [v if isinstance(v, Traced) else tracer.stand_in(v) for v in values]


def _are_apart(tracer: Tracer, written: Sequence[Written], result: Any, given: Sequence[Traced]) -> bool:
    """Whether what is written to has no part in gradients, nor in the result."""
    values = _traced(tracer, values_of(result))
    theirs = {id(w.value._memory) for w in written}
    if any(v is not None and id(v._memory) in theirs for v in (*values, *given)):
        return False
    results = [y for y in values if y is not None and y._dtype in FLOATS]
    return tracer.are_apart(written, results, [*given, *_captured_parameters(tracer)])


def _captured_parameters(tracer: Tracer) -> list[Traced]:
    return [tracer.value_of_input(n) for n, i in enumerate(tracer.inputs) if i.captured and _requires_grad(i.array)]


def _named(tracer: Tracer, values: Iterable[Any]) -> tuple[int, ...]:
    """The ids of captured arrays that are among the values that a function names: others it makes itself."""
    ids = set(map(id, values))
    return tuple(sorted(id(i.array) for i in tracer.inputs if i.captured and id(i.array) in ids))


def _kept(
    tracer: Tracer,
    nodes: Sequence[int],
    result: Any,
    given: Sequence[Traced],
    memory: int | None,
    device: dict[str, Any] | None,
) -> tuple[dict[int, Any], dict[int, tuple[int, ...]], tuple[int, ...]]:
    """What backward is told of the forward pass.

    Returns:
        What is kept, by number among the nodes that compute, where results have their number and stand below 0; those
        of them whose axes lie in another order, with the way back; the ids of captured arrays that backward reads.
    """
    values = dict(enumerate(_traced(tracer, values_of(result))))
    numbers = [n for n, y in values.items() if y is not None]  # of results, with those of other arrays
    results = [y for y in values.values() if y is not None]
    params = _captured_parameters(tracer)
    if not any(y._dtype in FLOATS for y in results) or not (given or params):
        return {}, {}, ()
    place = {node: i for i, node in enumerate(nodes)}
    kept: dict[int, Any] = {}
    orders = tracer.orders()
    read = []
    for node, number in tracer.kept_for_backward(results, [*given, *params], memory, device):
        if (known := tracer.input_of(node)) is not None:
            read += [id(known.array)] if known.captured else []
        elif number >= 0:
            kept[-1 - numbers[number]] = numbers[number]
        elif order := orders.get(node):
            kept[place[node]] = tracer.view("transpose", tracer.value(node), order)
        else:
            kept[place[node]] = tracer.value(node)
    inverse = {n: tuple(map(order.index, range(len(order)))) for n, order in orders.items()}
    turned = {place[n]: axes for n, axes in inverse.items() if place.get(n) in kept}
    return kept, turned, tuple(read)


class BackwardPass:
    """Computes the gradients of those tensors that are wanted, by position, and of captured ones, by id, from a
    function's arguments and the gradients of its results. Nobody reads the `donated` ones of what is kept afterwards.
    """

    def __init__(self, function: Any, name: str, seeds: Seeds) -> None:
        self.__wrapped__ = function
        self._seeds = seeds
        self.__signature__ = inspect.signature(
            lambda call, cotangents, wanted, captured, computed, kept, turned, named, frozen, donated=(): None
        )
        self.__name__ = f"{name} (backward)"

    def __call__(
        self,
        call: Any,
        cotangents: Sequence[Any],
        wanted: Sequence[bool],
        captured: Sequence[int],
        computed: str,
        kept: dict[int, Any],
        turned: dict[int, tuple[int, ...]],
        named: tuple[int, ...],
        frozen: Frozen,
        donated: tuple[int, ...] = (),
    ) -> tuple[list[Any], dict[int, Any], bool]:
        tracer = _current()
        tracer.draw = self._seeds.of(tracer.draw)
        own: list[Traced] = []
        asked = iter(wanted)

        def given(_: str, leaf: Any) -> Any:
            if not _is_value(leaf) or not next(asked):
                return leaf
            own.append(tracer.itself(leaf))
            return own[-1]

        args, kwargs = walk(call, given, enters=holds_arrays)
        nodes = [tracer.copy(x) for x in own]
        for number in donated:
            tracer.donate(kept[number])
        kept = kept | {k: tracer.view("transpose", kept[k], axes) for k, axes in turned.items()}
        who, roots = f"kfusion.{self.__name__}", [self.__wrapped__, *guards.guarded(call)]
        with frozen.again(who):
            with tracer.differentiated(own), Snapshot(roots, always=True):
                results = values_of(_with_objects(tracer, self.__wrapped__(*args, **kwargs)))
            read = {n: y for n, y in enumerate(_traced(tracer, results)) if y is not None}
            tracer.require_no_product(list(read.values()))  # as the forward pass does
            found = guards.guards(self.__wrapped__)
            again, nodes_again = _computed(tracer, found)
            if not set(_named(tracer, guards.values(*found))) <= set(named):
                raise RuntimeError(f"{who}: a tensor that it names was replaced after the forward pass")
        if again != computed:
            what = "it did not do the same when it was traced again for its gradients"
            raise RuntimeError(f"{who}: {what}: let it depend on nothing but its arguments")
        known = [(y, g) for y, g in zip(results, cotangents, strict=True) if g is not None]
        pairs = [(tracer.lift(y, g._library), g) for y, g in known]
        params = self._captured(tracer, captured)
        reached, made = _gradients(tracer, [y for y, _ in pairs], [g for _, g in pairs], [*nodes, *params.values()])
        known_nodes = {nodes_again[k] if k >= 0 else tracer.node(read[-1 - k]): v for k, v in kept.items()}
        tracer.replace(list(known_nodes), list(known_nodes.values()))
        made = [g if g is None else known_nodes.get(tracer.node(g), g) for g in made]
        tracer.forget_writes()  # the forward pass has done them
        return made[: len(nodes)], dict(zip(params, made[len(nodes) :], strict=True)), reached

    def _captured(self, tracer: Tracer, wanted: Sequence[int]) -> dict[int, Traced]:
        """By id, the tensors of outside that gradients are wanted of."""
        found = {}
        for number, known in enumerate(tracer.inputs):
            if known.captured and id(known.array) in wanted:
                found[id(known.array)] = tracer.value_of_input(number)
            elif known.captured and _requires_grad(known.array):
                what = f"{known.name} is made of tensors that require grad while the function is traced"
                raise RuntimeError(
                    f"kfusion.{self.__name__}: {what}: compute it of traced values, or under torch.no_grad()"
                )
        return found


def _gradients(
    tracer: Tracer, results: Sequence[Traced], cotangents: Sequence[Traced], values: Sequence[Traced]
) -> tuple[bool, list[Traced | None]]:
    """Whether there are any, and as `Tracer.vjp`, None where torch has none: of what results do not depend on, or not
    as numbers. Where there are none, the last is zeros: functions return arrays.
    """
    reached = tracer.reached(results, values)
    wanted = [*reached[:-1], reached[-1] or not any(reached)]
    made = iter(tracer.vjp(results, cotangents, [v for v, w in zip(values, wanted, strict=True) if w]))
    return any(reached), [next(made) if w else None for w in wanted]


def _requires_grad(array: Any) -> bool:
    return getattr(array, "requires_grad", False) is True


def _current() -> Tracer:
    tracer = current.get()
    assert tracer is not None
    return tracer


class ResultObject:
    """An object in a function's result that holds nothing of its trace: it is there itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _with_objects(tracer: Tracer, result: Any) -> Any:
    """A result in which such objects are no structures of tensors."""

    def is_own(value: Any) -> bool:
        return _is_value(value) and (hasattr(type(value), "__kfusion_traced__") or tracer.stand_in(value) is not None)

    def enters(value: Any) -> bool:
        return may_hold_results(value) and any(map(is_own, reached([value])[0]))

    return walk(result, lambda _, leaf: ResultObject(leaf) if may_hold_results(leaf) else leaf, enters=enters)


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Traced) or hasattr(type(leaf), "__kfusion_traced__") or is_array(leaf)


def values_of(result: Any) -> list[Any]:
    """The tensors and values within a result, in order: NumPy's arrays among them have no gradients."""
    return picked(result, lambda leaf: _is_value(leaf) and not issubclass(type(leaf), np.ndarray), may_hold_results)
