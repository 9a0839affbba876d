"""Plans of a few functions, for the tests of what a Plan shows, explains, draws and stores."""

from __future__ import annotations

import numpy as np

import kfusion as kf

EVIL = "<script>alert('$x^')</script>"
X, ROW = kf.spec((12, 35)), kf.spec((35,))


def relu_layernorm(x, w, b):
    return kf.layernorm(kf.relu(x), w, b)


def mlp(x, w1, w2):
    return kf.gelu(kf.layernorm(x) @ w1) @ w2 + x


def normalised(x):
    y = kf.relu(x)
    return {"y": y / y.sum(), "columns": np.sin(x).T[::2]}


def many_barriers(x):
    for i in range(200):
        x = kf.exp(kf.relu(x)) if i % 2 else x / x.sum()
    return x


def chain_of_tanh(x, n):
    for _ in range(n):
        x = kf.tanh(x)
    return x


def row_plan(device="H200"):
    return kf.plan(relu_layernorm, X, ROW, ROW, device=device)


def mlp_plan(**options):
    return kf.plan(mlp, X, kf.spec((35, 70)), kf.spec((70, 35)), device="H200", **options)


def barrier_plan():
    return kf.plan(normalised, X, device="RTX 3090")


def torch_plan():
    shapes = ((8, 6), (6, 9), (9, 6))
    return kf.plan(mlp, *(kf.spec(shape, "bfloat16", like="torch") for shape in shapes), device="A100")


PLANS = {
    "rows": row_plan,
    "products": mlp_plan,
    "barrier": barrier_plan,
    "torch": torch_plan,
    "many": lambda: kf.plan(many_barriers, X, device="T4"),
    "unfused": lambda: mlp_plan(fuse=False),
    "empty": lambda: kf.plan(kf.relu, kf.spec((0, 5)), device="H200"),
}


def evil_plan():
    """Every name in it is a piece of a page, and of a formula."""
    g = kf.Graph()
    x, y = (g.input(EVIL + n, (12, 35), "float32") for n in "xy")
    g.begin_stage(EVIL, EVIL)
    s = g.reduce("sum", g.map("add", [x, y]), None)
    g.end_stage()
    g.begin_stage(EVIL, EVIL)
    z = g.map("divide", [x, s])
    g.end_stage()
    g.set_outputs([(EVIL, z), (EVIL + "s", s)])
    plain = kf.plan(g, device="H200").to_dict()
    plain["function"] = EVIL
    plain["device"]["name"] = EVIL
    return kf.Plan.from_dict(plain)


def try_to_explain(p, a, b):
    """An answer, or an error of explain's own: a name can be a beginning of several others."""
    try:
        text = p.explain(a, b)
    except ValueError as error:
        text = str(error)
        assert text.startswith("kfusion.Plan.explain")
    assert text
