"""Around products and attention, strides tell axes apart, also where extents, or products of extents, coincide;
gradients of attention against float64, in every order in memory and with every number of keys, on CPUs and GPUs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import kfusion as kf
from cpu_products import poisoned, require_blas  # noqa: F401
from sweeps import sweep

torch = pytest.importorskip("torch")
F = torch.nn.functional
sdpa = F.scaled_dot_product_attention
require_blas()

# batches, heads, queries, keys, and the axes of an array that has as many elements as there are rows of scores
COINCIDING = [(2, 2, 3, 4, (2, 3)), (1, 4, 3, 4, (2, 3)), (3, 4, 5, 4, (0, 2, 3)), (2, 3, 4, 4, (1, 3)),
              (2, 4, 4, 4, (2, 3)), (8, 8, 8, 8, (0, 3)), (1, 3, 5, 15, (3,)), (2, 3, 1, 6, (3,))]  # fmt: skip
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def by_bytes(f):
    """By every kernel that there is, whatever it is predicted to take."""
    return kf.FusedFunction(f, {"executors": "available", "by_time": False})


def along(shape, axes):
    return tuple(e if a in axes else 1 for a, e in enumerate(shape))


def distances(of):
    """A small map that is made where it is read, along the axes of more than one element."""
    axes = [a for a, e in enumerate(of.shape) if e > 1]
    places = [torch.arange(of.shape[a]).view([-1 if d == a else 1 for d in range(of.ndim)]) for a in axes]
    return (sum(places[1:]) - 2 * places[0]).abs()


def biased(q, k, v, of, number):
    return torch.softmax(q @ k.transpose(-1, -2) - number * distances(of), -1) @ v


def reduced(q, k, v, of, number):
    scores = q @ k.transpose(-1, -2) - number * distances(of)
    return scores.amax(-1), (scores * (of + 1)).sum(-2)


def multiplied(q, k, v, of, number):
    return torch.relu(q @ k.transpose(-1, -2) + number * distances(of)) + torch.tanh(of)


@pytest.mark.native
def test_small_maps(some):
    def check(f, extents, dtype):
        b, h, s, t, axes = extents
        others = set(range(4)) - set(axes)
        shapes = (b, h, s, 8), (b, h, t, 8), (b, h, t, 8), along((b, h, s, t), axes), along((b, h, s, t), others)
        torch.manual_seed(0)
        tensors = [torch.randn(shape).to(dtype) for shape in shapes]
        want = f(*(x.double() for x in tensors))
        for run in (kf.fuse(f), by_bytes(f)):
            for got, exact in zip(*(r if isinstance(r, tuple) else (r,) for r in (run(*tensors), want)), strict=True):
                assert (got.double() - exact).abs().max() <= 16 * torch.finfo(dtype).eps * (1 + exact.abs().max())

    sweep(check, some(itertools.product((biased, reduced, multiplied), COINCIDING, TYPES), 24))


@pytest.mark.native
def test_slopes_of_heads():
    def check(heads, keys, times):
        torch.manual_seed(heads)
        q, k, v = torch.randn(3, 1, heads, keys, 32)
        slopes, m = torch.rand(heads) + 0.5, torch.randn(keys, keys)

        def f(q, k, v, slopes, m):
            of = times(torch.arange(keys), torch.arange(keys), m)
            return torch.softmax((q @ k.transpose(-1, -2)).to(slopes.dtype) * 0.18 - slopes[:, None, None] * of, -1) @ v

        want = f(*(x.double() for x in (q, k, v, slopes, m)))
        assert (kf.fuse(f)(q, k, v, slopes, m) - want).abs().max() < 1e-5

    both = (lambda i, j, m: (i[:, None] - j[None, :]).abs(), lambda i, j, m: m)
    sweep(check, [(*pair, times) for pair in ((3, 2), (2, 2), (16, 16), (32, 32)) for times in both])


@pytest.mark.native
def test_positions_and_batches_of_jax(rng):
    jax = pytest.importorskip("jax")
    shapes = (2, 2, 3, 8), (2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 1, 1)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def one(q, k, v, number):
        i, j = kf.iota((3, 4), 0), kf.iota((3, 4), 1)
        return kf.softmax(q @ k.swapaxes(-1, -2) - number * kf.absolute(i - j).astype(q.dtype)) @ v

    got = jax.vmap(jax.vmap(kf.fuse(one)))(*given)
    assert np.abs(np.asarray(got) - one(*(a.astype(np.float64) for a in given))).max() < 1e-5
    given = [rng.standard_normal((2, 3, 4, 8)).astype(np.float32) for _ in range(3)]

    def f(q, k, v):  # positions along axes of one element
        of = kf.iota((1, 3, 1, 4), 0) * 3 + kf.iota((1, 3, 1, 4), 3) * 5
        return kf.softmax(q @ k.swapaxes(-1, -2) - of.astype(q.dtype)) @ v

    run = kf.fuse(f)
    assert np.abs(run(*given) - f(*(a.astype(np.float64) for a in given))).max() < 1e-5
    assert kf.Plan.from_json(run.plan(*given).to_json()).groups


@pytest.mark.native
def test_weights_as_other_factors(rng):
    q, k, v = rng.standard_normal((2, 3, 5, 8)), rng.standard_normal((2, 3, 5, 8)), rng.standard_normal((2, 3, 5, 3))

    def check(last, is_attention):
        f = lambda q, k, v: last(kf.softmax(q @ k.swapaxes(-1, -2)), v)  # noqa: E731
        for run in (kf.fuse(f), by_bytes(f)):
            assert np.allclose(run(q, k, v), f(q, k, v), rtol=1e-12)
            assert is_attention or not any(g.kind == "attention" for g in run.plan(q, k, v).groups)

    rows = [
        (lambda p, v: p @ p, False), (lambda p, v: p @ p.swapaxes(-1, -2), False),
        (lambda p, v: p.swapaxes(-1, -2) @ p, False), (lambda p, v: v.swapaxes(-1, -2) @ p.swapaxes(-1, -2), True),
    ]  # fmt: skip
    sweep(check, rows)


# ---- gradients ------------------------------------------------------------------------------------------------------

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
DTYPES = {"cpu": ("float64",), "cuda": ("bfloat16", "float16")}
BOUNDS = {"bfloat16": 0.03, "float16": 0.004, "float64": 1e-12}  # of the norm of a gradient
# How a tensor of (batch, heads, positions, numbers) lies in memory.
# How a tensor of (batch, heads, positions, numbers) lies in memory.
ORDERS = {
    "C order": lambda x: x.contiguous(),
    "heads behind": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "packed": lambda x: torch.stack([x.transpose(1, 2)] * 3, 2)[:, :, 1].transpose(1, 2),
    "numbers before": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}
GRADIENTS = ORDERS | {"expanded": lambda x: x.flatten()[0].expand(x.shape)}
BEHIND = {
    "nothing": lambda y: y,
    "heads joined": lambda y: y.transpose(1, 2).flatten(2),
    "a kernel": lambda y: torch.tanh(y) * 2,
}


def gradients(f, tensors, g):
    leaves = [t.detach().requires_grad_() for t in tensors]
    return torch.autograd.grad(f(*leaves), leaves, g)


def require_close(f, tensors, g, bound):
    """The gradients of kf.fuse(f) are those of f of float64."""
    got, want = gradients(kf.fuse(f), tensors, g), gradients(f, [t.double() for t in tensors], g.double())
    for name, a, b in zip("qkv", got, want, strict=False):
        assert a.dtype == tensors[0].dtype
        error = float((a.double() - b).norm() / b.norm())
        assert error <= bound, f"d{name}: {error:.3g} of its norm"


def drawn(rng, shape, dtype, device):
    return torch.tensor(rng.standard_normal(shape)).to(getattr(torch, dtype)).to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_orders_in_memory(device, rng, some):
    """There are few shapes, so that the library's kernels of one order are those that another finds."""

    def check(q, kv, g, dtype, causal):
        shape = (2, 3, int(rng.choice([129, 257])), int(rng.choice([64, 128])))
        if device == "cpu":
            shape = (2, 3, 67, 8)  # scores enough for torch's kernel
        behind = BEHIND[rng.choice(list(BEHIND))]
        f = lambda *a: behind(sdpa(*a, is_causal=causal))  # noqa: E731
        tensors = [GRADIENTS[order](drawn(rng, shape, dtype, device)) for order in (q, kv, kv)]
        one = drawn(rng, f(*tensors).shape, dtype, device)
        require_close(f, tensors, GRADIENTS[g](one) if one.ndim == 4 or g == "expanded" else one, BOUNDS[dtype])

    sweep(check, some(itertools.product(ORDERS, ORDERS, GRADIENTS, DTYPES[device], (False, True)), 12))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_rows_that_see_no_key(device, rng):
    """A batch padded on the left has them: they are 0, and so are their gradients."""

    def check(kind, b, h, s, t, d):
        dtype = DTYPES[device][0]
        sees = torch.tensor(rng.random((b, 1, s, t)) < 0.5, device=device)
        sees[:, :, : s // 3] = False
        hides = torch.where(sees, 0.0, -torch.inf).to(getattr(torch, dtype))
        f = lambda q, k, v: sdpa(q, k, v, hides.to(q.dtype) if kind == "float" else sees)  # noqa: E731
        tensors = [drawn(rng, n, dtype, device) for n in ((b, h, s, d), (b, h, t, d), (b, h, t, d))]
        require_close(f, tensors, drawn(rng, (b, h, s, d), dtype, device), BOUNDS[dtype])
        assert not bool(kf.fuse(f)(*tensors)[:, :, : s // 3].any())

    sweep(check, [(kind, *shape) for kind in ("bool", "float") for shape in ((2, 2, 5, 7, 8), (1, 2, 40, 48, 16))])


SCORES = {
    "plain": lambda s: s,
    "a cap": lambda s: 5 * torch.tanh(s / 5),
    "causal": lambda s: s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf),
    "float32": lambda s: s.float() if s.dtype != torch.float64 else s,
}


@pytest.mark.parametrize("device", DEVICES)
def test_numbers_of_keys_that_rows_do_not_align(device, rng, some):
    def check(score, keys, dtype):
        rows, d = int(rng.choice([keys, 64, 384])), int(rng.choice([32, 64, 128]))
        f = lambda q, k, v: torch.softmax(SCORES[score](q @ k.mT * d**-0.5), -1).to(v.dtype) @ v  # noqa: E731
        tensors = [drawn(rng, (2, 3, n, d), dtype, device) for n in (rows, keys, keys)]
        require_close(f, tensors, drawn(rng, (2, 3, rows, d), dtype, device), 2 * BOUNDS[dtype])

    sweep(check, some(itertools.product(SCORES, (33, 100, 257), DTYPES[device]), 4))
