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
from kfusion._devices import running
from kinds import np_dtype
from sweeps import sweep

MOST_SHARED = 232448  # bytes that a block of an H200 can have
SKELETONS = Path(__file__).parent.parent / "cuda" / "codegen" / "skeletons" / "table.cpp"


def h200_kernels(build: Build, *arrays: np.ndarray, **options: Any) -> list[Any]:
    return _core.cuda_kernels(graph_of(build, *arrays), kf.device("h200").to_dict(), **options)


def test_what_is_the_same_text():
    """Another batch size: there are two texts of elements, of few, which all have a thread at once, and of many.
    Another scalar; layers of a model where it is compiled: names and numbers tell them apart for people only."""

    def same(build, *others):
        texts = [sources(build, *arrays) for arrays in others]
        assert texts[0] == texts[1]

    for build, arguments, rows in (
        (chain, (empty((1000,)),), (64, 500)),
        (chain, (empty((1000,)),), (5000, 100_001)),
        (normalized, (), (64, 100_001)),
        (softmax, (), (64, 100_001)),
    ):
        same(build, *((empty((n, 1000)), *arguments) for n in rows))
    same(lambda g, x: g.map("exp", [x]), *((empty((n,)),) for n in (64, 10_001)))
    same(lambda g, x: g.reduce("sum", x, [0]), *((empty((n, 512)),) for n in (64, 10_001)))
    by = [sources(lambda g, x, f=f: g.map("multiply", [x, g.scalar(f)]), empty((64,))) for f in (2.0, -7.5)]
    assert by[0] == by[1]

    def layers(x, y, first, second):
        x = kf.layernorm(kf.matmul(x, y) + x, first)
        return kf.layernorm(kf.matmul(x, y) + x, second)

    graph = kf.trace(layers, kf.spec((64, 256)), kf.spec((256, 256)), kf.spec((256,)), kf.spec((256,)))
    h200 = kf.device("h200").to_dict()
    shown, compiled = ([k for k in _core.cuda_kernels(graph, h200, names=n) if k] for n in (True, False))
    assert len({k.source for k in shown}) == len({k.entry for k in shown}) == len(shown) == 2
    assert "in_second" in shown[1].source
    assert len({k.source for k in compiled}) == 1
    assert {k.entry for k in compiled} == {"kf_add_layernorm"}
    assert "second" not in compiled[1].source


def test_lanes_lie_in_one_row_where_rows_are_whole_vectors():
    for cols, place in ((40, "lane_of(at, j)"), (37, "place(at.first + j)")):
        graph = kf.trace(lambda x, n=cols: x + kf.astype(kf.iota((64, n), 1), "float32"), kf.spec((64, cols)))
        (kernel,) = _core.cuda_kernels(graph, kf.device("h200").to_dict())
        assert f"{place}.at[1]" in kernel.source


def masked(g: _core.Graph, mask: int, *x: int) -> int:
    return normalized(g, g.map("where", [mask, total(g, *x), x[0]]))


def test_no_kernel_asks_for_more_shared_memory_than_there_is():
    """Long rows, short rows of many arrays, columns."""
    some: list[tuple[Build, list[np.ndarray]]] = []
    for operands, cols, rows in itertools.product((1, 2, 3, 5, 8), (2**14, 2**16, 2**17, 2**18, 2**20), (4, 200)):
        some.append((lambda g, *x: softmax(g, total(g, *x)), [empty((rows, cols))] * operands))
    for operands in (2, 6, 20):
        some.append((masked, [empty((1000, 99), "bool"), *[empty((1000, 99), "float64")] * operands]))
    heights = itertools.product([*range(16, 4096, 480), *range(4096, 70_000, 6000)], (100, 4096))
    for (rows, cols), dtype in itertools.product(heights, ("float64", "float32", "bfloat16")):
        x, w = empty((rows, cols), dtype), empty((rows, 1), dtype)
        some += [(lambda g, i: normalized(g, i, 0), [x]), (weighted, [x, w, w])]
    for build, arrays in some:
        for k in h200_kernels(build, *arrays, clusters=True):
            assert k.launch["shared_bytes"] <= MOST_SHARED, (arrays[0].shape, skeleton(k.source))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_rings_hold_their_rows(dtype, rng):
    """What each warp has of a row, as it finds it itself, is no more than its text has room for."""
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
            for k in h200_kernels(build, *arrays):
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


def test_vectors_have_sixteen_bytes_where_arrays_allow_it():
    """What is large has wide indices."""

    def width(x: np.ndarray, **options: Any) -> int:
        (text,) = sources(lambda g, i: g.map("negative", [i]), x, **options)
        return int(re.findall(r"kWidth = (\d+)", text)[0])

    assert [width(empty((8, 64), d)) for d in ("float16", "bfloat16", "float32", "float64")] == [8, 8, 4, 2]
    assert width(empty((8, 64)), aligned=False) == 1
    assert width(np.empty((8, 64), np.float32)[:, ::2]) == 1
    assert width(np.empty((8, 65), np.float32)[:, :64]) == 1
    assert width(np.empty((8, 68), np.float32)[:, :64]) == 4
    (narrow,), (large,) = (sources(lambda g, x: g.map("exp", [x]), empty((n,))) for n in (2**30, 2**32))
    assert "using Index = int;" in narrow
    assert "using Index = i64;" in large


def test_rows_are_held_by_what_has_room_for_them(monkeypatch):
    """Rings of blocks anywhere have no planes. What is printed for a GPU is its own: an A100 has no clusters."""
    for cols, expected in ((64, "short_rows"), (1024, "team_rows"), (2**18, "ring_rows"), (2**23, "long_rows")):
        assert skeleton(sources(normalized, empty((100, cols)))[0]) == expected
    assert skeleton(sources(variance, empty((2**20,)))[0]) == "split_rows"
    for rows, expected in ((100, "tiles"), (14_000, "tiles"), (100_000, "columns")):
        assert skeleton(sources(lambda g, x: normalized(g, x, 0), empty((rows, 300)))[0]) == expected
    assert skeleton(sources(lambda g, x: variance(g, x, [0]), empty((100, 300)))[0]) == "columns"
    assert "Planes" not in kf.fuse(kf.rmsnorm).source(kf.spec((1000, 300_001)), kf.spec((300_001,)))
    monkeypatch.setattr(_core, "cuda_device_count", lambda: 1)
    for name, expected in (("H200", "ring_rows"), ("A100 80GB", "long_rows")):
        monkeypatch.setattr(running, "device", lambda place, name=name: kf.device(name))
        assert skeleton(kf.fuse(kf.softmax).source(kf.spec((100, 2**18), device="cuda:0"))) == expected


def test_values_of_rows_do_not_make_a_kernel_heavy():
    """A loss and its gradient have most steps once per row, so their warps are as many as those of a softmax."""
    bounds = r"__launch_bounds__\((\d+, \d+)\)"
    f, targets = kf.value_and_grad(kf.cross_entropy), kf.spec((8192,), "int64")
    for cols, expected in ((32_000, "512, 2"), (65_536, "128, 4"), (128_256, "128, 4"), (262_144, "256, 2")):
        x = kf.spec((8192, cols), "bfloat16")
        assert re.findall(bounds, f.source(x, targets))[0] == expected
        assert re.findall(bounds, kf.fuse(kf.softmax).source(x))[0] == expected


def test_a_quick_quotient_is_of_quick_functions_alone():
    for f, quick in (
        (lambda x: kf.tanh(x / 41.0) * 41.0, True),
        (lambda x: kf.floor(x / 41.0), False),
        (lambda x: kf.astype(x / 41.0, "int32"), False),
        (lambda x: (x / 41.0) == 1.0, False),
        (lambda x: (kf.tanh(x / 41.0), x / 41.0), False),
    ):
        assert ("QuickDivisor" in kf.fuse(f).source(kf.spec((64, 64), "float16"))) == quick


def test_softmax_of_half_types_takes_few_instructions():
    """Its floats are those of a half type: compared by pairs, exponentials and quotients by approximations."""

    def both(x, g):
        y, pull = kf.vjp(kf.softmax, x)
        return y, pull(g)[0]

    for dtype in ("float16", "bfloat16"):
        given = kf.spec((64, 4096), dtype)
        for text in (kf.fuse(kf.softmax).source(given), kf.fuse(both).source(given, given)):
            assert all(part in text for part in ("largest_of(", "quick_exp(", "QuickDivisor<float>("))
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


def test_it_reads_in_the_users_names():
    """Values a, a_1, a[1] and so on, with strides of their own, in one kernel, are told apart."""
    g = _core.Graph()
    names = ("a", "a_1", "a[1]", "a_1_1", "a 1", "a", "", "pixels")
    inputs = [g.input(name, (6, 5), "float32", strides=(1, 20)) for name in names]
    y = inputs[0]
    for x in inputs[1:]:
        y = g.map("add", [g.map("multiply", [y, g.broadcast(g.slice(x, [(0, 6, 1), (0, 1, 1)]), (6, 5))]), x])
    g.begin_stage("brighten", "f.py:3: brighten(pixels)")
    y = g.map("exp", [y])
    g.end_stage()
    g.set_outputs([("", y)])
    (kernel,) = _core.cuda_kernels(g, DEVICE)
    members = re.findall(r"^  [^(]*?(\w+);", kernel.source.split("struct Parameters {")[1].split("};")[0], re.MULTILINE)
    assert len(members) == len(set(members)) > 2 * len(names)
    assert "in_pixels" in kernel.source
    assert re.match(r"// \w*_brighten\n", kernel.source)
    assert "brighten" in kernel.entry


def test_golden_texts():
    """A text that changes is looked at: `python tests/support/golden.py --write`, and what git shows. No skeleton is
    left out."""

    def check(name):
        text = golden.text_of(name)
        assert name not in golden.CASES or skeleton(text) == name
        assert text == (golden.GOLDEN / f"{name}.cu").read_text()

    functions = re.findall(r"^  _\((\w+)\)", SKELETONS.read_text(), re.MULTILINE)
    assert sorted(functions) == sorted(golden.CASES)
    names = [*functions, *golden.GATHERS, *golden.PRODUCTS]
    assert sorted(names) == sorted(p.stem for p in golden.GOLDEN.glob("*.cu"))
    sweep(check, [(name,) for name in names])
