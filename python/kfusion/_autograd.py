"""Fused functions of tensors that require grad: nodes of torch's autograd.

Forward is the fused function itself, under no_grad. Backward is another one. What it needs of the forward pass it
computes again, of the arguments and of what forward keeps: a minimal cut of both passes says which values cost least.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _backward_threads as backward_threads
from . import _donation as donation
from ._environment.frozen import Frozen
from ._gradient_passes import BackwardPass, ForwardPass, ResultObject
from ._graph.seeds import Seeds
from ._graph.source import transformed
from ._graph.structure import ATOMS, Slot, holds_arrays, mapped, may_hold_results


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
        arguments = mapped((args, kwargs), lambda leaf: _slot(torch, tensors, leaf), holds_arrays, _leaf_types(torch))
        if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):
            raise transformed(who)
        if any(t.is_complex() for t in tensors):
            raise _complex(who)
        wanted = tuple(t.requires_grad for t in tensors)
        self.seeds.taken()  # of a call that failed
        with torch.no_grad():
            known = tuple(id(t) for t in self._forward.captured())
            answer = self.forward((args, kwargs), known, wanted, **({} if stream is None else {"stream": stream}))
        drawn = self.seeds.taken()
        result, passing, reached, computed, kept, turned, read, named, frozen = answer
        captured = self._forward.captured()
        made: list[Any] = []
        structure = mapped(result, lambda leaf: _slot(torch, made, leaf), may_hold_results, _leaf_types(torch))
        if any(t.is_complex() for t in made):
            raise _complex(who)
        kept = {number: made[value] if isinstance(value, int) else _alone(value) for number, value in kept.items()}
        donation.usual_holders()  # before there is a backward pass
        surroundings = _Surroundings(torch, tensors + captured)
        read = [t for t in self._forward.known(read) if not t.requires_grad and not t.is_inference()]
        constants = [t for t in self._forward.known(named) if not t.requires_grad]
        versions = [(t, t._version) for t in read]
        node = _Node(
            self,
            arguments,
            wanted,
            [id(t) for t in captured],
            passing,
            len(made),
            [made[n] for n in passing],
            kept,
            {n for n, t in kept.items() if all(t is not y for y in made)},
            turned,
            computed,
            named,
            frozen,
            versions,
            constants,
            drawn,
            surroundings,
        )
        outs = dict(enumerate(made))
        if passing:
            linked = _linked(tensors, captured, *reached)
            outs |= zip(passing, _function(torch).apply(node, *linked), strict=True)

        def filled(leaf: Any) -> Any:
            return outs[leaf.index] if isinstance(leaf, Slot) else leaf.value if type(leaf) is ResultObject else leaf

        return mapped(structure, filled, may_hold_results, _leaf_types(torch))


def _linked(tensors: Sequence[Any], captured: Sequence[Any], own: Sequence[bool], named: Sequence[int]) -> list[Any]:
    """Arguments and captured tensors, of which those that gradients reach are linked to what made them. Others are not:
    their graphs may be gone, or hold those of all calls before, as that of what a call has set does.
    """
    reached = iter(own)
    given = [t if not t.requires_grad or next(reached) else t.detach() for t in tensors]
    return given + [t if id(t) in named else t.detach() for t in captured]


def _alone(tensor: Any) -> Any:
    """The tensor without the one that torch made it a view of, which would hold its memory."""
    return tensor.detach() if tensor._is_view() else tensor


def _complex(who: str) -> RuntimeError:
    return RuntimeError(f"{who}: complex tensors have no gradients here: call it under torch.no_grad()")


@dataclass(slots=True, eq=False)
class _Node:
    """What a node of the autograd graph keeps; torch's own takes `made` and `kept`, when it is made."""

    passes: Differentiable
    arguments: Any  # with slots for tensors
    wanted: Sequence[bool]  # of these, which require grad
    captured: list[int]  # the ids of captured tensors
    passing: tuple[int, ...]  # the numbers of the results that gradients pass through
    results: int  # how many there are
    made: list[Any]  # those that gradients pass through
    kept: dict[int, Any]  # as `_kept` has it, but None for tensors that torch holds
    own: set[int]  # the numbers of those that are no results
    turned: dict[int, tuple[int, ...]]  # as `_kept` has it
    computed: str  # likewise
    named: tuple[int, ...]  # the ids of tensors that the function names and computes with
    frozen: Frozen  # what the function depends on beside its arguments
    versions: list[tuple[Any, int]]  # of tensors that the function names and backward reads
    constants: list[Any]  # tensors that the function names: it is to find them when it is traced again
    drawn: dict[int, Any]
    surroundings: _Surroundings
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_spent: bool = False

    @property
    def count(self) -> int:
        """How many tensors gradients are given of."""
        return len(self.wanted) + len(self.captured)

    def gradients(self, tensors: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """The gradients by tensors, captured ones behind the arguments: None where none is wanted or there is none."""
        donated = self._donated(tensors)
        for t, version in self.versions:
            if t._version != version:
                what = f"a tensor of shape {tuple(t.shape)} that it names, and its gradients need, was changed in place"
                raise RuntimeError(f"kfusion.{self.passes.name}: {what} after the forward pass")
        call = mapped(
            self.arguments,
            lambda leaf: tensors[leaf.index].detach() if isinstance(leaf, Slot) else leaf,
            holds_arrays,
            _leaf_types(sys.modules["torch"]),
        )
        kept = dict(zip(self.kept, tensors[self.count :], strict=True))
        captured = tuple(self.captured)
        passing = dict(zip(self.passing, gradients, strict=True))
        cotangents = [passing.get(n) for n in range(self.results)]
        with self.surroundings.again(), self.passes.seeds.again(self.drawn):
            made = self.passes.backward(
                call,
                cotangents,
                self.wanted,
                captured,
                self.computed,
                kept,
                self.turned,
                self.named,
                self.frozen,
                donated,
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
            kept, node.kept = node.kept.values(), dict.fromkeys(node.kept)
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
