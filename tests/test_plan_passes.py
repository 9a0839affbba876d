"""Plans with gradients: the pass of each kernel, and what is kept between both."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import kfusion as kf

ROWS, DEPTH, COLUMNS = 384, 256, 512


def spec(*shape, dtype="float32"):
    return kf.spec(shape, dtype)


def planned(loss, *specs, argnums=0, **options):
    return kf.plan(kf.value_and_grad(loss, argnums=argnums), *specs, device="H200", **options)


def deep(x, w1, w2):
    """Its backward pass needs x, both weights and the first product."""
    return (kf.tanh(x @ w1) @ w2).sum()


DEEP = spec(ROWS, DEPTH), spec(DEPTH, COLUMNS), spec(COLUMNS, DEPTH)


@pytest.fixture(scope="module")
def of_deep():
    return planned(deep, *DEEP, argnums=(0, 1))


def test_a_plan_without_gradients_has_no_passes():
    plan = kf.plan(kf.softmax, spec(64, 128), device="H200")
    assert plan.passes is None
    assert "passes" not in plan.to_dict()
    assert "Passes" not in str(plan)
    assert "Kept from" not in str(plan)
    assert " pass " not in str(plan)


def test_kernels_belong_to_the_pass_of_what_they_store(of_deep):
    found = of_deep.passes
    nodes = of_deep.graph.to_dict()["nodes"]
    for group, direction in zip(of_deep.groups, found.kernels, strict=True):
        gradients = {bool(nodes[s.node].get("gradient")) for s in group.stores}
        if any("_backward" not in stage for stage in group.stages):
            assert (
                direction == {(False,): "forward", (True,): "backward", (False, True): "both"}[tuple(sorted(gradients))]
            )
        else:
            assert direction == "backward"
    assert {"forward", "backward"} <= set(found.kernels)
    assert len(found.unfused_kernels) == len(of_deep.unfused_groups)
    for group, direction in zip(of_deep.unfused_groups, found.unfused_kernels, strict=True):
        assert direction == ("backward" if any("_backward" in stage for stage in group.stages) else "forward")


def test_passes_add_up_to_the_total():
    for executors in (None, "available"):
        plan = planned(deep, *DEEP, argnums=(0, 1, 2), executors=executors)
        found, total = plan.passes.passes, plan.fused
        assert sorted(k for p in found for k in p.kernels) == list(range(len(plan.groups)))
        sums = [sum(of(p) for p in found) for of in (lambda p: p.read, lambda p: p.written, lambda p: p.launches)]
        assert sums == [total.issued.read, total.issued.written, total.launches]
        assert sum(p.flops for p in found) == total.flop_total
        assert sum(p.us for p in found) == pytest.approx(total.time_us)


def test_what_is_kept_is_what_the_backward_pass_reads(of_deep):
    kept = {a.value: a for a in of_deep.passes.kept}
    assert {a.value for a in kept.values() if a.role == "argument"} == {"x", "w1", "w2"} & set(kept)
    assert {"x", "w1", "w2"} <= set(kept), "all three are read"
    assert all(a.bytes == 0 and a.stored_by == -1 and a.why == "argument: free" for a in map(kept.get, ("x", "w1")))
    (made,) = (a for a in kept.values() if a.role == "kept")
    assert (made.shape, made.bytes) == ((ROWS, COLUMNS), 4 * ROWS * COLUMNS)
    assert of_deep.passes.kept_bytes == made.bytes
    assert of_deep.passes.kernels[made.stored_by] == "forward"
    assert all(of_deep.passes.kernels[n] != "forward" for n in made.read_by)
    assert of_deep.passes.peak_bytes == of_deep.fused.peak_intermediate_bytes >= made.bytes


def test_a_product_says_what_computing_it_again_takes(of_deep):
    (made,) = (a for a in of_deep.passes.kept if a.role == "kept")
    device = kf.device("H200")
    flops = 2 * ROWS * DEPTH * COLUMNS
    read = 4 * (ROWS * DEPTH + DEPTH * COLUMNS)
    us = 1e6 * max(flops / device.peak_flops("float32"), read / device.bandwidth)
    assert made.again_us == pytest.approx(us)
    assert made.why in ("product", "made of a product")


def test_row_statistics_and_factors_are_named():
    def loss(x, scale, w1, w2):
        return ((kf.gelu(kf.layernorm(x, scale) @ w1) @ w2) ** 2).mean()

    rows, width = 512, 256
    specs = (spec(*s, dtype="bfloat16") for s in ((rows, width), (width,), (width, 1024), (1024, width)))
    kept = planned(loss, *specs, argnums=(1, 2, 3)).passes.kept
    statistics = [a for a in kept if a.why == "row statistics"]
    assert statistics
    assert all(math.prod(a.shape) == rows and a.dtype == "float32" for a in statistics)
    assert "factor of a product" in {a.why for a in kept}


def test_calls_of_the_library_are_not_called_again():
    torch = pytest.importorskip("torch")

    def loss(x, w):
        return torch.sort(torch.tanh(x), -1)[0].matmul(w).square().sum()

    plan = planned(loss, kf.spec((32, 64), like="torch"), kf.spec((64, 48), like="torch"), argnums=(0, 1))
    kept = {a.why: a for a in plan.passes.kept}
    assert kept["library call"].again_us is None
    assert kept["given to the library"].again_us is not None


def test_values_that_are_gradients():
    """The cotangent of a sum is 1: the gradient of sin is a cosine of the argument, which waits for nothing; that of
    x * x is x + x, made of nothing but the argument. What the function itself computes is forward."""
    plan = planned(lambda x: kf.sin(x).sum(), spec(512, 512))
    (cos,) = (i for i, n in enumerate(plan.graph.to_dict()["nodes"]) if n["op"] == "cos")
    stored_by = [g.id for g in plan.groups if any(s.node == cos for s in g.stores)]
    assert {plan.passes.kernels[n] for n in stored_by} in ({"both"}, {"backward"})
    plan = planned(lambda x: (x * x).sum(), spec(512, 512))
    (added,) = (n for n in plan.graph.to_dict()["nodes"] if n["op"] == "add")
    assert added["gradient"]
    assert plan.passes.passes[-1].name in ("both", "backward")

    def both(x):
        value, gradient = kf.value_and_grad(lambda x: kf.sin(x).sum())(x)
        return value, gradient, kf.cos(x)

    nodes = kf.trace(both, spec(64, 64)).simplify().to_dict()["nodes"]
    (cos,) = (n for n in nodes if n["op"] == "cos")
    assert not cos.get("gradient")


def test_what_is_made_of_gradients_is_backward_too():
    def step(w, x):
        return w - 0.1 * kf.grad(lambda w: (kf.tanh(x @ w) ** 2).mean())(w)

    plan = kf.plan(step, spec(64, 64), spec(256, 64), device="H200")
    (written,) = (s for g in plan.groups for s in g.stores if "result" in s.value)
    assert plan.graph.to_dict()["nodes"][written.node]["gradient"]


def test_the_report_shows_both_passes(of_deep):
    text = str(of_deep)
    for line in ("Passes of the fused plan", "Kept from forward to backward: ", "as the library", "argument: free"):
        assert line in text, line
    assert max(map(len, text.split("\n"))) <= 100
    page = of_deep.to_html()
    for part in ("Forward and backward", "Passes of the fused plan", "Kept from forward to backward", "<td style"):
        assert part in page, part
    table = text[text.index("Fused:") : text.index("Total (")].split("\n")[3:-2]
    assert {line.split()[2] for line in table} <= {"fwd", "bwd", "both"}


def test_many_arrays_are_shown_by_kind():
    """60 layers: their results are one row, with the sum of all, and so are their weights."""

    def loss(x, weights):
        for w in weights:
            x = kf.tanh(x @ w)
        return x.sum()

    plan = kf.plan(kf.value_and_grad(loss, argnums=1), spec(128, 64), [spec(64, 64)] * 60, device="H200")
    kept = [a for a in plan.passes.kept if a.role == "kept"]
    assert len(plan.passes.kept) > 40
    table = str(plan)[str(plan).index("Kept from forward to backward") :].split("\n\n")[0].split("\n")[3:]
    cells = [line.split() for line in table]
    assert sum(int(row[2]) for row in cells) == len(plan.passes.kept)
    assert sum(float(row[3]) for row in cells) == pytest.approx(plan.passes.kept_bytes / 1e6, rel=1e-2)
    assert len(cells) < len(kept)


def test_plain_data_has_them_and_comes_back(of_deep):
    plain = json.loads(of_deep.to_json())
    assert plain["passes"]["kept_bytes"] == of_deep.passes.kept_bytes
    assert [a["value"] for a in plain["passes"]["kept"]] == [a.value for a in of_deep.passes.kept]
    again = kf.Plan.from_json(of_deep.to_json())
    assert again.passes == of_deep.passes
    assert str(again) == str(of_deep)
    graph = kf.trace(kf.value_and_grad(lambda x: (x * x).sum()), spec(8, 8)).to_dict()  # marks of a graph, too
    marked = [n for n in graph["nodes"] if n.get("gradient")]
    assert marked
    assert [n for n in kf.Graph.from_dict(graph).to_dict()["nodes"] if n.get("gradient")] == marked
    marked[0]["gradient"] = 1
    with pytest.raises(TypeError, match="gradient"):
        kf.Graph.from_dict(graph)


def test_sums_are_gradients_whatever_factor_comes_behind_them():
    """The gradient of a bias is a sum of differences times a number: the sum is no value of the function's."""

    def loss(x, w, b, y):
        return ((x @ w + b - y) ** 2).mean()

    graph = kf.trace(kf.value_and_grad(loss, argnums=2), spec(64, 32), spec(32, 16), spec(16), spec(64, 16)).simplify()
    plain = graph.to_dict()
    sums = [
        n
        for n in plain["nodes"]
        if n["op"] == "sum" and len(n["shape"]) and "_backward" in plain["stages"][n["stage"]]["name"]
    ]
    assert sums
    assert all(n.get("gradient") for n in sums)


def test_a_copy_for_the_backward_pass_is_backward():
    """Where a product of gradients wants a transposed factor and it is copied, what it is made of is kept."""

    def loss(x, w):
        return kf.tanh(kf.exp(x).swapaxes(0, 1).reshape(128, 32) @ w).sum()

    plan = planned(loss, spec(64, 64), spec(32, 48), argnums=(0, 1), executors="available")
    for array in plan.passes.kept:
        assert array.stored_by < 0 or plan.passes.kernels[array.stored_by] != "backward"


def test_a_failed_gradient_marks_nothing_after_it():
    def f(x):
        y = kf.tanh(x)
        with pytest.raises(TypeError, match="no adjoint"):
            kf.vjp(lambda v: np.sort(v, 0), y)[1](y * 2)
        return kf.exp(kf.sum(y, 0))

    nodes = kf.trace(f, spec(8, 8)).to_dict()["nodes"]
    assert not any(n.get("gradient") for n in nodes)


def test_gradients_of_functions_of_jax_are_ours():
    jax = pytest.importorskip("jax")

    def loss(w, x):
        return (jax.numpy.tanh(x @ w) ** 2).mean()

    plan = planned(loss, spec(64, 32), spec(256, 64))
    assert {"x"} <= {a.value for a in plan.passes.kept}
    assert "backward" in plan.passes.kernels


def test_a_loss_and_its_gradient_read_the_logits_once():
    z, t = kf.spec((8192, 128256), "bfloat16"), kf.spec((8192,), "int64")
    for options in ({}, {"ignore_index": -100}, {"label_smoothing": 0.1}):
        f = kf.value_and_grad(lambda z, t: kf.cross_entropy(z, t, **options))  # noqa: B023
        plan = kf.plan(f, z, t, device="H200").fused
        assert plan.issued.read < 1.001 * z.nbytes
        assert plan.issued.written < 1.001 * z.nbytes
        assert plan.peak_intermediate_bytes < 0.001 * z.nbytes
    plan = kf.plan(lambda z, g: kf.vjp(kf.softmax, z)[1](g), z, z, device="H200").fused
    assert plan.issued.read < 2.001 * z.nbytes
    assert plan.issued.written < 1.001 * z.nbytes
    assert plan.peak_intermediate_bytes == 0
