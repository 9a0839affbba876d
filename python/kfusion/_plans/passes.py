"""A plan with gradients: which kernels are the forward pass and which the backward pass, and what is kept between.

A node is a gradient where it is the gradient of something, or made of one; tracing marks it. A kernel belongs to the
pass of what it stores, and to the backward pass where it makes nothing but what gradients are made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _schema
from .._graph.replay import KINDS
from .._spec import ITEM_BYTES

if TYPE_CHECKING:
    from .._devices.device import Device
    from .plan import Plan
    from .records import Group, Load

FORWARD, BACKWARD, BOTH = "forward", "backward", "both"


@dataclass(frozen=True)
class KeptArray:
    """An array that the forward pass makes, or is given, and the backward pass reads.

    role is "argument", "result" or "kept"; bytes are its own where it is kept, else 0: it is there anyway. stored_by
    and read_by are numbers of kernels, stored_by -1 for an argument. again_us is what computing it again would take, by
    the bytes that its kernel reads for it and the operations of the products that it is made of; None where that is no
    question: of arguments, results and the library's calls.
    """

    value: str
    node: int
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    stored_by: int
    read_by: tuple[int, ...]
    again_us: float | None
    why: str


@dataclass(frozen=True)
class Pass:
    """What the kernels of one pass cost: "forward", "backward", or "both" for those that store results of both."""

    name: str
    kernels: tuple[int, ...]
    launches: int
    read: int
    written: int
    flops: int
    us: float


@dataclass(frozen=True)
class Passes:
    """Both passes of a plan with gradients, and what is kept between them.

    kernels has the pass of each kernel, unfused_kernels that of each without fusion. peak_bytes is the
    peak memory of intermediates, of both passes.
    """

    kernels: tuple[str, ...]
    unfused_kernels: tuple[str, ...]
    passes: tuple[Pass, ...]
    kept: tuple[KeptArray, ...]
    peak_bytes: int

    @property
    def kept_bytes(self) -> int:
        """The bytes of what is kept: arguments and results are there anyway."""
        return sum(array.bytes for array in self.kept)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return _schema.to_plain(self) | {"kept_bytes": self.kept_bytes}


def passes_of(plan: Plan) -> Passes | None:
    """The passes of a plan whose function has gradients in it; None for any other."""
    graph = plan._graph
    if not any(node.get("gradient") for node in graph["nodes"]):
        return None
    kernels = _directions(plan.groups, graph)
    unfused = _directions(plan.unfused_groups, plan.unfused_graph.to_dict())
    found = (_pass(name, plan.groups, kernels) for name in (FORWARD, BOTH, BACKWARD))
    kept = tuple(_Kept(plan, kernels).arrays())
    return Passes(kernels, unfused, tuple(p for p in found if p.kernels), kept, plan.fused.peak_intermediate_bytes)


def _directions(groups: Sequence[Group], graph: Mapping[str, Any]) -> tuple[str, ...]:
    nodes = graph["nodes"]
    is_late = ["_backward" in stage["name"] for stage in graph["stages"]]  # as the calls that adjoints make are named
    found = []
    for group in groups:
        stored = {bool(nodes[store.node].get("gradient")) for store in group.stores}
        if stored == {True} or all(is_late[nodes[n]["stage"]] for n in group.nodes):
            found.append(BACKWARD)
        else:
            found.append(BOTH if True in stored else FORWARD)
    return tuple(found)


def _pass(name: str, groups: Sequence[Group], kernels: Sequence[str]) -> Pass:
    own = [group for group, direction in zip(groups, kernels, strict=True) if direction == name]
    return Pass(
        name,
        tuple(group.id for group in own),
        sum(group.launches for group in own),
        sum(group.issued.read for group in own),
        sum(group.issued.written for group in own),
        sum(group.flop_total for group in own),
        sum(group.time_us for group in own),
    )


class _Kept:
    """Finds what kernels of the backward pass read of what is no gradient."""

    def __init__(self, plan: Plan, kernels: Sequence[str]) -> None:
        self._device: Device = plan.device
        self._groups = plan.groups
        self._nodes: list[dict[str, Any]] = plan._nodes
        self._kernels = kernels
        self._stored_by = {store.node: group for group in plan.groups for store in group.stores}
        self._results = {self._base(output["node"]) for output in plan._graph["outputs"]}

    def arrays(self) -> Iterator[KeptArray]:
        names: dict[int, str] = {}
        readers: dict[int, list[int]] = {}
        for group, direction in zip(self._groups, self._kernels, strict=True):
            for load in group.loads if direction != FORWARD else ():
                if self._is_late(load.node) or (direction == BOTH and not self._is_for_gradients(group, load)):
                    continue
                names[load.node] = load.value
                listed = readers.setdefault(load.node, [])
                if group.id not in listed:
                    listed.append(group.id)
        for node, read_by in sorted(readers.items()):
            yield self._array(node, names[node], tuple(read_by))

    def _is_gradient(self, node: int) -> bool:
        return bool(self._nodes[node].get("gradient"))

    def _is_late(self, node: int) -> bool:
        """Whether a value is a gradient, or made by the backward pass."""
        group = self._writer(node)
        return self._is_gradient(node) or (group is not None and self._kernels[group.id] == BACKWARD)

    def _base(self, node: int) -> int:
        """What views of it look at."""
        while node not in self._stored_by and KINDS[self._nodes[node]["op"]] == "view":
            node = self._nodes[node]["arguments"][0]
        return node

    def _is_for_gradients(self, group: Group, load: Load) -> bool:
        """Whether a gradient is made of what a kernel of both passes loads, and not only of what is made of that."""
        readers = (self._nodes[n] for n in group.nodes if self._is_gradient(n))
        return any(self._base(a) == load.node for reader in readers for a in reader["arguments"])

    def _array(self, n: int, name: str, read_by: tuple[int, ...]) -> KeptArray:
        node, group = self._nodes[n], self._writer(n)
        role = "argument" if node["op"] == "input" else "result" if n in self._results else "kept"
        nbytes, again, why = 0, None, f"{role}: free"
        if role == "kept":
            nbytes = _nbytes(node)
            again, why = self._reason(n, group, read_by)
        stored_by = -1 if group is None else group.id
        return KeptArray(name, n, role, node["dtype"], tuple(node["shape"]), nbytes, stored_by, read_by, again, why)

    def _writer(self, node: int) -> Group | None:
        """The kernel that stores a value; of a join the last one that stores a part."""
        parts = [node] if node in self._stored_by else self._nodes[node]["arguments"]
        stored_by = (self._stored_by[part] for part in parts if part in self._stored_by)
        return max(stored_by, key=lambda group: group.id, default=None)

    def _reason(self, node: int, group: Group | None, read_by: Sequence[int]) -> tuple[float | None, str]:
        if group is None or self._of_kind("library", group.nodes):
            return None, "library call"
        made_of, loaded = self._made_of(node, group)
        products = self._of_kind("contraction", made_of)
        us = self._again_us(products, loaded)
        if products:
            return us, "product" if node in products else "made of a product"
        is_smaller = math.prod(self._nodes[node]["shape"]) < math.prod(group.domain)
        if is_smaller and self._of_kind("reduce", made_of):
            return us, "row statistics"
        for kind, why in (("contraction", "factor of a product"), ("library", "given to the library")):
            readers = (self._nodes[n] for k in read_by for n in self._of_kind(kind, self._groups[k].nodes))
            if any(self._base(a) == node for reader in readers for a in reader["arguments"]):
                return us, why
        return us, "fewest bytes"

    def _of_kind(self, kind: str, nodes: Iterable[int]) -> list[int]:
        return [n for n in nodes if KINDS[self._nodes[n]["op"]] == kind]

    def _made_of(self, node: int, group: Group) -> tuple[set[int], set[int]]:
        """Nodes of its kernel that it is made of, itself too, and what these load."""
        inside, loads = set(group.nodes), {load.node for load in group.loads}
        found: set[int] = set()
        loaded: set[int] = set()
        left = [node]
        while left:
            n = left.pop()
            if n in loads and n not in inside:
                loaded.add(n)
            elif n not in found:
                found.add(n)
                left += self._nodes[n]["arguments"]
        return found & inside, loaded

    def _again_us(self, products: Sequence[int], loaded: set[int]) -> float:
        nbytes = sum(_nbytes(self._nodes[n]) for n in loaded)
        seconds = 0.0
        for n in map(self._nodes.__getitem__, products):
            shapes = [self._nodes[a]["shape"] for a in n["arguments"]]
            depth = shapes[0][-1] if n["op"] == "matmul" else math.prod(shapes[1][1:])
            seconds += 2 * depth * math.prod(n["shape"]) / self._device.peak_flops(n["dtype"], "matrix")
        return 1e6 * max(nbytes / self._device.bandwidth, seconds)


def _nbytes(node: Mapping[str, Any]) -> int:
    return int(math.prod(node["shape"]) * ITEM_BYTES[node["dtype"]])
