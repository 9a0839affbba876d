"""Values that stand for a graph's nodes while a function is traced, and what is noted of inputs and calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from .._spec import Spec
from . import memory
from .memory import Memory, Path

if TYPE_CHECKING:
    from .tracer import Tracer


class Input(NamedTuple):
    """One input node: an argument, or an array that the function named (`captured`)."""

    name: str
    spec: Spec
    array: Any
    captured: bool
    argument: int = -1  # its number among the call's arrays


@dataclass(frozen=True)
class Argument:
    """An array among a call's arguments: its number, and its strides in elements (none: C order)."""

    array: Any
    number: int
    strides: Sequence[int] = ()


class ReadAsConstant(BaseException):
    """A tensor that the function writes to was read as a constant before: it is to be traced again, where that tensor
    is a traced value from the beginning. No code of the user's is to handle it.
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Node(NamedTuple):
    """A node of the graph, by number, among other arguments of a call."""

    id: int


class Call(NamedTuple):
    """One call of a function of kfusion: all its arguments, defaults too, by name, and the node of its result."""

    name: str
    arguments: dict[str, Any]
    result: int


class Alternative(NamedTuple):
    """A function of the array library for what several nodes compute: `run` takes the arguments, returns a list of one
    array, which has the axes in that order, if any."""

    result: int
    arguments: tuple[int, ...]
    run: Callable[..., Any]
    order: tuple[int, ...] = ()


class Written(NamedTuple):
    """An input that is written to: its number, its value, the new one, and the part that this fills (None: all).
    `in_place`: a call of the library writes to it, and `result` says only that it has run.
    """

    input: int
    value: Traced
    result: Traced
    part: list[memory.Range] | None
    in_place: bool = False


class WritingCall(NamedTuple):
    """A call of the library that writes to one of its arguments: the nodes of that argument before and after it, and a
    result of no use that comes when it has run. `run` writes to a copy unless its `in_place` is set.
    """

    run: Any
    before: int
    after: int
    done: int


STATE = ("_memory", "_node", "_path", "_tracer", "_version")  # what a traced value holds: the slots of its class


class Traced:
    """A value while its function is traced: a node of the graph. Subclasses give it a library's methods."""

    __slots__ = ()
    __kfusion_traced__ = True  # what C++ knows it by
    _tracer: Tracer
    _node: int | str  # a reason, for a value that cannot be had
    _memory: Memory
    _version: int
    _path: Path | None  # None: nobody knows whether it is a view of its memory
    _library: ClassVar[str]
    _classes: ClassVar[dict[str, type[Traced]]] = {}

    def __init_subclass__(cls, library: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if library:
            cls._library = library
            Traced._classes[library] = cls

    @classmethod
    def _made_as(cls) -> type[Traced]:
        """The class of which values of this library are."""
        return cls

    @property
    def _dtype(self) -> str:
        """The dtype's name, whatever the library."""
        return str(self._tracer.graph.dtype(self._tracer.node(self)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return tuple(self._tracer.graph.shape(self._tracer.node(self)))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)


class Watch(Protocol):
    """What observes a function's own code: from a `resume` to the `pause` for an operation. Each pause within another
    one has its own resume, which ends nothing.
    """

    def resume(self) -> None: ...
    def pause(self, operation: Hashable) -> None: ...


class Attempt(NamedTuple):
    """How a function is traced this time. `watch` is told when the function's own code runs. `changed` are tensors of
    outside that the function is known to write to. `compiles`: torch.compiler.is_compiling() is true in it. `whole`: as
    of `Heads`.
    """

    watch: Watch | None = None
    changed: Sequence[Any] = ()
    compiles: bool = False
    whole: Sequence[int] = ()


def has_no_data(array: Any) -> bool:
    """Whether array is a tensor of torch's that has a shape and a dtype only: on the meta device, or a fake one."""
    return getattr(array, "is_meta", False) is True or getattr(array, "fake_mode", None) is not None


def place_of(inputs: Iterable[Input]) -> str:
    """ "cpu" or "cuda:0": where a traced function's arrays lie."""
    return next((i.spec.device for i in inputs if i.spec.device != "cpu"), "cpu")


def tracer_of(*values: Any) -> Tracer | None:
    """The tracer of the first traced value."""
    return next((v._tracer for v in values if isinstance(v, Traced)), None)


def is_weak(x: Traced) -> bool:
    """Whether x is a Python number, which takes the dtype of what it meets."""
    return bool(x._tracer.graph.node(x._tracer.node(x)).get("weak"))


def stage(x: Traced, name: str) -> contextlib.AbstractContextManager[None]:
    """A stage of the graph that x is in."""
    return x._tracer.stage(name)
