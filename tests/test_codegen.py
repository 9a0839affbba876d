"""Generated CUDA C++: its text."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import golden
import kfusion as kf
from host_cuda import DEVICE
from kernel_graphs import (
    Build,
    chain,
    empty,
    graph_of,
    normalized,
    scaled,
    skeleton,
    softmax,
    softmax_of_product,
    sources,
    total,
    variance,
    weighted,
)
from kfusion import _core
from kinds import DTYPES, np_dtype

MOST_SHARED = 232448  # bytes that a block of an H200 can have
SKELETONS = Path(__file__).parent.parent / "cuda" / "codegen" / "skeletons" / "table.cpp"


class TestText:
    def test_another_batch_size_is_the_same_text(self):
        # There are two texts of elements: of few, which all have a thread at once, and of many.
        for build, arguments, rows in (
            (chain, (empty((1000,)),), (64, 500)),
            (chain, (empty((1000,)),), (5000, 100_001)),
            (normalized, (), (64, 100_001)),
            (softmax, (), (64, 100_001)),
        ):
            (one,), (other,) = (sources(build, empty((n, 1000)), *arguments) for n in rows)
            assert one == other
        (one,), (other,) = (sources(lambda g, x: g.map("exp", [x]), empty((n,))) for n in (64, 10_001))
        assert one == other
        (one,), (other,) = (sources(lambda g, x: g.reduce("sum", x, [0]), empty((n, 512))) for n in (64, 10_001))
        assert one == other

    def test_another_scalar_is_the_same_text(self):
        def scaled(factor: float) -> Build:
            return lambda g, x: g.map("multiply", [x, g.scalar(factor)])

        assert sources(scaled(2.0), empty((64,))) == sources(scaled(-7.5), empty((64,)))

    def test_layers_of_a_model_are_one_text_where_it_is_compiled(self):
        """Names of values and the numbers in a kernel's name tell them apart for people only."""

        def layers(x, y, first, second):
            x = kf.layernorm(kf.matmul(x, y) + x, first)
            return kf.layernorm(kf.matmul(x, y) + x, second)

        given = kf.spec((64, 256)), kf.spec((256, 256)), kf.spec((256,)), kf.spec((256,))
        graph, h200 = kf.trace(layers, *given), kf.device("h200").to_dict()
        shown, compiled = ([k for k in _core.cuda_kernels(graph, h200, names=n) if k] for n in (True, False))
        assert len({k.source for k in shown}) == len({k.entry for k in shown}) == len(shown) == 2
        assert "in_second" in shown[1].source
        assert len({k.source for k in compiled}) == 1
        assert {k.entry for k in compiled} == {"kf_add_layernorm"}
        assert "second" not in compiled[1].source

    def test_what_is_large_has_wide_indices(self):
        (narrow,), (large,) = (sources(lambda g, x: g.map("exp", [x]), empty((n,))) for n in (2**30, 2**32))
        assert "using Index = int;" in narrow
        assert "using Index = i64;" in large

    def test_no_kernel_asks_for_more_shared_memory_than_there_is(self):
        h200 = kf.device("h200").to_dict()
        for operands, cols, rows in itertools.product((1, 2, 3, 5, 8), (2**14, 2**16, 2**17, 2**18, 2**20), (4, 200)):
            arrays = [empty((rows, cols))] * operands
            for k in _core.cuda_kernels(graph_of(lambda g, *x: softmax(g, total(g, *x)), *arrays), h200):
                assert k.launch["shared_bytes"] <= MOST_SHARED, (operands, cols, rows, skeleton(k.source))

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
    def test_rings_hold_their_rows(self, dtype, rng):
        """What each warp has of a row, as it finds it itself, is no more than its text has room for."""
        h200 = kf.device("h200").to_dict()
        rings = 0
        item = np_dtype(dtype).itemsize
        some = (63, 65, 80, 129, 200, 257, 400, 513, 700, 1025, 2047, 2049, 4100)
        for kib, more in itertools.product(some, (0, int(rng.integers(-15, 16)))):
            cols = kib * 1024 // item + more
            x, w = empty((200, cols), dtype), empty((cols,), dtype)
            for build, arrays in (
                (softmax, [x]),
                (scaled, [x, w]),
                (scaled, [x, w, w]),
                (lambda g, *i: normalized(g, total(g, *i)), [x, x, x]),
                (softmax_of_product, [empty((200, 1), dtype), empty((1, cols), dtype)]),
            ):
                for k in _core.cuda_kernels(graph_of(build, *arrays), h200):
                    assert k.launch["shared_bytes"] <= MOST_SHARED
                    ring = re.search(r"ring_rows<Fused, (\d+), (\d+), false", k.source)
                    if ring is None:
                        continue
                    segments, vectors = map(int, ring.groups())
                    width = int(re.findall(r"kWidth = (\d+)", k.source)[0])
                    warps = k.launch["cluster"] * k.launch["block"][0] // 32
                    body = cols // width * width if "framed_place" in k.source else cols  # edges are apart
                    assert -(-body // (32 * vectors * width)) <= segments * warps, (cols, k.launch)
                    assert k.launch["grid"][0] % k.launch["cluster"] == 0
                    rings += 1
        assert rings >= 30

    def test_short_rows_of_many_arrays_ask_for_no_more_shared_memory_than_there_is(self):
        def build(g: _core.Graph, mask: int, *x: int) -> int:
            return normalized(g, g.map("where", [mask, total(g, *x), x[0]]))

        for operands in (2, 6, 20):
            arrays = [empty((1000, 99), "bool"), *[empty((1000, 99), "float64")] * operands]
            for k in _core.cuda_kernels(graph_of(build, *arrays), kf.device("h200").to_dict()):
                assert k.launch["shared_bytes"] <= MOST_SHARED, (operands, skeleton(k.source))

    @pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
    def test_columns_ask_for_no_more_shared_memory_than_there_is(self, dtype):
        h200 = kf.device("h200").to_dict()
        for rows, cols in itertools.product([*range(16, 4096, 240), *range(4096, 70_000, 3000)], (100, 4096)):
            x, w = empty((rows, cols), dtype), empty((rows, 1), dtype)
            for build, arrays in ((lambda g, i: normalized(g, i, 0), [x]), (weighted, [x, w, w])):
                for k in _core.cuda_kernels(graph_of(build, *arrays), h200, clusters=True):
                    assert k.launch["shared_bytes"] <= MOST_SHARED, (rows, cols, skeleton(k.source))

    def test_vectors_have_sixteen_bytes_where_arrays_allow_it(self):
        def width(x: np.ndarray, **options: Any) -> int:
            (text,) = sources(lambda g, i: g.map("negative", [i]), x, **options)
            return int(re.findall(r"kWidth = (\d+)", text)[0])

        assert {d: width(empty((8, 64), d)) for d in DTYPES} == {
            "float16": 8, "bfloat16": 8, "float32": 4, "float64": 2
        }  # fmt: skip
        assert width(empty((8, 64)), aligned=False) == 1
        assert width(np.empty((8, 64), np.float32)[:, ::2]) == 1
        assert width(np.empty((8, 65), np.float32)[:, :64]) == 1
        assert width(np.empty((8, 68), np.float32)[:, :64]) == 4

    def test_rows_are_held_by_what_has_room_for_them(self):
        for cols, expected in ((64, "short_rows"), (1024, "team_rows"), (2**18, "ring_rows")):
            assert skeleton(sources(normalized, empty((100, cols)))[0]) == expected
        assert skeleton(sources(normalized, empty((100, 2**23)))[0]) == "long_rows"
        assert skeleton(sources(variance, empty((2**20,)))[0]) == "split_rows"
        for rows, expected in ((100, "tiles"), (14_000, "tiles"), (100_000, "columns")):
            assert skeleton(sources(lambda g, x: normalized(g, x, 0), empty((rows, 300)))[0]) == expected
        assert skeleton(sources(lambda g, x: variance(g, x, [0]), empty((100, 300)))[0]) == "columns"

    def test_values_of_rows_do_not_make_a_kernel_heavy(self):
        """A loss and its gradient have most steps once per row, so their warps are as many as those of a softmax."""
        bounds = r"__launch_bounds__\((\d+, \d+)\)"
        f, targets = kf.value_and_grad(kf.cross_entropy), kf.spec((8192,), "int64")
        for cols, expected in ((32_000, "512, 2"), (65_536, "128, 4"), (128_256, "128, 4"), (262_144, "256, 2")):
            x = kf.spec((8192, cols), "bfloat16")
            assert re.findall(bounds, f.source(x, targets))[0] == expected
            assert re.findall(bounds, kf.fuse(kf.softmax).source(x))[0] == expected

    def test_it_reads_in_the_users_names(self):
        g = _core.Graph()
        x = g.input("pixels", (4, 8), "float32")
        g.begin_stage("brighten", "f.py:3: brighten(pixels)")
        y = g.map("exp", [x])
        g.end_stage()
        g.set_outputs([("", y)])
        (kernel,) = _core.cuda_kernels(g, DEVICE)
        assert "in_pixels" in kernel.source
        assert "// brighten" in kernel.source
        assert "brighten" in kernel.entry


@pytest.mark.parametrize(
    ("f", "quick"),
    [
        (lambda x: kf.tanh(x / 41.0) * 41.0, True),
        (lambda x: kf.floor(x / 41.0), False),
        (lambda x: kf.astype(x / 41.0, "int32"), False),
        (lambda x: (x / 41.0) == 1.0, False),
        (lambda x: (kf.tanh(x / 41.0), x / 41.0), False),
    ],
)
def test_a_quick_quotient_is_of_quick_functions_alone(f, quick):
    assert ("QuickDivisor" in kf.fuse(f).source(kf.spec((64, 64), "float16"))) == quick


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_softmax_of_half_types_takes_few_instructions(dtype):
    """Its floats are those of a half type: compared by pairs, exponentials and quotients by approximations."""

    def both(x, g):
        y, pull = kf.vjp(kf.softmax, x)
        return y, pull(g)[0]

    given = kf.spec((64, 4096), dtype)
    for text in (kf.fuse(kf.softmax).source(given), kf.fuse(both).source(given, given)):
        assert "largest_of(" in text
        assert "quick_exp(" in text
        assert "QuickDivisor<float>(" in text
        assert " exp(" not in text
    assert "quick_exp(" not in kf.fuse(lambda x: kf.exp(x.astype("float32"))).source(given)
    assert "quick_exp(" not in kf.fuse(lambda x: kf.exp(x - x.min(-1, keepdims=True))).source(kf.spec((64, 4096)))


def test_exponentials_that_another_reduction_takes():
    def f(x):
        e = kf.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True), e.max(-1)

    source = kf.fuse(f).source(kf.spec((4096, 1024)))
    for name in set(re.findall(r"\b(exp_\d+)\b", source)):
        assert f"const float {name} =" in source


def test_planes_stay_in_clusters():
    """Rings of blocks anywhere have none."""
    source = kf.fuse(kf.rmsnorm).source(kf.spec((1000, 300_001)), kf.spec((300_001,)))
    assert "Planes" not in source


def test_names_that_end_like_others():
    """Values a, a_1, a[1] and so on, with strides of their own, in one kernel."""
    g = _core.Graph()
    names = ("a", "a_1", "a[1]", "a_1_1", "a 1", "a", "", "1")
    inputs = [g.input(name, (6, 5), "float32", strides=(1, 20)) for name in names]
    y = inputs[0]
    for x in inputs[1:]:
        y = g.map("add", [g.map("multiply", [y, g.broadcast(g.slice(x, [(0, 6, 1), (0, 1, 1)]), (6, 5))]), x])
    g.set_outputs([("", y)])
    (kernel,) = _core.cuda_kernels(g, DEVICE)
    members = re.findall(r"^  [^(]*?(\w+);", kernel.source.split("struct Parameters {")[1].split("};")[0], re.MULTILINE)
    assert len(members) == len(set(members)) > 2 * len(names)


class TestGolden:
    """A text that changes is looked at: `python tests/support/golden.py --write`, and what git shows."""

    @pytest.mark.parametrize("name", golden.CASES)
    def test_a_kernel_of_each_skeleton(self, name):
        text = golden.text_of(name)
        assert skeleton(text) == name
        assert text == (golden.GOLDEN / f"{name}.cu").read_text()

    def test_no_skeleton_is_left_out(self):
        functions = re.findall(r"^  _\((\w+)\)", SKELETONS.read_text(), re.MULTILINE)
        assert sorted(functions) == sorted(golden.CASES)
        assert sorted([*functions, *golden.GATHERS, *golden.PRODUCTS]) == sorted(
            p.stem for p in golden.GOLDEN.glob("*.cu")
        )

    @pytest.mark.parametrize("name", [*golden.GATHERS, *golden.PRODUCTS])
    def test_kernels_that_gather(self, name):
        assert golden.text_of(name) == (golden.GOLDEN / f"{name}.cu").read_text()
