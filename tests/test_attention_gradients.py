"""Gradients of attention against float64: every order in memory, every number of keys, on the CPU and on a GPU."""

from __future__ import annotations

import itertools

import pytest

import kfusion as kf
from kinds import HAVE_GPU

torch = pytest.importorskip("torch")
F = torch.nn.functional
sdpa = F.scaled_dot_product_attention

DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not HAVE_GPU, reason="no GPU")])]
DTYPES = {"cpu": ("float64",), "cuda": ("bfloat16", "float16")}
BOUNDS = {"bfloat16": 0.03, "float16": 0.004, "float64": 1e-12}  # of the norm of a gradient

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


def require_close(f, reference, tensors, g, bound):
    """The gradients of kf.fuse(f) are those of the reference, or of f, of float64."""
    got = gradients(kf.fuse(f), tensors, g)
    want = gradients(reference or f, [t.double() for t in tensors], g.double())
    for name, a, b in zip("qkv", got, want, strict=False):
        assert a.dtype == tensors[0].dtype
        error = float((a.double() - b).norm() / b.norm())
        assert error <= bound, f"d{name}: {error:.3g} of its norm"


def drawn(rng, shape, dtype, device):
    return torch.tensor(rng.standard_normal(shape)).to(getattr(torch, dtype)).to(device)


def laid(x, order):
    """x in that order in memory, with its own strides."""
    made = GRADIENTS[order](x)
    return made if made.shape == x.shape else pytest.fail(order)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("q", "kv", "g"), [*itertools.product(ORDERS, ORDERS, GRADIENTS)])
def test_orders_in_memory(device, q, kv, g, rng):
    """There are few shapes, so that the library's kernels of one order are those that another finds."""
    for dtype, causal in itertools.product(DTYPES[device], (False, True)):
        shape = (2, 3, int(rng.choice([129, 257])), int(rng.choice([64, 128])))
        if device == "cpu":
            shape = (2, 3, 67, 8)  # scores enough for torch's kernel
        behind = BEHIND[rng.choice(list(BEHIND))]
        f = lambda *a, c=causal, behind=behind: behind(sdpa(*a, is_causal=c))  # noqa: E731
        tensors = [laid(drawn(rng, shape, dtype, device), order) for order in (q, kv, kv)]
        result = f(*tensors)
        one = drawn(rng, result.shape, dtype, device)
        gradient = laid(one, g) if one.ndim == 4 or g == "expanded" else one
        require_close(f, None, tensors, gradient, BOUNDS[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(2, 2, 5, 7, 8), (1, 2, 40, 48, 16)])
def test_rows_that_see_no_key(device, kind, shape, rng):
    """A batch padded on the left has them: they are 0, and so are their gradients."""
    b, h, s, t, d = shape
    dtype = DTYPES[device][0]
    sees = torch.tensor(rng.random((b, 1, s, t)) < 0.5, device=device)
    sees[:, :, : s // 3] = False
    hides = torch.where(sees, 0.0, -torch.inf).to(getattr(torch, dtype))
    mask = sees if kind == "bool" else hides
    f = lambda q, k, v: sdpa(q, k, v, mask.to(q.dtype) if kind == "float" else mask)  # noqa: E731
    fused = kf.fuse(f)
    tensors = [drawn(rng, n, dtype, device) for n in ((b, h, s, d), (b, h, t, d), (b, h, t, d))]
    require_close(f, None, tensors, drawn(rng, (b, h, s, d), dtype, device), BOUNDS[dtype])
    assert not bool(fused(*tensors)[:, :, : s // 3].any())


SCORES = {
    "plain": lambda s: s,
    "a cap": lambda s: 5 * torch.tanh(s / 5),
    "causal": lambda s: s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf),
    "float32": lambda s: s.float() if s.dtype != torch.float64 else s,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("keys", [33, 100, 257])
def test_numbers_of_keys_that_rows_do_not_align(device, score, keys, rng):
    for dtype in DTYPES[device]:
        rows, d = int(rng.choice([keys, 64, 384])), int(rng.choice([32, 64, 128]))
        f = lambda q, k, v: torch.softmax(SCORES[score](q @ k.mT * d**-0.5), -1).to(v.dtype) @ v  # noqa: B023, E731
        tensors = [drawn(rng, (2, 3, n, d), dtype, device) for n in (rows, keys, keys)]
        require_close(f, None, tensors, drawn(rng, (2, 3, rows, d), dtype, device), 2 * BOUNDS[dtype])
