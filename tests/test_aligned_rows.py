"""Factors whose rows are no multiple of 16 bytes, which are padded on GPUs."""

import numpy as np
import pytest

import kfusion as kf
from graphs import evaluate

ROWS, ODD, OTHER = 1024, 1025, 2048


def made(z):
    """Unfused, it moves more bytes than the padding does: no plan may move more than that."""
    return kf.tanh(kf.exp(z * 0.5) * z + 1.0) - kf.tanh(z * 3.0) * 0.25


def two(z, w, x):
    """Reads it as the gradient of logits is read: along its rows, and along its columns."""
    d = made(z)
    return d @ w, kf.matrix_transpose(d) @ x


ALIGNED = {
    "rows and columns": (two, [(ROWS, ODD), (ODD, OTHER), (ROWS, OTHER)]),
    "the right factor": (lambda x, z: x @ made(z), [(OTHER, ROWS), (ROWS, ODD)]),
    "the right factor, transposed": (lambda x, z: x @ made(z).T, [(OTHER, ODD), (ROWS, ODD)]),
    "both": (lambda z, w: made(z) @ made(w).T, [(ROWS, ODD), (ROWS, ODD)]),
    "rows of several axes": (
        lambda z, w: kf.reshape(made(z), (ROWS, ODD)) @ w, [(4, ROWS // 4, ODD), (ODD, OTHER)]),
    "rows and columns of both": (lambda z, w: made(z) @ made(w), [(ROWS, ODD), (ODD, OTHER + 1)]),
    "a value by itself": (lambda z: (lambda d: kf.matrix_transpose(d) @ d)(made(z)), [(ROWS, ODD)]),
    "products of products": (lambda z, x: (lambda d: d @ (d @ x))(made(z)), [(ODD, ODD), (ODD, OTHER)]),
    "batches": (lambda z, w: made(z) @ w, [(2, ROWS // 2, ODD), (2, ODD, OTHER)]),
    "a join": (lambda y, z, w: kf.concatenate([made(y), made(z)], 0) @ w, [(8, ODD), (ROWS, ODD), (ODD, OTHER)]),
}  # fmt: skip


def zeros(plan):
    """Behind each row of values that are computed."""
    return [g.stores[0].shape[-1] for g in plan.groups if g.ops == ("concatenate",) and not g.loads]


def planned(f, shapes, dtype="float16", device="H200"):
    return kf.plan(f, *(kf.spec(s, dtype) for s in shapes), device=device)


def test_rows_have_zeros_behind_them():
    """One value is stored once."""
    for name, (f, shapes) in ALIGNED.items():
        assert -ODD % 8 in zeros(planned(f, shapes)), name
    assert sum("subtract" in g.ops for g in planned(*ALIGNED["rows and columns"]).groups) == 1


@pytest.mark.parametrize("name", ALIGNED)
def test_values(name, rng):
    f, shapes = ALIGNED[name]
    arrays = [rng.standard_normal(s).astype(np.float16) for s in shapes]
    traced = kf.trace(f, *(kf.spec(s, "float16") for s in shapes))
    for got, want in zip(evaluate(planned(f, shapes).graph, arrays), evaluate(traced, arrays), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=2e-3, atol=0.1)


def test_what_stays():
    def check(f, *shapes, dtype="float16", device="H200"):
        assert not zeros(planned(f, list(shapes), dtype, device=device))

    def product(z, w):
        return made(z) @ w

    turned = lambda z, w: kf.transpose(made(z), (2, 0, 1)) @ w  # noqa: E731
    check(product, (ROWS, 1032), (1032, OTHER))
    check(product, (ROWS, ODD), (ODD, OTHER), dtype="float32")
    check(product, (64, ODD), (ODD, OTHER))
    check(lambda z, w: z @ w, (ROWS, ODD), (ODD, OTHER))
    check(product, (ROWS, ODD), (ODD, OTHER), device="cpu")
    check(turned, (ROWS, 128, 9), (128, OTHER))
    check(lambda z, w: w @ kf.transpose(made(z), (2, 0, 1)), (ROWS, 128, 9), (128, ROWS))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ALIGNED)
def test_on_a_gpu(name, dtype):
    torch = pytest.importorskip("torch")
    f, shapes = ALIGNED[name]
    arrays = [torch.randn(s, device="cuda").mul(0.5).to(getattr(torch, dtype)) for s in shapes]  # no sum beyond halves
    as_tuple = lambda y: y if isinstance(y, tuple) else (y,)  # noqa: E731
    numpys = [a.double().cpu().numpy() for a in arrays]
    for got, want in zip(as_tuple(kf.fuse(f)(*arrays)), as_tuple(kf.fuse(f)(*numpys)), strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(got.double().cpu().numpy() / scale, want / scale, atol=2e-2)
