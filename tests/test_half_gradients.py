"""Gradients of half types beside float64 and eager torch: what is kept for backward is what was summed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import kfusion as kf
from sweeps import sweep, texts

torch = pytest.importorskip("torch")
F = torch.nn.functional

DRAWS = 4  # of arrays: a rounding that happens to be none says nothing
MAPS = texts("""
torch.tanh({a}) ; {a} * 1.7 ; {a} + 0.5 ; torch.sigmoid({a}) ; F.silu({a}) ; 4 * torch.tanh({a} / 4) ; {a} + b ; {a} * b
{a} * {c} ; {a} + {c}
""")
OF_ROWS = texts("""
torch.softmax({a}, -1) ; torch.softmax({a}.to(wide), -1).to({a}.dtype) ; torch.log_softmax({a}, -1)
torch.exp({a} * 0.3) / torch.exp({a} * 0.3).sum(-1, keepdim=True) ; F.layer_norm({a}, ({a}.shape[-1],))
F.rms_norm({a}, ({a}.shape[-1],)) ; {a} / {a}.norm(dim=-1, keepdim=True)
""")
# Weights that summed to less than 1: scores that one kernel stored, and computed its sums of before they were rounded;
# results that backward computed again, of other digits than those that forward had stored and summed.
ONCE_WRONG = {
    "scores of maps": ("v = x * y.mean(-2, keepdim=True) * 3", "p = torch.softmax(v, -1)", "r = p @ z"),
    "scores that are a result": (
        "s = x @ y.mT * 0.3",
        "v = s * b * (s * b) * b",
        "p = torch.softmax(v, -1)",
        "r = p @ z, v",
    ),
    # One kernel took the mean with all its digits, and another its stored one: no element was the maximum, and all
    # gradients were NaN.
    "a maximum of what one kernel stores and another computes again": (
        "m = x.mean(-2, keepdim=True)",
        "r = (x * m).amax(-1)",
    ),
    "a maximum among columns": ("v = torch.exp(x * 0.3)", "r = (v / v.mean(-1, keepdim=True)).amax(-2)"),
    "a least element": ("v = torch.exp(x * 0.3)", "r = (v - v.mean(-2, keepdim=True)).amin(-1, keepdim=True) * y"),
    "a factor that one kernel stores and another computes again": (
        "v = torch.tanh(x[:, :1, :1]) * (y.mT.to(wide) * 30)",
        "r = torch.softmax(v, -1).to(x.dtype)",
    ),
}


def program(steps: Sequence[str]) -> Callable[..., tuple[Any, ...]]:
    lines = ["def f(x, y, z, b, wide=torch.float32):", *steps, "return r if isinstance(r, tuple) else (r,)"]
    scope = {"torch": torch, "F": F}
    exec("\n    ".join(lines), scope)
    return scope["f"]


def drawn_steps(rng: random.Random) -> list[str]:
    steps, values = [], ["x", "y"]
    if rng.random() < 0.5:
        steps, values = ["s = x @ y.mT * 0.3"], ["s"]
    for i in range(rng.randrange(5)):
        steps.append(f"v{i} = {rng.choice(MAPS).format(a=values[-1], c=rng.choice(values))}")
        values.append(f"v{i}")
    steps.append(f"p = {rng.choice(OF_ROWS).format(a=values[-1])}")
    result = rng.choice(["p", "p @ z", "p * b", "torch.tanh(p) @ z"])
    return [*steps, f"r = {result}" + rng.choice(["", f", {values[-1]}"])]


def gradients(f: Callable[..., Any], tensors: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
    leaves = [t.detach().requires_grad_() for t in tensors]
    made = [(y, g.to(y.dtype)) for y, g in zip(f(*leaves), seeds, strict=True) if y.requires_grad]
    found = torch.autograd.grad([y for y, _ in made], leaves, [g for _, g in made], allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, found, strict=True)]


def require_as_exact(steps: Sequence[str], half: str, size: int, seed: int) -> None:
    """Requires of each argument's gradient, over some draws of arrays: within 1.5 times the error of eager torch, and
    one rounding.
    """
    f, dtype = program(steps), getattr(torch, half)
    fused = kf.fuse(f)
    errors: dict[int, list[tuple[float, float]]] = {}
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(seed * DRAWS + draw)
        shapes = (2, size, size), (2, size, size), (2, size, 8), (size,)
        tensors = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
        seeds = [(torch.randn(y.shape, generator=generator) + draw % 3).to(dtype) for y in f(*tensors)]
        exact = gradients(
            lambda *a: f(*a, wide=torch.float64), [t.double() for t in tensors], [g.double() for g in seeds]
        )
        eager, ours = gradients(f, tensors, seeds), gradients(fused, tensors, seeds)
        for i, (a, e, o) in enumerate(zip(exact, eager, ours, strict=True)):
            scale = float(a.norm()) or 1.0
            errors.setdefault(i, []).append(tuple(float((x.double() - a).norm()) / scale for x in (e, o)))
    for i, pairs in errors.items():
        of_eager, of_ours = (sum(column) / DRAWS for column in zip(*pairs, strict=True))
        bound = 1.5 * of_eager + torch.finfo(dtype).eps / 2
        assert of_ours <= bound or of_eager > 0.3, f"seed {seed}, gradient {i}: {of_ours} > {bound}\n" + "\n".join(
            steps
        )


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_once_wrong(half: str) -> None:
    rows = [(steps, half, size, size) for steps in ONCE_WRONG.values() for size in (5, 16, 48)]
    sweep(require_as_exact, rows)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_drawn(half: str, first: int) -> None:
    for seed in range(first, first + 10):
        rng = random.Random(seed)
        require_as_exact(drawn_steps(rng), half, rng.choice([1, 2, 5, 16, 33, 48]), seed)


def test_a_maximum_that_is_a_result() -> None:
    """It went on rounded, since it is stored, and no element was equal to it: its place was past the end."""

    def check(axis: int, dtype: str) -> None:
        def f(x: Any) -> tuple[Any, ...]:
            v = x * x.mean(-2, keepdim=True)
            return v.argmax(axis), v.argmin(axis), v.amax(axis), v.amin(axis), v

        def compared(x: Any) -> tuple[Any, ...]:
            v = x * x.mean(-2, keepdim=True)
            most = v.amax(axis, keepdim=True)
            return v >= most, v < most, most

        for seed in range(5):
            x = torch.randn(63, 100, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, dtype))
            for got, want in zip(kf.fuse(f)(x), f(x), strict=True):
                if got.dtype == torch.int64:  # of several places that are equal any will do
                    got, want = (torch.gather(f(x)[-1], axis, at.unsqueeze(axis)) for at in (got, want))
                torch.testing.assert_close(got, want, rtol=0.01, atol=0)
            reached, missed, _ = kf.fuse(compared)(x)
            assert reached.any(axis).all()
            assert missed.equal(~reached)

    sweep(check, itertools.product((-1, -2), ("bfloat16", "float16")))
