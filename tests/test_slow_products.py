"""Products that take longer with what follows them than apart, and merges that cost more than they save: no plan is
predicted slower than the unfused one, and few than one with two calls kept apart."""

import itertools

import pytest

import kfusion as kf
from programs.drawing import Seeded, draw_program
from programs.profiles import PROFILES
from sweeps import sweep

HALF = "bfloat16"


def gates(x, g, u):
    return kf.silu(x @ g) * (x @ u)


def specs(*shapes, dtype=HALF):
    return tuple(kf.spec(shape, dtype) for shape in shapes)


FEW_ROWS = specs((64, 8192), (8192, 28672), (8192, 28672))  # of Llama 70B, for 64 tokens
MANY_ROWS = specs((8192, 4096), (4096, 11008), (4096, 11008))


def perceptron(x, scale, w1, w2):
    return ((kf.gelu(kf.layernorm(x, scale) @ w1) @ w2 - x) ** 2).mean()


def several(x, w):
    h = x @ w
    return h, kf.gelu(h), kf.tanh(h)


def logits(x, w):
    return kf.logsumexp(x @ w, -1)


def attention(q, k, v):
    return kf.softmax(q @ k.swapaxes(-1, -2) * 0.1) @ v


STEP = kf.value_and_grad(perceptron, argnums=(1, 2, 3)), specs((4096, 1024), (1024,), (1024, 4096), (4096, 1024))
CASES = {
    "gates of few rows": (gates, FEW_ROWS),
    "gates of 16 rows": (gates, specs((16, 4096), (4096, 11008), (4096, 11008))),
    "gates of many rows": (gates, MANY_ROWS),
    "several results": (several, specs((2048, 1024), (1024, 4096))),
    "several results of few rows": (several, specs((64, 4096), (4096, 11008))),  # calls alone are fastest
    "logits of few rows": (logits, specs((16, 4096), (4096, 11008))),
    "attention of few rows": (attention, specs(*[(1, 64, 64, 128)] * 3)),
    "a training step": STEP,
}


def test_fused_is_never_predicted_slower(some):
    def check(name, device, executors):
        function, given = CASES[name]
        plan = kf.plan(function, *given, device=device, executors=executors)
        assert plan.fused.predicted_us <= plan.unfused.predicted_us * (1 + 1e-9)
        assert plan.fused.launches <= plan.unfused.launches
        assert plan.fused.issued.total <= plan.unfused.issued.total

    rows = itertools.product(CASES, ["H200", "H100", "A100", "RTX 4090"], [None, "available"])
    sweep(check, some(rows, 24))


@pytest.mark.parametrize("executors", [None, "available"])
def test_gates_of_few_rows_are_apart_and_say_why(executors):
    plan = kf.plan(gates, *FEW_ROWS, device="H200", executors=executors)
    assert [sum(op == "matmul" for op in g.ops) for g in plan.groups] == [1, 1, 0]
    said = {r.sentence for r in plan.refusals if r.reason == "no_gain"}
    assert said
    assert all("predicted to take longer" in sentence for sentence in said)


def test_gates_of_many_rows_stay_one_kernel():
    (kernel,) = kf.plan(gates, *MANY_ROWS, device="H200").groups
    assert sum(op == "matmul" for op in kernel.ops) == 2


def test_what_is_to_share_a_kernel_does():
    """allow= names what may be fused: its time does not count."""
    names = ["matmul", "silu", "matmul_2", "multiply"]
    pairs = [(a, b) for a in names for b in names if a != b]
    plan = kf.plan(gates, *FEW_ROWS, device="H200", allow=pairs)
    assert plan.fused.launches < kf.plan(gates, *FEW_ROWS, device="H200").fused.launches


def test_products_of_other_shapes_keep_their_operations():
    """Only those that are slower so are apart."""

    def both(x, g, u, y, w, b):
        return gates(x, g, u), kf.relu(y @ w + b)

    more = specs((8192, 1024), (1024, 4096), (4096,))
    plan = kf.plan(both, *FEW_ROWS, *more, device="H200")
    labels = [g.label for g in plan.groups]
    assert any("relu" in label and "matmul" in label for label in labels), labels
    assert not any("silu" in label and "matmul" in label for label in labels), labels
    assert plan.fused.predicted_us <= plan.unfused.predicted_us


# ---- merges of any kernels ----

LAYERS = next(p for p in PROFILES if p.name == "layers")  # each needed by the next ones: merges get in each other's way
WORST = 1.34  # one launch more of four


def most_lost(graph, device):
    """How many times the plan's predicted time is that of the fastest plan with one pair of its calls apart."""
    plan = kf.plan(graph, device=device)
    pairs = {pair for g in plan.groups for pair in itertools.combinations(dict.fromkeys(g.stages), 2)}
    apart = [kf.plan(graph, device=device, forbid=[pair]).fused.predicted_us for pair in sorted(pairs)]
    fastest = min(apart, default=plan.fused.predicted_us)
    return plan.fused.predicted_us / fastest if fastest else 1.0  # of no elements, nothing runs


def test_merges_seldom_lose():
    """5 of these programs are predicted to be faster with a pair apart; 7 where values are merged in one order only."""
    lost = {}
    for seed in range(15):
        made = draw_program(Seeded(seed), LAYERS)
        lost[seed] = most_lost(kf.trace(made.function(), *made.inputs), "EPYC 9654")
    assert max(lost.values()) <= WORST, lost
    assert sum(of > 1.02 for of in lost.values()) <= 5, lost
