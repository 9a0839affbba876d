"""One graph of operators as a function of tensors: a fused function, and on the host what needs no kernel.

On the host are sizes, arguments that come back, and views of arguments or of results, which share their memory; and
results that are made of no tensor, anew by each call: callers may write to them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .._fuse import fuse
from .._tracing import aten, fx_graphs
from . import donation
from .batch_norms import Channels
from .layouts import Turned, turned
from .strides import Layouts, bases

_log = logging.getLogger(__name__)


class Compiled:
    """What a graph module computes, of a list of its arguments, which it empties: torch's boxed convention.

    Args:
        module: a graph of torch's operators that write to nothing; `meta["val"]` of its nodes is known.
        name: what messages call it.
        infers: whether no backward pass follows: values in between may lie as suits the kernels.
        donated: indices of arguments whose memory kernels may use, where `donation.is_given` says so.
    """

    def __init__(self, module: Any, name: str, *, infers: bool = False, donated: Iterable[int] = ()) -> None:
        self._arguments = [n for n in module.graph.nodes if n.op == "placeholder"]
        last = Turned(module) if infers else None
        self._channels = Channels(module, f"{name}_channels")
        nodes = list(module.graph.nodes)
        self._module = module
        self._constants = fx_graphs.constants(module)
        self._placeholders = [n for n in nodes if n.op == "placeholder"]
        self._results = list(nodes[-1].args[0]) if isinstance(nodes[-1].args[0], (tuple, list)) else [nodes[-1].args[0]]
        self._plan_host(nodes)
        self._plan_arguments()
        self._layouts = Layouts(self._fused_results, self._placeholders)
        self._is_eager = not self._fused_results or any(map(self._is_of_memory, nodes))
        self.function: Any = None if self._is_eager else fuse(self._traced_function(name))
        self._donated = [] if self._is_eager else self._given_away(donated)
        self._consuming: Any = fuse(self._traced_function(name, self._donated)) if self._donated else None
        self._turned = last.of(self._given) if last and not self._is_eager else []

    @property
    def consumes(self) -> bool:
        """Whether calls may use memory of their arguments."""
        return self._consuming is not None

    def _given_away(self, indices: Iterable[int]) -> list[int]:
        """The donated arguments that kernels may store into, and leave empty: nothing on the host reads them
        afterwards. A complex tensor is two values in kernels.
        """
        on_host = {argument for n in self._host for argument in n.all_input_nodes}
        arguments = self._arguments
        read = [i for i in indices if arguments[i] in self._read and arguments[i] not in on_host]
        return [i for i in read if not arguments[i].meta["val"].is_complex()]

    def _plan_host(self, nodes: Sequence[Any]) -> None:
        """Chooses what the fused function computes, and what the host."""
        wanted = dict.fromkeys(r for r in self._results if hasattr(r, "op"))
        made_first = bases(list(wanted))
        on_host = set(self._placeholders)
        made: set[Any] = set()  # of sizes and constants alone
        self._fused_results = []
        for node in nodes:
            is_known = all(n in on_host for n in node.all_input_nodes)
            if _makes(node) and all(n in made or (_is_size(n) and n in on_host) for n in node.all_input_nodes):
                made.add(node)
                on_host.add(node)
            elif is_known and (fx_graphs.is_view(node) or (_is_size(node) and node.op == "call_function")):
                on_host.add(node)
            elif (node in wanted or node in made_first) and node not in on_host:
                self._fused_results.append(node)
                on_host.add(node)
        inside = _made_of(self._fused_results, set(self._placeholders))
        host = _made_of(wanted, {*self._placeholders, *self._fused_results})
        self._inside = [n for n in nodes if n in inside]
        self._host = [n for n in nodes if n in host]
        self._read = [n for n in self._placeholders if any(u in inside for u in n.users)]

    def _is_of_memory(self, node: Any) -> bool:
        """Whether a node reads memory by strides that no traced value has, or gives a view that comes back."""
        if not fx_graphs.reads_by_strides(node) or node.args[0] in self._placeholders:
            return False
        views, waiting = set(), [node]
        while waiting:
            views.add(seen := waiting.pop())
            waiting += [u for u in seen.users if fx_graphs.is_view(u)]
        returned = fx_graphs.is_view(node) and any(r in views for r in self._results if hasattr(r, "op"))
        return returned or not fx_graphs.has_own_memory(node.args[0])

    def _plan_arguments(self) -> None:
        """What the fused function is given: the tensors that the graph reads, and sizes that no tensor has."""
        tensors = [n for n in self._read if not _is_size(n)]
        found = fx_graphs.symbols(tensors)
        self._sizes = {n: found.get(fx_graphs.symbol(n.meta.get("val"))) for n in self._read if _is_size(n)}
        self._given = [*tensors, *(n for n, source in self._sizes.items() if source is None)]
        self._of_tensors = frozenset(n for n, source in self._sizes.items() if source is not None)

    def _traced_function(self, name: str, donated: Iterable[int] = ()) -> Any:
        """The function that is traced. Kernels may use the memory of the `donated` arguments."""
        given, sizes, inside, constants = self._given, self._sizes, self._inside, self._constants
        results, layouts = self._fused_results, self._layouts
        consumed = [self._arguments[i] for i in donated]

        def graph(*arguments: Any) -> Any:
            values = dict(zip(given, arguments, strict=True))
            for node in consumed:
                values[node]._tracer.donate(values[node])
            for node, source in sizes.items():
                if source is not None:
                    values[node] = arguments[source[0]].shape[source[1]]
            fx_graphs.run(inside, values, constants)
            return tuple(layouts.turned([values[n] for n in results]))

        graph.__name__ = graph.__qualname__ = name
        return graph

    def boxed(self) -> Any:
        """The graph as a function for AOTAutograd, which says so by an attribute that wrappers copy."""

        def run(arguments: list[Any]) -> list[Any]:
            return self(arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """The graph's results."""
        consumes = self._consuming is not None and donation.is_given(arguments, self._donated)
        given = dict(zip(self._arguments, arguments, strict=True))
        arguments.clear()
        if self._channels.arguments:
            with _plain_torch():
                given |= self._channels.values(given)
        values: dict[Any, Any] = dict(given)
        if self._is_eager:
            return self._eagerly(values)
        sizes = self._layouts.sizes(given)
        try:
            made = self._fused(self._consuming if consumes else self.function, given)
        except Exception as error:
            if isinstance(error, IndexError) and "out of bounds" in str(error):
                raise  # of this call's data: the next one may do
            if consumes and not self._fails_before_kernels(given):
                self._consuming = None
                raise  # what they have written over is no argument for another try
            return self._refused(error, values)
        with torch.no_grad():
            values.update(zip(self._fused_results, self._layouts.laid(made, sizes), strict=True))
            fx_graphs.run(self._host, values, self._constants, traces=False)
            return [values[r] if hasattr(r, "op") else r for r in self._results]

    def _fused(self, function: Any, given: Mapping[Any, Any]) -> Any:
        tensors = [given[n] for n in self._given]
        with _plain_torch():
            return function(*(turned(tensors, self._turned) if self._turned else tensors))

    def _fails_before_kernels(self, given: Mapping[Any, Any]) -> bool:
        """Whether a call that has failed would not come as far as to run a kernel."""
        try:
            self._consuming.plan(*[given[n] for n in self._given])
        except Exception:
            donated = [self._arguments[i] for i in self._donated]
            return all(given[n].numel() or not fx_graphs.known(n.meta["val"].numel()) for n in donated)
        return False

    def _eagerly(self, values: dict[Any, Any]) -> list[Any]:
        with _plain_torch():
            return list(self._module(*[values[n] for n in self._placeholders]))

    def _refused(self, error: Exception, values: dict[Any, Any]) -> list[Any]:
        """Runs operator by operator what has no kernels: where torch runs it, from now on."""
        made = self._eagerly(values)
        _log.warning("kfusion runs a graph operator by operator: %s", error)
        self._is_eager = True
        return made


@contextlib.contextmanager
def _plain_torch() -> Any:
    """Neither gradients nor autocast: both are in the graph already."""
    with torch.no_grad(), contextlib.ExitStack() as stack:
        if torch._C._is_any_autocast_enabled():
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _is_size(node: Any) -> bool:
    """Whether a node is a number that is known on the host: a size, or what is made of sizes."""
    value = node.meta.get("val")
    return node.op in ("placeholder", "call_function") and isinstance(
        value, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
    )


def _makes(node: Any) -> bool:
    """Whether a node gives the same whenever it is computed of the same: a constant, and most operators."""
    if node.op == "get_attr":
        return fx_graphs.is_tensor(node.meta.get("val"))
    return node.op == "call_function" and not aten.draws(node.target)


def _made_of(results: Iterable[Any], known: set[Any]) -> set[Any]:
    """The nodes that must be computed for results, where some are known."""
    waiting, found = list(results), set()
    while waiting:
        node = waiting.pop()
        if node not in found and node not in known:
            found.add(node)
            waiting += node.all_input_nodes
    return found
