"""Sums of columns of what products store, as gradients of biases are: by the product's kernel, part by part."""

import re

import numpy as np
import pytest

import golden
import kfusion as kf
from kfusion import _core
from kinds import HAVE_GPU
from sweeps import sweep
from test_codegen_compiles import nvcc

EXECUTORS = ["tensor_cores", "cuda", "array_library"]


def spec(*shape, dtype="bfloat16"):
    return kf.spec(shape, dtype)


def planned(f, *arguments, device="H200"):
    return kf.plan(f, *arguments, device=device, executors=EXECUTORS)


def sums_in_products(plan):
    return sum(g.ops.count("partial_sums") for g in plan.groups if g.kind == "matmul")


def scaled(x, w, h):
    d = (x @ w) * h
    return d, d.sum(0)


def two_results(x, w, h):
    y = x @ w
    d = y * h
    return y, d, d.sum(0), y.sum(0)


def two_matrices(x, w, h, g):
    d = (x @ w) * h + g
    return d, d.sum(0)


def of_leading_axes(x, w, h):
    d = (x @ w) * h
    return d, d.sum((0, 1))


def sums_in_two_shapes(x, w, h):
    """The sums of one result in two shapes: a box has one place for sums."""
    d = (x @ w) * h
    return d, d.sum(0), d.reshape(4, -1, d.shape[1]).sum((0, 1))


def two_products(x, w, h, u):
    """Two tiles of half the columns: two results of two products."""
    d, e = (x @ w) * h, 2 * (x @ u)
    return d + e, d - e, (d + e).sum(0)


X, W, H = spec(4096, 1024), spec(1024, 4096), spec(4096, 4096)
CASES = {
    "of gelu": (golden.gradients_before_gelu, (X, W, H), 1),
    "of a product with a matrix": (scaled, (X, W, H), 1),
    "two results": (two_results, (X, W, H), 2),
    "two matrices": (two_matrices, (X, W, H, H), 1),
    "sums in two shapes": (sums_in_two_shapes, (X, W, H), 2),
    "two products": (two_products, (X, W, H, W), 1),
    "leading axes": (of_leading_axes, (spec(4, 1024, 1024), W, spec(4, 1024, 4096)), 1),
    "float16": (
        scaled,
        (spec(512, 64, dtype="float16"), spec(64, 72, dtype="float16"), spec(512, 72, dtype="float16")),
        1,
    ),
}


def test_what_is_stored_is_not_read_again():
    def check(case):
        f, arguments, sums = CASES[case]
        p = planned(f, *arguments)
        assert sums_in_products(p) == sums
        product, totals = p.groups
        assert (product.executor, totals.kind) == ("tensor_cores", "columns")
        parts = np.prod(arguments[0].shape[:-1]) // 64
        assert totals.issued.read == sums * parts * arguments[1].shape[-1] * 4

    sweep(check, [(case,) for case in CASES])


APART = {
    "rows that are no whole tiles": (scaled, (spec(4000, 1024), W, spec(4000, 4096))),
    "few rows": (scaled, (spec(256, 1024), W, spec(256, 4096))),
    "float32": (scaled, tuple(kf.spec(s) for s in ((4096, 1024), (1024, 4096), (4096, 4096)))),
    "sums alone": (lambda x, w: (x @ w).sum(0), (X, W)),
    "of something else": (lambda x, w, h: (x @ w, (h * 2).sum(0)), (X, W, H)),
    "of rows": (lambda x, w, h: (d := (x @ w) * h, d.sum(1)), (X, W, H)),
    "largest": (lambda x, w, h: (d := (x @ w) * h, d.max(0)), (X, W, H)),
    "of another half type": (lambda x, w, h: (d := ((x @ w) * h).astype("float16"), d.sum(0)), (X, W, H)),
    "rows of 1004": (lambda x, w, h: (d := (x @ w.T) * h, d.sum(0)), (X, spec(1004, 1024), spec(4096, 1004))),
    "batches": (lambda x, w, h: (d := (x @ w) * h, d.sum((0, 1))),
                (spec(4, 1024, 1024), spec(4, 1024, 4096), spec(4, 1024, 4096))),
}  # fmt: skip


def test_where_they_are_apart():
    def check(case):
        f, arguments = APART[case]
        assert sums_in_products(planned(f, *arguments)) == 0

    sweep(check, [(case,) for case in APART])
    for device in ("A100 80GB", "B200", "cpu"):  # only on Hopper
        assert sums_in_products(planned(scaled, X, W, H, device=device)) == 0


def test_norms_and_biases_in_one_graph():
    """Each in its kernel: of rows, and around a product."""

    def f(x, w, h, g, dy):
        _, scale, shift = kf.vjp(kf.layernorm, h, g, g)[1](dy)
        return *scaled(x, w, h), scale, shift

    p = planned(f, X, W, H, spec(4096), H)
    assert sums_in_products(p) == 1
    assert any("partial_sums" in g.ops for g in p.groups if g.kind == "rows")


def test_a_whole_step_sums_biases_in_products():
    def loss(p, x):
        return (kf.linear(kf.gelu(kf.linear(x, p["w"], p["b"])), p["v"], p["c"]).astype("float32") ** 2).mean()

    parameters = {"w": spec(4096, 1024), "b": spec(4096), "v": spec(1024, 4096), "c": spec(1024)}
    p = planned(kf.value_and_grad(loss), parameters, X)
    assert sums_in_products(p) >= 1


def kernel(f, *arguments):
    first, *_ = _core.cuda_kernels(kf.trace(f, *arguments), kf.device("H200").to_dict())
    assert isinstance(first, _core.ContractionKernel)
    return first


def test_matrices_move_by_boxes():
    texts = {"two results": "kOperands = 1, kResults = 2;", "two matrices": "kOperands = 2, kResults = 1;"}
    for case, text in texts.items():
        f, arguments, _ = CASES[case]
        assert text in kernel(f, *arguments).source


def test_each_box_is_summed_once():
    f, arguments, _ = CASES["sums in two shapes"]
    source = kernel(f, *arguments).source
    (line,) = [line for line in source.splitlines() if "float* sums(" in line]
    assert line.count("result ==") == 1


BOXES = {
    "a result and relu of it": (lambda x, w: ((y := x @ w), kf.relu(y)), (X, W)),
    "a matrix, two results": (lambda x, w, h: ((y := x @ w), y * h), (X, W, H)),
    "two matrices, a result": (lambda x, w, h, g: (x @ w) * h + g, (X, W, H, H)),
    "two of each": (lambda x, w, h, g: ((y := x @ w) * h, y * g), (X, W, H, H)),
    "a vector, too": (lambda x, w, b, h: ((y := x @ w + b), y * h), (X, W, spec(4096), H)),
    "a number, too": (lambda x, w, h: ((y := x @ w * 0.37), y * h), (X, W, H)),
    "a product and a gate": (lambda x, w, u: ((y := x @ w), y * (x @ u)), (X, W, W)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *BOXES])
def test_kernels_compile(case, tmp_path):
    f, arguments, *_ = CASES.get(case) or BOXES[case]
    report = nvcc(kernel(f, *arguments).source, tmp_path, architecture="sm_90a")
    assert "Used 168 registers" in report
    assert "setmaxnreg" not in report  # ignored, say
    assert int(re.findall(r"(\d+) bytes spill stores", report)[0]) <= 32


torch = pytest.importorskip("torch") if HAVE_GPU else None
HOPPER = torch is not None and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
on_hopper = [pytest.mark.cuda, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]


def draw(shape, dtype):
    return torch.randn(*shape, device="cuda").to(getattr(torch, dtype)) / shape[0] ** 0.25


def check(f, *arguments, out=None):
    fused = kf.FusedFunction(f, {"executors": ["tensor_cores", "cuda"], "by_time": False})
    assert sums_in_products(fused.plan(*arguments)) > 0
    got = fused(*arguments) if out is None else fused(*arguments, out=out)
    again = fused(*arguments)
    want = f(*(a.double() for a in arguments))
    for one, other, wanted in zip(got, again, want, strict=True):
        assert torch.equal(one, other)
        error = (one.double() - wanted).norm() / wanted.norm()
        assert error <= (6e-3 if one.dtype == torch.bfloat16 else 1e-3)


class TestOnAGpu:
    pytestmark = on_hopper

    # rows, depth, columns: one tile, tails of columns and of slices, several rounds of tiles
    SHAPES = ((512, 64, 72), (576, 8, 264), (1024, 776, 1000), (2112, 1208, 520), (8192, 512, 4096))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("f", [scaled, two_results, two_matrices, two_products, sums_in_two_shapes])
    def test_against_float64(self, f, shape, dtype):
        m, k, n = shape
        given = [draw(s, dtype) for s in ((m, k), (k, n), (m, n), (k, n) if f is two_products else (m, n))]
        check(f, *given[: f.__code__.co_argcount])

    def test_leading_axes(self):
        check(of_leading_axes, draw((4, 256, 128), "bfloat16"), draw((128, 320), "bfloat16"),
              draw((4, 256, 320), "bfloat16"))  # fmt: skip

    @pytest.mark.parametrize("which", range(3))
    def test_arrays_at_odd_addresses(self, which):
        """What is read and stored is not brought by boxes then: sums are taken by a kernel of their own."""
        given = [draw(s, "bfloat16") for s in ((512, 64), (64, 136), (512, 136))]
        odd = torch.empty(given[which].numel() + 1, dtype=torch.bfloat16, device="cuda")[1:].view_as(given[which])
        given[which] = odd.copy_(given[which])
        check(scaled, *given)

    @pytest.mark.parametrize("layout", ["odd address", "transposed", "strided"])
    def test_results_that_lie_otherwise(self, layout):
        given = [draw(s, "bfloat16") for s in ((512, 64), (64, 136), (512, 136))]
        room = torch.full((2 * 512 * 136 + 1,), 7.0, dtype=torch.bfloat16, device="cuda")
        d = {"odd address": room[1 : 512 * 136 + 1].view(512, 136), "transposed": room[: 512 * 136].view(136, 512).T,
             "strided": room[:-1].view(512, 272)[:, ::2]}[layout]  # fmt: skip
        check(scaled, *given, out=(d, torch.empty(136, dtype=torch.bfloat16, device="cuda")))
        if layout == "strided":
            assert (room[:-1].view(512, 272)[:, 1::2] == 7).all()

    def test_nothing_is_left_of_the_last_call(self):
        """Memory between kernels is full of NaN before, as the tests of this project have it."""
        x, w, h = (draw(s, "bfloat16") for s in ((512, 64), (64, 136), (512, 136)))
        fused = kf.FusedFunction(scaled, {"executors": ["tensor_cores", "cuda"], "by_time": False})
        first = fused(x, w, h)
        fused(x * float("nan"), w, h)
        assert all(torch.equal(a, b) for a, b in zip(first, fused(x, w, h), strict=True))

    def test_graphs(self):
        given = [draw(s, "bfloat16") for s in ((1024, 64), (64, 136), (1024, 136))]
        fused = kf.FusedFunction(scaled, {"executors": ["tensor_cores", "cuda"], "by_time": False})
        want = fused(*given)
        out = tuple(torch.empty_like(t) for t in want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fused(*given, out=out)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(out, want, strict=True))
