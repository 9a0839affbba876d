"""Calls of torch on tensors without data: what they give, what they write to, and which errors they raise."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .._graph.source import TraceError, trace_error, user_line
from .._graph.structure import Slot, fill, leaves, walk
from .._graph.values import Traced
from .._spec import is_array
from . import autocast, library_arguments, refusals
from .dtype_names import dtype_of, name_of_dtype
from .stored_numbers import STORED

# Functions that torch does not have for tensors without data, or has in other dtypes: called on ones, on the CPU.
ONLY_OF_DATA = (
    *("cov", "corrcoef", "combinations", "histogram", "geqrf", "affine_grid"),
    *("block_diag", "huber_loss", "ldexp", "pow", "soft_margin_loss"),
)
# Functions of which tensors without data say nothing, or nothing right, under torch.autocast.
_OF_DATA_WHEN_CAST = ("linalg_pinv", "pinverse", "ctc_loss")
DONE = ("int64", ())
_MOST_TYPES = 1024


class Tried:
    """A call on tensors without data: what it gives, the tensors, and the numbers of those that it writes to. `draws`:
    whether it has called an operator that draws random numbers. `on_data`: it is called on ones, where the values are.
    """

    def __init__(
        self, function: Callable[..., Any], name: str, call: library_arguments.Arguments, on_data: bool = False
    ) -> None:
        self._function = function
        self._name = name
        self._call = call
        self._dtypes = [v._dtype for v in call.values]
        self.device = device_of(call.values)
        self.draws = False
        short, is_cast = name.removeprefix("torch."), autocast.active(self.device) is not None
        is_of_data = short in ONLY_OF_DATA or (is_cast and short in _OF_DATA_WHEN_CAST)
        # Within a mode torch.autocast does not reach the operators that operators call: none of these draws.
        self._has_modes = not (is_of_data and is_cast)
        on_data = on_data or not self._has_modes
        self._has_data = on_data or is_of_data
        is_cast = is_cast and not on_data
        self._place = self.device if on_data or is_cast else "cpu" if self._has_data else "meta"
        self._context = _fake_tensors if is_cast else _as_it_was if on_data else contextlib.nullcontext
        self._structure = call.structure if on_data or is_cast else _moved(call.structure, call.values, "meta")

    def __call__(
        self, shapes: Sequence[tuple[int, ...]], *, wants_gradients: bool = False
    ) -> tuple[Any, list[Any], list[int]]:
        torch = sys.modules["torch"]
        met = operators_met()
        with self._context(), met if self._has_modes else contextlib.nullcontext():
            made = [
                torch.empty(shape, dtype=getattr(torch, dtype), device=self._place)
                for shape, dtype in zip(shapes, self._dtypes, strict=True)
            ]
            for t in made if self._has_data else ():
                t.fill_(1)
            for t in made if wants_gradients else ():
                t.requires_grad_(t.is_floating_point())
            shown = self._call.viewed(made)
            versions, layouts = [t._version for t in shown], [(t.shape, t.stride()) for t in shown]
            with torch.set_grad_enabled(wants_gradients):
                found = _called_without_data(self._function, self._name, fill(self._structure, shown))
        if layouts != [(t.shape, t.stride()) for t in shown]:
            hint = f"write y = x.{self._name.removeprefix('torch.').removesuffix('_')}(...) instead"
            raise trace_error(f"{self._name} changes how a tensor lies, not its elements,", hint)
        self.draws = any(torch.Tag.nondeterministic_seeded in op.tags for op in met.operators)
        return found, shown, [i for i, t in enumerate(shown) if t._version != versions[i]]

    def without_gradients(self, shapes: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int]]:
        """The numbers of floats to which the results hand no gradient: torch has None for them, and not zeros. And the
        numbers of results that have none.
        """
        try:
            found, shown, _ = self(shapes, wants_gradients=True)
        except Exception:  # such as a write to what requires grad
            return [], []
        results: list[Any] = []
        walk(found, lambda _, leaf: results.append(leaf) if is_array(leaf) else None)
        reached = _reached([t.grad_fn for t in results])
        own = [t if t._base is None else t._base for t in shown]
        new = Results(self._name, found, shown).tensors
        constants = [i for i, t in enumerate(own) if t.requires_grad and id(t) not in reached]
        return constants, [i for i, t in enumerate(new) if not t.requires_grad]

    def types_of(self, known: dict[Any, list[Any]]) -> Callable[[list[tuple[int, ...]]], list[Any]]:
        """A function from shapes of arguments to the types of results. `known` are those of all calls of a trace: a
        model's layers call the same functions, and torch takes a millisecond for some.
        """
        constants = tuple((type(leaf), leaf) for leaf in leaves(self._structure))
        call = self._function, repr(self._structure), constants, tuple(self._dtypes)

        def types(shapes: list[tuple[int, ...]]) -> list[Any]:
            key = call, tuple(shapes)
            if not is_hashable(key):
                return self._types(shapes)
            if key not in known:
                known.clear() if len(known) == _MOST_TYPES else None
                known[key] = self._types(shapes)
            return known[key]

        return types

    def _types(self, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        found, shown, written = self(shapes)
        made = types_of_results(self._name, Results(self._name, found, shown), shown, written)
        return [*made, *[DONE] * (len(written) + self.draws)]


def _reached(functions: list[Any]) -> set[int]:
    """The ids of the tensors to which functions of torch's autograd hand gradients."""
    seen: set[Any] = set()
    while functions:
        function = functions.pop()
        if function is not None and function not in seen:
            seen.add(function)
            functions += [before for before, _ in function.next_functions]
    return {id(f.variable) for f in seen if hasattr(f, "variable")}


def is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def types_of_results(name: str, results: Results, shown: Sequence[Any], written: Sequence[int]) -> list[Any]:
    return [_type(t, name) for t in (*results.tensors, *(shown[i] for i in written))]


class Results:
    """What a call on tensors without data gave: the new tensors, and where they are in the result."""

    def __init__(self, name: str, found: Any, shown: Sequence[Any]) -> None:
        self.tensors: list[Any] = []
        self._is_new: list[bool] = []  # of all tensors of the result
        self._shown = shown
        self._name = name
        self._structure = walk(found, self._visit)

    def _visit(self, _: str, leaf: Any) -> Any:
        if not is_array(leaf):
            return leaf
        self._is_new.append(all(leaf is not argument for argument in self._shown))
        for i, argument in enumerate(self._shown):
            if leaf is argument:  # x.add_(y) returns x
                return Slot(-1 - i)
        if not self._shown or type(leaf) is not type(self._shown[0]) or leaf.device != self._shown[0].device:
            raise trace_error(
                f"{self._name} gives a tensor that is not made of its traced arguments", "make it outside"
            )
        self.tensors.append(leaf)
        return Slot(len(self.tensors) - 1)

    def new(self) -> list[int] | None:
        """The numbers of the new tensors among all of the result; None where all are new."""
        return None if all(self._is_new) else [i for i, is_new in enumerate(self._is_new) if is_new]

    def filled(self, made: Sequence[Any], given: Sequence[Any]) -> Any:
        """The result with traced values in place of tensors."""
        all_values = [*made[: len(self.tensors)], *given[::-1]]  # Slot(-1) is the first of those given
        return fill(self._structure, all_values)


def _fake_tensors() -> Any:
    """A context in which tensors have no data and look as if they were where values are, as torch.autocast needs it."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def operators_met() -> Any:
    """A context that notes the operators which are called in it, as `operators`."""
    return _operators_met(sys.modules["torch"])()


@functools.cache
def _operators_met(torch: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class OperatorsMet(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.operators: list[Any] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.operators.append(function)
            return function(*args, **(kwargs or {}))

    return OperatorsMet


def _as_it_was() -> Any:
    """A context from which torch's generators come out as they went in."""
    return sys.modules["torch"].random.fork_rng()


def device_of(values: Sequence[Traced]) -> str:
    return str(getattr(values[0], "device", "cpu")) if values else "cpu"


def without_data(value: Traced, device: str = "meta") -> Any:
    """A tensor of the value's shape and dtype."""
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction():  # it is nothing that the traced function makes
        return torch.empty(value.shape, dtype=getattr(torch, value._dtype), device=device)


def lies_on(value: Any, device: Any) -> bool:
    """Whether a traced value is on a device, given as torch's object or a name."""
    if str(device) == "meta" and value._tracer.plans:
        return True  # the device of tensors that a plan takes for data
    return ("cuda:0" if str(device) == "cuda" else str(device)) == str(value.device)


def _moved(arguments: Any, values: Sequence[Traced], device: str) -> Any:
    """The arguments with the device of tensors without data in place of that of the values."""
    args, kwargs = walk(arguments, lambda _, leaf: device if _is_device_of(values, leaf) else leaf)
    if isinstance(named := kwargs.get("device"), str) and lies_on(values[0], named):
        kwargs = kwargs | {"device": device}
    return args, kwargs


def _is_device_of(values: Sequence[Traced], leaf: Any) -> bool:
    return isinstance(leaf, sys.modules["torch"].device) and lies_on(values[0], leaf)


def _called_without_data(function: Callable[..., Any], name: str, arguments: Any) -> Any:
    """Raises what the function raises where its arguments do not fit, with the user's line."""
    args, kwargs = arguments
    try:
        return function(*args, **kwargs)
    except TraceError:
        raise
    except Exception as error:
        if refusals.depends_on_data(error):
            raise refusals.refused_shape(name) from None
        line = user_line()
        raise type(error)(f"kfusion.{name.removeprefix('torch.')}: {error}" + (f"\n  {line}" if line else "")) from None


def _type(tensor: Any, name: str) -> tuple[str, tuple[int, ...]]:
    """The dtype and extents of the value that a tensor is; complex numbers are pairs of floats."""
    stored = STORED.get(name_of_dtype(tensor)) or dtype_of(tensor, name)
    return stored, (*tensor.shape, 2) if tensor.is_complex() else tuple(tensor.shape)


def shares_memory(a: Any, b: Any) -> bool:
    """Whether two tensors have one storage."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def owner(tensor: Any, shown: Sequence[Any], values: Sequence[Traced]) -> Traced:
    return next(v for t, v in zip(shown, values, strict=True) if shares_memory(tensor, t))
