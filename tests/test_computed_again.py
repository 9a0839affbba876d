"""Values that are small for what reads them: computed again where that is cheap, else by a kernel of their own."""

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from sweeps import sweep

pytestmark = pytest.mark.native

PEAK, LAUNCH_US = 150e9, 1.0
CPU = kf.Device(
    "cpu",
    bandwidth=20e9,
    is_cpu=True,
    on_chip_bytes=2**20,
    launch_us=LAUNCH_US,
    peaks={"vector_float32": PEAK, "vector_float64": PEAK / 2},
)
TANH, SQRT = 45, 25  # FLOPs that take as long (cpp/kfusion/plan/prices/op_cost.cpp)
ROWS, COLS = 4096, 1024


def tanhs(x, count):
    for _ in range(count):
        x = kf.tanh(x)
    return x


def centred(x):
    return x - kf.mean(x, 0)


MATRIX, ROW, COLUMN, NUMBER = (kf.spec(shape) for shape in ((ROWS, COLS), (COLS,), (ROWS, 1), (1,)))
LOSING = {
    "power of a row": (lambda x, v: x * v**1.7, (MATRIX, ROW)),
    "functions of a row": (lambda x, v: x + tanhs(v, 8), (MATRIX, ROW)),
    "functions of a column": (lambda x, v: x + tanhs(v, 8), (MATRIX, COLUMN)),
    "functions of a number": (lambda x, v: x + tanhs(v, 8), (MATRIX, NUMBER)),
    "of a row, reduced": (lambda x, v: (x * tanhs(v, 8)).sum(-1), (MATRIX, ROW)),
    "of a row, behind a product": (lambda x, w, v: x @ w + tanhs(v, 8), (MATRIX, kf.spec((COLS, 16)), kf.spec((16,)))),
    "over columns": (lambda x: kf.softmax(tanhs(x, 8), axis=0), (MATRIX,)),
    "over columns, centred": (lambda x: centred(tanhs(x, 8)), (MATRIX,)),
    "of a row and a column": (lambda u, v: tanhs(u, 4) * tanhs(v, 4), (ROW, COLUMN)),
}


def test_what_costs_more_again_has_a_kernel_of_its_own():
    def check(name):
        function, specs = LOSING[name]
        plan = kf.plan(function, *specs, device=CPU)
        assert plan.fused.time_us <= plan.unfused.time_us
        assert plan.fused.launches > 1
        said = [r.sentence for r in plan.refusals if r.reason == "no_gain"]
        assert any("times, which is predicted to take longer than to store it" in s for s in said), said
        merged = kf.plan(function, *specs, device=CPU, allow=[(a, b) for a in plan.stages for b in plan.stages])
        assert merged.fused.launches == 1
        assert merged.fused.time_us > plan.fused.time_us

    sweep(check, [(name,) for name in LOSING])


@pytest.mark.parametrize("name", LOSING)
def test_results(name, rng):
    function, specs = LOSING[name]
    arrays = [np.abs(rng.standard_normal(s.shape, np.float32)) for s in specs]
    want = function(*(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(kf.fuse(function)(*arrays), want, rtol=1e-4, atol=1e-5)


def compute_us(function, *specs):
    (kernel,) = kf.plan(function, *specs, device=CPU).groups
    return kernel.compute_us


def test_prices_count_maps_over_the_domain_of_their_kernel():
    """Loops compute values of rows once a row; over columns, elements in each sweep."""
    small = ROWS // 64, COLS
    of_row = compute_us(lambda x, v: x + kf.tanh(v), kf.spec(small), ROW)
    assert of_row == pytest.approx(small[0] * COLS * (1 + TANH) / PEAK * 1e6)
    us = compute_us(lambda x: x * kf.sqrt(kf.sum(x * x, -1, keepdims=True)), MATRIX)
    assert us == pytest.approx((ROWS * COLS * 3 + ROWS * SQRT) / PEAK * 1e6)
    us = compute_us(lambda x: centred(x + 1), MATRIX)
    assert us == pytest.approx(ROWS * COLS * (2 + 1 + 1) / PEAK * 1e6)


def test_flops_are_those_of_the_function():
    (kernel,) = kf.plan(lambda x, v: x + kf.tanh(v), kf.spec((64, COLS)), ROW, device=CPU).groups
    assert sum(f.count for f in kernel.flops) == 65 * COLS


@pytest.mark.parametrize("function", [lambda x, v: x * (v + 1), lambda x, v: x * kf.exp(v)])
def test_what_is_hidden_behind_memory_is_computed_again(function):
    plan = kf.plan(function, MATRIX, ROW, device=CPU)
    assert plan.fused.launches == 1


@pytest.mark.parametrize("together", [False, True], ids=["two calls", "one call"])
def test_what_is_stored_is_a_value_not_its_call(together):
    """The tanh of the columns' maxima is stored, and computed where these are: also where one call gives both."""
    g = _core.Graph()
    x = g.input("x", (520, 130), "float64")
    if together:
        g.begin_stage("tanh_of_max")
    tanh = g.map("tanh", [g.reduce("max", x, [0], True)])
    if together:
        g.end_stage()
    y = g.map("multiply", [x, tanh])
    number = g.map("tanh", [g.reduce("max", y, None, True)])
    g.set_outputs([("", g.reduce("max", g.map("multiply", [y, number]), [1], True))])
    ops = [group.ops for group in kf.plan(g, device="EPYC 9654").groups]
    assert ops == [("max", "tanh", "tanh", "multiply", "max"), ("max", "tanh"), ("multiply", "multiply", "max")]
