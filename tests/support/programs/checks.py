"""What must hold for the plans of any program, and for its results on the CPU, on a GPU, and as generated text."""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import kfusion as kf
from cpu_kernels import Kernels
from host_cuda import HostKernels
from kfusion import _core
from kfusion._devices import running
from kinds import np_dtype

from .program import Program
from .torch_programs import TorchProgram
from .values import Unfit, Value

H200 = kf.device("H200").to_dict()
PATTERN, EDGE = 0xAB, 64
EXECUTABLE = {"executors": "available"}
COMPUTES = {"map", "reduce", "cast", "contraction", "gather", "library", "partial"}
KIND = {op["name"]: op["kind"] for op in _core.op_table()}


def is_part(node: dict[str, Any]) -> bool:
    """Whether a node stores a part of a join."""
    return KIND[node["op"]] == "join" and len(node["arguments"]) == 1


def check_groups(graph: dict[str, Any], groups: Sequence[dict[str, Any]], *, once: bool = True) -> None:
    """Each computing node is in one kernel (unfused: in one or more), each value is stored by one, before it is loaded,
    and so is every result."""
    nodes = graph["nodes"]
    placed = Counter(n for g in groups for n in g["nodes"])
    assert not once or max(placed.values(), default=1) == 1, "a node is computed twice"
    computing = {i for i, n in enumerate(nodes) if KIND[n["op"]] in COMPUTES or is_part(n)}
    joins = {i: n["arguments"] for i, n in enumerate(nodes) if KIND[n["op"]] == "join" and not is_part(n)}
    assert computing <= set(placed), f"nodes {sorted(computing - set(placed))} are in no kernel"
    assert all(KIND[nodes[n]["op"]] == "view" for n in set(placed) - computing)  # reshapes that copy
    known = {i for i, n in enumerate(nodes) if n["op"] == "input"}
    for k, g in enumerate(groups):
        loads, stores = ({v["node"] for v in g[name]} for name in ("loads", "stores"))
        assert loads <= known, f"kernel {k} loads {sorted(loads - known)}, which is not stored yet"
        assert not stores & known, f"kernel {k} stores {sorted(stores & known)} again"
        assert stores <= set(g["nodes"]), f"kernel {k} stores what it does not compute"
        known |= stores
        for i, parts in joins.items():  # in their order: a join may be part of another
            known |= {i} if known.issuperset(parts) else set()
    for o in graph["outputs"]:
        assert _is_there(nodes, o["node"], known), f"no kernel stores result {o['name']!r}"


def _is_there(nodes: Sequence[dict[str, Any]], n: int, known: set[int]) -> bool:
    """Whether a node is stored or given, or a view of what is."""
    while n not in known and KIND[nodes[n]["op"]] == "view":
        (n,) = nodes[n]["arguments"]
    return n in known or nodes[n]["op"] in ("constant", "iota")


def total(cost: dict[str, Any]) -> int:
    return int(cost["compulsory"]["read"] + cost["compulsory"]["written"])


def check_gain(plan: dict[str, Any]) -> None:
    """Fusing makes nothing worse."""
    fused, unfused = plan["fused"], plan["unfused"]
    assert total(fused) <= total(unfused), f"fused moves {total(fused)} bytes, unfused {total(unfused)}"
    assert fused["launches"] <= unfused["launches"], (
        f"{fused['launches']} launches fused, {unfused['launches']} unfused"
    )
    assert fused["predicted_us"] <= unfused["predicted_us"] * (1 + 1e-9), (
        f"{fused['predicted_us']} us fused, {unfused['predicted_us']} us unfused, as predicted"
    )


def check_plan(graph: _core.Graph, device: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    plan = _core.make_plan(graph, device, options)
    check_groups(plan["graph"], plan["groups"])
    check_groups(plan["unfused_graph"], plan["unfused_groups"], once=False)
    check_gain(plan)
    return plan


def check_round_trip(plan: dict[str, Any]) -> None:
    plan = {**plan, "function": "f", "modules": {}}
    assert json.loads(kf.Plan.from_dict(plan).to_json()) == json.loads(json.dumps(plan))


def check_results(values: Sequence[Value], results: Sequence[Any], what: str) -> None:
    assert len(results) == len(values), f"{what}: {len(results)} results"
    for k, (value, got) in enumerate(zip(values, results, strict=True)):
        try:
            value.check(got)
        except AssertionError as e:
            raise AssertionError(f"{what}: result {k}: {e}") from None


def check_bits(values: Sequence[Value], some: Sequence[Any], others: Sequence[Any], what: str) -> None:
    for k, (value, a, b) in enumerate(zip(values, map(np.asarray, some), map(np.asarray, others), strict=True)):
        if not value.same_bits or a.tobytes() == b.tobytes():
            continue
        differ = (a != b) | (value.signed & (np.signbit(a) != np.signbit(b)) if value.is_float else False)
        if differ.any():
            first = tuple(map(int, np.argwhere(differ)[0]))
            counts = f"{differ.sum()} of {a.size} elements differ"
            raise AssertionError(f"{what}: result {k}: {counts}; {first}: {a[first]!r} and {b[first]!r}")


def poisoned(v: Value) -> np.ndarray:
    """Memory for a result, holding what it is not, with edges that nobody may touch."""
    dtype = np_dtype(v.dtype)
    owner = np.full(EDGE + v.array.size * dtype.itemsize + EDGE, PATTERN, np.uint8)
    return owner[EDGE:-EDGE].view(dtype).reshape(v.shape)


def check_edges(out: np.ndarray) -> None:
    owner = out.base
    assert owner is not None
    assert (owner[:EDGE] == PATTERN).all(), "written before a result"
    assert (owner[-EDGE:] == PATTERN).all(), "written behind a result"


def error_of(check: Callable[..., None], *args: Any, **kwargs: Any) -> Exception | None:
    """What a check found; nothing where it cannot say anything."""
    try:
        check(*args, **kwargs)
    except Unfit:
        return None
    except Exception as e:
        return e
    return None


class Traced(_core.FusedCallable):
    """A traced call as kernels: what `kf.fuse` makes of it, without tracing once for each way to run it."""

    def __init__(self, prepared: Any, parameters: Sequence[str], fuse: bool) -> None:
        super().__init__("f", list(parameters), {**EXECUTABLE, "fuse": fuse}, True, True)
        self._prepared = prepared

    def _guards(self) -> list[Any]:
        return []

    def _prepare(self, args: Any, kwargs: Any, strides: Any, numbers: bool, *_: Any) -> Any:
        return self._prepared


class Runner:
    """Runs programs on the CPU."""

    torch_device = "cpu"
    eager_device = "cpu"  # where torch's own error is measured

    def __init__(self) -> None:
        self.device = running.device("cpu").to_dict()

    def make(self, x: np.ndarray) -> Any:
        return x

    def back(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def says_something(self, program: Program) -> bool:
        """Whether there is anything to check."""
        return not isinstance(program, TorchProgram) or _against_torch().says_something(program)

    def is_lost(self) -> bool:
        """Whether nothing can be run in this process any more."""
        return False

    def runs_eagerly(self, program: Program) -> bool:
        """Whether the program runs without kfusion, where it can be written so."""
        return True

    def script(self, program: Program) -> str:
        """What repeats a failure."""
        return program.reproducer()

    def values(self, program: Program) -> list[Value]:
        """What the results must be."""
        computed = program.values()
        return [computed[o] for o in program.outputs]

    def prepared(self, program: Program, inputs: Sequence[Any]) -> Any:
        strides = [_core.element_strides(x, "f", "x") for x in inputs]
        return kf.fuse(program.function())._traced(inputs, {}, strides, floats=True, ints=True)

    def run(self, function: Traced, inputs: Sequence[Any], values: Sequence[Value]) -> tuple[list[Any], list[Any]]:
        """The results in arrays that are given, and in fresh ones."""
        memory = [poisoned(v) for v in values]
        outs = tuple(map(self.make, memory))
        function(*inputs, out=outs)
        for m in memory:
            check_edges(m)
        return [self.back(o) for o in outs], [self.back(r) for r in function(*inputs)]

    def check(self, program: Program, *, thorough: bool = False) -> None:
        """Asserts all that must hold. `thorough`: with what takes longer."""
        if isinstance(program, TorchProgram):
            _against_torch().check(program, self.torch_device, self.eager_device, thorough=thorough)
            return
        values = self.values(program)
        inputs, before = [self.make(x) for x in program.inputs], [x.tobytes() for x in program.inputs]
        prepared = self.prepared(program, inputs)
        plan = check_plan(prepared.graph, H200, {})
        check_plan(prepared.graph, self.device, EXECUTABLE)
        fused, unfused = (Traced(prepared, program.names[: len(inputs)], fuse) for fuse in (True, False))
        into, fresh = self.run(fused, inputs, values)
        apart, _ = self.run(unfused, inputs, values)
        assert [self.back(x).tobytes() for x in inputs] == before, "an input has changed"
        check_results(values, into, "fused, out=")
        check_results(values, fresh, "fused")
        check_results(values, apart, "unfused, out=")
        check_bits(values, into, apart, "fused and unfused")
        check_bits(values, into, fresh, "fused with and without out=")
        if thorough:
            check_round_trip(plan)
            self.check_ways(prepared.graph, fused, inputs, values)

    def check_ways(self, graph: _core.Graph, fused: Traced, inputs: Sequence[Any], values: Sequence[Value]) -> None:
        """More threads, on which no bit depends, and every instruction set."""
        one, _ = self.run(fused, inputs, values)
        with threads(3):
            several, _ = self.run(fused, inputs, values)
        assert [r.tobytes() for r in one] == [r.tobytes() for r in several], "bits depend on the number of threads"
        with instruction_sets() as names:
            for name in names:
                _core.testing.set_isa(name)
                together, apart = (Kernels(graph, fuse) for fuse in (True, False))
                if None not in together.functions:  # what the array library computes
                    check_results(values, results := together(*inputs), name)
                    check_bits(values, results, apart(*inputs), f"fused and unfused, {name}")


class GpuRunner(Runner):
    """Runs programs on a GPU."""

    torch_device = eager_device = "cuda"

    def __init__(self) -> None:
        self.device = running.device("cuda:0").to_dict()

    def make(self, x: np.ndarray) -> Any:
        return kf.to_device(x)

    def back(self, x: Any) -> np.ndarray:
        return np.asarray(x.numpy() if hasattr(x, "numpy") else x)

    def is_lost(self) -> bool:
        try:
            self.back(self.make(np.zeros(1)))
            if "torch" in sys.modules:
                sys.modules["torch"].cuda.synchronize()
        except Exception:
            return True
        return False

    def runs_eagerly(self, program: Program) -> bool:
        if isinstance(program, TorchProgram):
            _against_torch().run_eagerly(program, self.torch_device)
        return not self.is_lost()

    def check_ways(self, graph: _core.Graph, fused: Traced, inputs: Sequence[Any], values: Sequence[Value]) -> None:
        pass


class TextRunner(Runner):
    """Runs the generated CUDA text of programs on the host, many of them compiled together."""

    def check(self, program: Program, *, thorough: bool = False) -> None:
        (error,) = self.errors([program])
        if error is not None:
            raise error

    def errors(self, programs: Sequence[Program]) -> list[Exception | None]:
        graphs = [self.prepared(p, p.inputs).graph for p in programs]
        with tempfile.TemporaryDirectory() as folder:
            kernels = [HostKernels(graphs, _made(Path(folder, str(fuse))), fuse=fuse) for fuse in (True, False)]
            return [error_of(self._check, kernels, i, p) for i, p in enumerate(programs)]

    def _check(self, kernels: Sequence[HostKernels], i: int, program: Program) -> None:
        values = self.values(program)
        fused, unfused = (k.run(i, program.inputs) for k in kernels)
        check_results(values, fused, "fused")
        check_results(values, unfused, "unfused")
        check_bits(values, fused, unfused, "fused and unfused")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = kf.get_num_threads()
    kf.set_num_threads(n)
    try:
        yield
    finally:
        kf.set_num_threads(before)


@contextmanager
def instruction_sets() -> Iterator[list[str]]:
    before = _core.isa()
    try:
        yield [name for name in _core.available_isas() if name != before]
    finally:
        _core.testing.set_isa(before)


def _against_torch() -> Any:
    from . import against_torch  # needs torch

    return against_torch


def _grad_runner() -> Runner:
    from .grad_checks import GradRunner  # needs torch

    return GradRunner()


def _call_runner() -> Runner:
    from .call_checks import CallRunner  # likewise

    return CallRunner()


def _own_runner() -> Runner:
    from .autograd_checks import OwnRunner

    return OwnRunner()


RUNNERS: dict[str, Callable[[], Runner]] = {
    **{"cpu": Runner, "text": TextRunner, "gpu": GpuRunner},
    **{"grad": _grad_runner, "calls": _call_runner, "own": _own_runner},
}
