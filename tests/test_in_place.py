"""Values between kernels: where one takes the place of another, and where it must not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kernel_loops
import kfusion as kf
from graph_runs import graph_of
from host_cuda import HAVE_COMPILER, HostKernels
from kfusion import _core
from kfusion._devices import running
from sweeps import sweep

N = 24
DEVICE = running.device("cpu").to_dict()
X = np.zeros((N, N), np.float32)
ROW = np.zeros(N, np.float32)
BYTES = -(-X.nbytes // 256) * 256  # as memory is given out
serial = itertools.count()


def slots(build: Callable[..., Any], *arrays: np.ndarray, donated: tuple[int, ...] = ()) -> dict[str, Any]:
    """The slots of plans with a kernel for each node. Names of inputs are new, so that nothing made before is found."""
    g = _core.Graph()
    ids = [
        g.input(f"x{next(serial)}", a.shape, str(a.dtype), strides=[s // a.itemsize for s in a.strides]) for a in arrays
    ]
    for i in donated:
        g.donate(ids[i])
    outputs = build(g, *ids)
    g.set_outputs([(str(i), n) for i, n in enumerate(outputs if isinstance(outputs, list) else [outputs])])
    return _core.testing.slots(g, DEVICE, False)


def chain(g: Any, node: int, *names: str) -> int:
    for name in names:
        node = g.map(name, [node])
    return node


def flipped(g: Any, node: int) -> int:
    return g.slice(node, [(N - 1, -1, -1), (0, N, 1)])


def repeated(g: Any, row: int) -> int:
    return g.broadcast(row, [N, N])


# The bytes between kernels, and the function; `a` is a value that several kernels read.
PLACES: list[tuple[int, Callable[..., Any], tuple[np.ndarray, ...]]] = [
    (BYTES, lambda g, x: chain(g, x, "exp", "tanh", "abs", "sin"), (X,)),
    # The first reader does not take a's place, the second takes its own argument's; the last one takes a's.
    (
        2 * BYTES,
        lambda g, x: (
            a := chain(g, x, "exp"), b := chain(g, a, "tanh", "abs"), g.map("add", [chain(g, a, "sin"), b])
        )[2],
        (X,),
    ),
    (2 * BYTES, lambda g, x, y: chain(g, g.map("add", [chain(g, x, "exp"), chain(g, y, "exp")]), "abs"), (X, X)),
    (BYTES, lambda g, x: chain(g, g.map("multiply", [chain(g, x, "exp")] * 2), "abs"), (X,)),
    # Values of as many bytes share memory; else both lie side by side.
    *(
        (want, lambda g, x, t=dtype: chain(g, g.cast(chain(g, x, "exp"), t), "abs"), (X,))
        for dtype, want in (("int32", BYTES), ("float64", 3 * BYTES), ("float16", BYTES + 1280))
    ),
    (BYTES + 256, lambda g, x, r: chain(g, g.map("add", [x, repeated(g, chain(g, r, "exp"))]), "abs"), (X, ROW)),
    (2 * BYTES, lambda g, x: chain(g, g.map("add", [a := chain(g, x, "exp"), flipped(g, a)]), "abs"), (X,)),
    (2 * BYTES, lambda g, x: chain(g, flipped(g, chain(g, x, "exp")), "tanh", "abs"), (X,)),
    (2 * BYTES, lambda g, x, i: chain(g, g.take(chain(g, x, "exp"), i, 0), "abs"), (X, np.zeros(N, np.int32))),
    # A kernel that reduces may read what it has stored.
    (
        BYTES + 256 * -(-N * 4 // 256),
        lambda g, x: (
            a := chain(g, x, "exp"),
            s := g.reduce("sum", a, [1], True),
            chain(g, g.map("subtract", [a, repeated(g, s)]), "abs"),
        )[2],
        (X,),
    ),
    (BYTES, lambda g, x: [a := chain(g, x, "exp"), chain(g, a, "abs", "tanh")], (X,)),
]  # fmt: skip


class TestPlaces:
    def test_bytes(self) -> None:
        def check(want: int, build: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> None:
            assert slots(build, *arrays)["bytes"] == want

        sweep(check, PLACES)

    def test_arguments_and_outputs_stay(self, rng: np.random.Generator) -> None:
        def f(x: Any) -> Any:
            a = kf.exp(x)
            return a, kf.tanh(kf.abs(a))

        x = rng.standard_normal((N, N)).astype(np.float32)
        before = x.copy()
        a, b = kf.fuse(f).unfused(x)
        np.testing.assert_array_equal(x, before)
        np.testing.assert_allclose(a, np.exp(x), rtol=1e-5)
        np.testing.assert_allclose(b, np.tanh(np.exp(x)), rtol=1e-5)

    def test_lent(self) -> None:
        _core.testing.lend_everywhere(True)
        try:
            s = slots(lambda g, x: chain(g, x, "exp", "tanh", "abs", "sin"), X)
        finally:
            _core.testing.lend_everywhere(False)
        first = s["inputs"] + s["outputs"]
        assert (s["lies"], s["bytes"]) == (["lent", "taken", "taken"], 0)
        assert s["starts"] == [[(first, -1, X.nbytes)], [(first + 1, first, 0)], [(first + 2, first + 1, 0)], []]
        assert s["released"] == [[], [], [], [first]]


class TestDonated:
    def test_is_taken_and_given_back(self) -> None:
        s = slots(lambda g, x: chain(g, x, "exp", "tanh", "abs"), X, donated=(0,))
        assert s["lies"] == ["taken", "taken"]
        assert s["starts"][0] == [(2, 0, 0)]
        assert s["released"] == [[], [], [0]]

    def test_not_before_its_last_reader(self) -> None:
        def build(g: Any, x: int) -> int:
            return g.map("add", [chain(g, x, "exp"), chain(g, x, "tanh", "abs")])

        s = slots(build, X, donated=(0,))
        assert sorted(start[:2] for group in s["starts"] for start in group) == [(3, 0), (4, 3)]
        assert s["released"][-1] == [0]

    def test_lies_otherwise(self) -> None:
        """Its place is taken only by what lies in C order, and has as many bytes."""
        build = lambda g, x, y: chain(g, g.map("add", [y, g.cast(chain(g, x), "float32")]), "abs")  # noqa: E731
        for x in (X.T, X[::-1], np.zeros((N, 2 * N), np.float32)[:, ::2], X.astype(np.float64)):
            s = slots(build, x, X, donated=(0,))
            assert all(start[1] < 0 for group in s["starts"] for start in group)

    def test_only_what_is_said_to_be(self) -> None:
        s = slots(lambda g, x: chain(g, x, "exp", "tanh"), X)
        assert s["released"] == [[], []]
        assert s["bytes"] == BYTES


# ---- kernels of columns on a GPU, as text ----


def in_place(kernels: HostKernels, i: int, over: dict[int, int], kernel: Any, memory: dict[int, Any]) -> None:
    """Runs the kernel of graph i with results where what it reads lies."""
    memory.update({result: memory[read] for result, read in over.items()})
    kernels._run(kernels.functions[i][0], kernels.kernels[i][0], kernel, memory)


@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_of_columns_in_place(dtype: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """One sweep over columns stores maps of what it reads, and sums of them, in the place of both arguments."""
    shapes = [(67, 24), (600, 40), (35, 129), (300, 7)]

    def build(g: Any, z: int, dy: int) -> list[int]:
        h = g.map("multiply", [g.map("tanh", [z]), dy])
        dz = g.map("subtract", [dy, g.map("multiply", [z, dy])])
        return [h, dz, g.reduce("sum", dz, [0])]

    cases = [[rng.standard_normal(shape).astype(dtype) for _ in range(2)] for shape in shapes]
    kernels = HostKernels([graph_of(build, *case) for case in cases], tmp_path, multiprocessors=4)
    for i, case in enumerate(cases):
        ((kernel,), (lowered,)) = kernels.kernels[i], kernels.lowered[i]["kernels"]
        assert kernel.reads_first
        h, dz = [s["to"]["node"] for s in lowered["stores"]][:2]
        z, dy = [o["node"] for o in lowered["loads"]][:2]
        compute = functools.partial(in_place, kernels, i, {h: z, dz: dy})
        want = kernels.run(i, [x.copy() for x in case])
        got = kernel_loops.run(kernels.lowered[i], [x.copy() for x in case], compute=compute)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


@pytest.mark.skipif(not HAVE_COMPILER, reason="needs g++")
def test_columns_that_are_read_again(tmp_path: Path) -> None:
    """Several sweeps, or operands that lie across."""

    def again(g: Any, x: int) -> int:
        s = g.reduce("sum", x, [0], True)
        return g.map("subtract", [x, g.broadcast(s, [N, N])])

    def across(g: Any, x: int, y: int) -> list[int]:
        s = g.map("add", [x, y])
        return [s, g.reduce("sum", s, [0])]

    graphs = [graph_of(again, X), graph_of(across, X, X.T)]
    for (kernel,) in HostKernels(graphs, tmp_path).kernels:
        assert not kernel.reads_first


# ---- random programs: exact operations, so that NumPy's results are the same to the bit ----

UNARY: dict[str, Callable[[Any], Any]] = {
    "negative": lambda x: -x,
    "abs": abs,
    "flip": lambda x: x[::-1],
    "flip columns": lambda x: x[:, ::-1],
    "turn": lambda x: x.T,
    "row": lambda x: x[:1] + x * 0,
    "halve": lambda x: x * 0.5,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "maximum": np.maximum,
    "beside": lambda x, y: x - y[::-1],
}


@st.composite
def programs(draw: Any) -> tuple[list[tuple[Any, ...]], list[int]]:
    steps: list[tuple[Any, ...]] = []
    for k in range(2, draw(st.integers(3, 12))):
        back = st.integers(max(0, k - 3), k - 1)
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(sorted(UNARY))), draw(back)))
        else:
            steps.append((draw(st.sampled_from(sorted(BINARY))), draw(back), draw(back)))
    last = len(steps) + 1
    outputs = draw(st.lists(st.integers(2, last), min_size=0, max_size=2, unique=True))
    return steps, [*outputs, last] if last not in outputs else outputs


def run(program: tuple[list[tuple[Any, ...]], list[int]], x: Any, y: Any) -> tuple[Any, ...]:
    steps, outputs = program
    values = [x, y]
    for name, *arguments in steps:
        function: Any = UNARY.get(name) or BINARY[name]
        values.append(function(*(values[a] for a in arguments)))
    return tuple(values[o] for o in outputs)


@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(programs(), st.booleans(), st.booleans(), st.integers(2, 9))
def test_random_programs(program: Any, is_lent: bool, fuses: bool, n: int) -> None:
    _core.testing.lend_everywhere(is_lent)
    try:
        x, y = (np.random.default_rng(i).integers(-8, 8, (n, n)).astype(np.float32) for i in range(2))
        fused = kf.fuse(lambda x, y: run(program, x, y))
        given = x.copy(), y.copy()
        got = (fused if fuses else fused.unfused)(*given)
    finally:
        _core.testing.lend_everywhere(False)
    for g, w in zip(got, run(program, x, y), strict=True):
        np.testing.assert_array_equal(g, w)
    for g, w in zip(given, (x, y), strict=True):
        np.testing.assert_array_equal(g, w)
