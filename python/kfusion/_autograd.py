"""Fused functions of tensors that require grad: nodes of torch's autograd.

Forward is the fused function itself, under no_grad. Backward is another one. What it needs of the forward pass it
computes again, of the arguments and of what forward keeps: a minimal cut of both passes says which values cost least.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _backward_threads as backward_threads
from . import _donation as donation
from ._graph import guards, modules
from ._graph.objects import holds
from ._graph.reach import reached
from ._graph.seeds import Seeds
from ._graph.source import transformed
from ._graph.state import Snapshot
from ._graph.structure import ATOMS, Slot, holds_arrays, is_plain, mapped, may_hold_results, picked, walk
from ._graph.tracer import Tracer, current
from ._graph.values import Traced, Written
from ._spec import FLOATS, is_array


class Differentiable:
    """What a fused function has for calls with tensors that require grad: a forward and a backward pass."""

    def __init__(self, fused: Any) -> None:
        made = type(fused)
        self.name = fused.__name__
        self.seeds = Seeds()
        self._forward = ForwardPass(fused.__wrapped__, self.name, self.seeds, fused._options.get("memory"))
        options = fused._options | {"in_passes": True}
        self.forward = made(self._forward, options)
        self.backward = made(BackwardPass(fused.__wrapped__, self.name, self.seeds), options)

    def clear(self) -> None:
        """Forgets all traces."""
        self.forward.clear()
        self.backward.clear()

    def call(self, args: Any, kwargs: Any, out: Any, stream: Any) -> Any:
        """A call with tensors that require grad among its arguments, or among what the function names."""
        torch, who = sys.modules["torch"], f"kfusion.{self.name}"
        if out is not None:
            raise RuntimeError(f"{who}: out= holds no gradients: leave it out, or call under torch.no_grad()")
        tensors: list[Any] = []
        arguments = mapped((args, kwargs), lambda leaf: _slot(torch, tensors, leaf), _enters, _leaf_types(torch))
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
            raise transformed(who)
        if any(t.is_complex() for t in tensors):
            raise _complex(who)
        wanted = tuple(t.requires_grad for t in tensors)
        self.seeds.taken()  # of a call that failed
        with torch.no_grad():
            known = tuple(id(t) for t in self._forward.captured())
            answer = self.forward((args, kwargs), known, wanted, **({} if stream is None else {"stream": stream}))
        state = self.seeds.taken(), self._forward.modes()
        result, passing, reached, computed, kept, turned, read, named = answer
        captured = self._forward.captured()
        made: list[Any] = []
        structure = mapped(result, lambda leaf: _slot(torch, made, leaf), may_hold_results, _leaf_types(torch))
        if any(t.is_complex() for t in made):
            raise _complex(who)
        kept = {number: made[value] if isinstance(value, int) else _alone(value) for number, value in kept.items()}
        donation.usual_holders()  # before there is a backward pass
        surroundings = _Surroundings(torch, tensors + captured)
        constants = [t for t in self._forward.known(read) if not t.requires_grad and not t.is_inference()]
        saved = _Saved(made, passing, kept, turned, computed, named, [(weakref.ref(t), t._version) for t in constants])
        node = _Node(self, arguments, wanted, [id(t) for t in captured], saved, state, surroundings)
        outs = dict(enumerate(made))
        if passing:
            linked = _linked(tensors, captured, *reached)
            outs |= zip(passing, _function(torch).apply(node, *linked), strict=True)

        def filled(leaf: Any) -> Any:
            return outs[leaf.index] if isinstance(leaf, Slot) else leaf.value if type(leaf) is _Object else leaf

        return mapped(structure, filled, may_hold_results, _leaf_types(torch))


def _linked(tensors: Sequence[Any], captured: Sequence[Any], own: Sequence[bool], named: Sequence[int]) -> list[Any]:
    """Arguments and captured tensors, of which those that gradients reach are linked to what made them. Others are not:
    their graphs may be gone, or hold those of all calls before, as that of what a call has set does.
    """
    reached = iter(own)
    given = [t if not t.requires_grad or next(reached) else t.detach() for t in tensors]
    return given + [t if id(t) in named else t.detach() for t in captured]


class _Object:
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

    return walk(result, lambda _, leaf: _Object(leaf) if may_hold_results(leaf) else leaf, enters=enters)


def _alone(tensor: Any) -> Any:
    """The tensor without the one that torch made it a view of, which would hold its memory."""
    return tensor.detach() if tensor._is_view() else tensor


def _complex(who: str) -> RuntimeError:
    return RuntimeError(f"{who}: complex tensors have no gradients here: call it under torch.no_grad()")


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
        self._modules: dict[int, weakref.ref[Any]] = {}

    def captured(self) -> list[Any]:
        """The tensors that require grad among those which the function names, as far as it was traced."""
        alive = (known() for known in self._captured.values())
        return [t for t in alive if t is not None and t.requires_grad]

    def known(self, ids: Iterable[int]) -> list[Any]:
        """Captured tensors by id, as far as they are alive."""
        alive = (self._captured[i]() for i in ids if i in self._captured)
        return [t for t in alive if t is not None]

    def modes(self) -> list[tuple[Any, bool]]:
        """The modules on whose mode a trace may depend, and whether they train."""
        return modules.modes(known() for known in self._modules.values())

    def __call__(self, call: Any, captured: Any, wanted: Sequence[bool]) -> Any:
        tracer = _current()
        tracer.draw = self._seeds.of(tracer.draw)
        args, kwargs = call
        asked = iter(wanted)
        given = picked(call, lambda leaf: _is_value(leaf) and next(asked), _enters)
        before = list(_guarded_values(self.__wrapped__))  # `m.count += 1` leaves what stands for a tensor there
        with tracer.differentiated(given):
            result = _with_objects(tracer, self.__wrapped__(*args, **kwargs))
            values_of(result)  # which computes what is computed when it is read, as in the backward pass
        owners = (guard.owner for guard in guards.guards(self.__wrapped__))
        self._modules |= {id(m): weakref.ref(m) for m in owners if modules.is_module(m)}
        if (written := tracer.written()) and not _are_apart(tracer, written, result, given):
            raise _writes(self.__name__)
        named = [*before, *_guarded_values(self.__wrapped__)]
        found = [*named, *(i.array for i in tracer.inputs if i.captured)]
        tensor = getattr(sys.modules.get("torch"), "Tensor", ())
        self._captured |= {id(t): weakref.ref(t) for t in found if isinstance(t, tensor)}
        kept = _kept(tracer, result, given, self._memory, self._device)
        passing = _passing(tracer, result, given)
        return result, passing, _reached(tracer, result, passing, given), *kept, _named(tracer, named)


def _guarded_values(function: Any) -> Iterator[Any]:
    """What the function names, and the attributes that it reads."""
    return (v for guard in guards.guards(function) for v in guards.values(guard))


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
    tracer: Tracer, result: Any, given: Sequence[Traced], memory: int | None, device: dict[str, Any] | None
) -> tuple[str, dict[int, Any], dict[int, tuple[int, ...]], tuple[int, ...]]:
    """What backward is told of the forward pass.

    Returns:
        What the function computes, as a hash; what is kept, by number among all that it computes, where results have
        their number and stand below 0; those of them whose axes lie in another order, with the way back; the ids of
        captured arrays that backward reads.
    """
    computed, nodes = tracer.computed()
    values = dict(enumerate(_traced(tracer, values_of(result))))
    numbers = [n for n, y in values.items() if y is not None]  # of results, with those of other arrays
    results = [y for y in values.values() if y is not None]
    params = _captured_parameters(tracer)
    if not any(y._dtype in FLOATS for y in results) or not (given or params):
        return hex(computed), {}, {}, ()
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
    return hex(computed), kept, turned, tuple(read)


class BackwardPass:
    """Computes the gradients of those tensors that are wanted, by position, and of captured ones, by id, from a
    function's arguments and the gradients of its results. Nobody reads the `donated` ones of what is kept afterwards.
    """

    def __init__(self, function: Any, name: str, seeds: Seeds) -> None:
        self.__wrapped__ = function
        self._seeds = seeds
        self.__signature__ = inspect.signature(
            lambda call, cotangents, wanted, captured, computed, kept, turned, named, donated=(): None
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

        args, kwargs = walk_arguments(call, given)
        nodes = [tracer.copy(x) for x in own]
        for number in donated:
            tracer.donate(kept[number])
        kept = kept | {k: tracer.view("transpose", kept[k], axes) for k, axes in turned.items()}
        with tracer.differentiated(own), Snapshot([self.__wrapped__, *guards.guarded(call)], always=True):
            results = values_of(_with_objects(tracer, self.__wrapped__(*args, **kwargs)))
        read = {n: y for n, y in enumerate(_traced(tracer, results)) if y is not None}
        tracer.require_no_product(list(read.values()))  # as the forward pass does
        if not set(_named(tracer, _guarded_values(self.__wrapped__))) <= set(named):
            raise RuntimeError(f"kfusion.{self.__name__}: a tensor that it names was replaced after the forward pass")
        again, nodes_again = tracer.computed()
        if hex(again) != computed:
            what = "it did not do the same when it was traced again for its gradients"
            raise RuntimeError(f"kfusion.{self.__name__}: {what}: let it depend on nothing but its arguments")
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


class _Saved(NamedTuple):
    """What a forward pass hands to backward."""

    made: list[Any]  # the results
    passing: tuple[int, ...]  # the numbers of those that gradients pass through
    kept: dict[int, Any]  # as `_kept` has it
    turned: dict[int, tuple[int, ...]]  # likewise
    computed: str  # likewise
    named: tuple[int, ...]  # the ids of tensors that the function names and computes with
    versions: list[tuple[weakref.ref[Any], int]]  # of tensors that the function names and backward reads


class _Node:
    """What a node of the autograd graph keeps beside tensors."""

    def __init__(
        self,
        passes: Differentiable,
        arguments: Any,
        wanted: Sequence[bool],
        captured: list[int],
        saved: _Saved,
        state: tuple[dict[int, Any], list[tuple[Any, bool]]],
        surroundings: _Surroundings,
    ) -> None:
        self.passes = passes
        self.arguments = arguments  # with slots for tensors
        self.wanted = wanted  # of these, which require grad
        self.captured = captured
        self.made = [saved.made[n] for n in saved.passing]
        self.passing, self.results = saved.passing, len(saved.made)
        self.kept = list(saved.kept)
        self.values = list(saved.kept.values())
        self.lock, self.is_spent = threading.Lock(), False
        self.own = {n for n, t in saved.kept.items() if all(t is not y for y in saved.made)}
        self.turned = saved.turned
        self.computed = saved.computed
        self.named = saved.named
        self.versions = saved.versions
        self.drawn, self.modes = state
        self.surroundings = surroundings

    @property
    def count(self) -> int:
        """How many tensors gradients are given of."""
        return len(self.wanted) + len(self.captured)

    def gradients(self, tensors: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """The gradients by tensors, captured ones behind the arguments: None where none is wanted or there is none."""
        donated = self._donated(tensors)
        for known, version in self.versions:
            if (t := known()) is not None and t._version != version:
                what = f"a tensor of shape {tuple(t.shape)} that it names, and its gradients need, was changed in place"
                raise RuntimeError(f"kfusion.{self.passes.name}: {what} after the forward pass")
        call = mapped(
            self.arguments,
            lambda leaf: tensors[leaf.index].detach() if isinstance(leaf, Slot) else leaf,
            _enters,
            _leaf_types(sys.modules["torch"]),
        )
        kept = dict(zip(self.kept, tensors[self.count :], strict=True))
        captured = tuple(self.captured)
        modes = modules.in_modes(self.modes) if self.modes else _NOTHING
        passing = dict(zip(self.passing, gradients, strict=True))
        cotangents = [passing.get(n) for n in range(self.results)]
        with self.surroundings.again(), modes, self.passes.seeds.again(self.drawn):
            made = self.passes.backward(
                call, cotangents, self.wanted, captured, self.computed, kept, self.turned, self.named, donated
            )
        own, named, reached = made
        if not reached:
            return [None] * self.count
        given = iter(own)
        return [next(given) if a else None for a in self.wanted] + [named.get(k) for k in self.captured]

    def _donated(self, tensors: Sequence[Any]) -> tuple[int, ...]:
        """The numbers of kept tensors that only this node has, and torch forgets when its backward pass is done.

        Raises:
            RuntimeError: another pass was given some; torch does not know where that has failed, or still runs.
        """
        with self.lock:  # a pass that runs holds its tensors: another one then finds them held, or this
            if self.is_spent:
                what = "a backward pass has used up what the forward pass kept, and failed or is not done"
                raise RuntimeError(f"kfusion.{self.passes.name}: {what}: call the function again")
            if not self.own or not donation.is_last():
                return ()
            holders = donation.holders(tensors, len(tensors) - len(self.kept))
            usual = donation.usual_holders()
            found = tuple(n for n, count in zip(self.kept, holders, strict=True) if n in self.own and count == usual)
            self.is_spent = bool(found)
            return found


def require_first(torch: Any, who: str) -> None:
    """Raises in a backward pass that is to be differentiated itself: with create_graph=True."""
    if torch.is_grad_enabled():
        what = "it has no second derivatives through autograd (create_graph=True)"
        raise RuntimeError(f"{who}: {what}: kfusion.grad of kfusion.grad has them")


@functools.cache
def _function(torch: Any) -> Any:
    class Fused(torch.autograd.Function):  # type: ignore[misc]
        """A fused function in the autograd graph."""

        @classmethod
        def apply(cls, *args: Any) -> Any:
            """Without what torch's own asks of each tensor: `call` has."""
            if torch._C._are_functorch_transforms_active():
                return super().apply(*args)
            return super(torch.autograd.Function, cls).apply(*args)

        @staticmethod
        def forward(ctx: Any, node: _Node, *tensors: Any) -> Any:
            made, node.made = node.made, []
            kept, node.values = node.values, []
            ctx.node = node
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*tensors, *kept)
            return tuple(made)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            require_first(torch, f"kfusion.{ctx.node.passes.name}")
            if all(g is None for g in gradients):  # where saved tensors may be gone, too
                return (None,) * (1 + ctx.node.count)
            backward_threads.used(g for g in gradients if g is not None)
            return None, *ctx.node.gradients(ctx.saved_tensors, gradients)

    return Fused


class _Surroundings:
    """Autocast and the default device as they are when it is made: backward runs in other threads."""

    def __init__(self, torch: Any, tensors: Sequence[Any]) -> None:
        self._torch = torch
        self._kind = kind = tensors[0].device.type if tensors else "cpu"
        self._device = _default_device(torch)
        self._casts = torch.is_autocast_enabled(kind)
        self._dtype = torch.get_autocast_dtype(kind) if self._casts else None

    def again(self) -> contextlib.AbstractContextManager[Any]:
        """A context with them."""
        has_others = self._casts or self._torch.is_autocast_enabled(self._kind)
        if self._device.type == "cpu" and not has_others:
            return _NOTHING
        with contextlib.ExitStack() as stack:
            if self._device.type != "cpu":
                stack.enter_context(self._device)
            if has_others:
                stack.enter_context(self._torch.autocast(self._kind, dtype=self._dtype, enabled=self._casts))
            return stack.pop_all()


_NOTHING = contextlib.nullcontext()


def _default_device(torch: Any) -> Any:
    """torch.get_default_device(), at once where no mode is entered: such a device is one."""
    return torch.get_default_device() if torch._C._len_torch_function_stack() else _cpu(torch)


@functools.cache
def _cpu(torch: Any) -> Any:
    return torch.device("cpu")


@functools.cache
def _leaf_types(torch: Any) -> frozenset[type]:
    """The types of a leaf, which is no structure of tensors."""
    return ATOMS | {torch.Tensor, torch.nn.Parameter, Slot}


def _slot(torch: Any, tensors: list[Any], leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    tensors.append(leaf)
    number = len(tensors) - 1
    return _SLOTS[number] if number < len(_SLOTS) else Slot(number)


_SLOTS = tuple(map(Slot, range(64)))


def walk_arguments(arguments: Any, visit: Any) -> Any:
    """`visit(path, leaf)` of all arrays and values within a call's arguments, and of what else they are."""
    return walk(arguments, visit, enters=_enters)


def _enters(value: Any) -> bool:
    return holds_arrays(value) or (is_plain(value) and holds(value, _is_value))


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, Traced) or hasattr(type(leaf), "__kfusion_traced__") or is_array(leaf)


def values_of(result: Any) -> list[Any]:
    """The tensors and values within a result, in order: NumPy's arrays among them have no gradients."""
    return picked(result, lambda leaf: _is_value(leaf) and not issubclass(type(leaf), np.ndarray), may_hold_results)
