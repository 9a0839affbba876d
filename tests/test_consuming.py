"""Cross entropy whose gradient takes the place of the logits, against torch's."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from graph_runs import read_only
from kinds import HAVE_GPU, SPACING, np_dtype
from reference import float64
from sweeps import refusals

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if HAVE_GPU and torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def oracle(z: Any, t: Any, g: Any = None, *, ignore_index: int | None = None, **options: Any) -> tuple[Any, Any]:
    z = z.detach().double().cpu().requires_grad_()
    loss = F.cross_entropy(z, t.cpu().long(), ignore_index=-100 if ignore_index is None else ignore_index, **options)
    loss.backward(torch.ones_like(loss) if g is None else g.double().cpu())
    return loss.detach(), z.grad


def assert_close(got: Any, want: Any, dtype: str) -> None:
    got, want = float64(got), float64(want)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    largest = np.max(np.abs(want), where=np.isfinite(want), initial=0.25)  # of p - 1 no more is left
    np.testing.assert_allclose(got, want, rtol=8 * SPACING[dtype], atol=8 * SPACING[dtype] * largest)


OPTIONS = list(itertools.product(["mean", "sum", "none"], [None, 3], [0.0, 0.1]))


@pytest.mark.parametrize("dtype", list(SPACING))
@pytest.mark.parametrize(("reduction", "ignore_index", "label_smoothing"), OPTIONS)
def test_backward(
    dtype: str, reduction: str, ignore_index: int | None, label_smoothing: float, device: str, seed: int
) -> None:
    if device == "cuda" and (ignore_index is None) != (label_smoothing == 0):
        pytest.skip("compiles long")
    torch.manual_seed(seed)
    options = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
    for n, v in [(7, 11), (3, 1025), (0, 5), *([(1, 1)] if device == "cpu" else [])]:
        x = torch.randn(n, v, device=device).to(getattr(torch, dtype)).requires_grad_()
        t = torch.randint(v, (n,), device=device)
        t[::2] = t[::2] if ignore_index is None else ignore_index
        logits = x * 1
        loss = kf.cross_entropy_(logits, t, **options)
        assert loss.dtype == x.dtype
        assert torch.equal(logits, x)
        g = torch.randn(loss.shape, device=device).to(x.dtype)
        places: list[int] = []
        logits.register_hook(lambda dz, places=places: places.append(dz.data_ptr()))
        loss.backward(g)
        assert places == [logits.data_ptr()]
        want = oracle(x, t, g, **options)
        assert_close(loss.detach(), want[0], dtype)
        assert_close(x.grad, want[1], dtype)


@pytest.mark.parametrize("dtype", list(SPACING))
def test_numpy(dtype: str, rng: np.random.Generator) -> None:
    for shape, (reduction, ignore_index, label_smoothing) in itertools.product([(5, 9), (2, 3, 70)], OPTIONS):
        z = rng.standard_normal(shape).astype(np_dtype(dtype))
        t = rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}
        rows = torch.from_numpy(float64(z)).reshape(-1, shape[-1])
        loss, dz = oracle(rows, torch.from_numpy(t).reshape(-1), **options)
        found = kf.cross_entropy_(z, t, **options)
        assert_close(found, loss.reshape(found.shape), dtype)
        assert_close(z, dz.reshape(shape), dtype)


def test_tensors_without_autograd(device: str) -> None:
    z, t = torch.randn(4, 9, device=device), torch.randint(9, (4,), device=device)
    want = oracle(z, t)
    leaf = z.clone().requires_grad_()
    with torch.no_grad():
        assert_close(kf.cross_entropy_(leaf, t), want[0], "float32")
    assert_close(leaf.detach(), want[1], "float32")
    turned = z.t().contiguous().t()
    assert_close(kf.cross_entropy_(turned, t), want[0], "float32")
    assert_close(turned, want[1], "float32")


def test_infinities_nan_and_targets_that_are_no_class(device: str) -> None:
    z, t = torch.randn(6, 9, dtype=torch.float64, device=device), torch.randint(9, (6,), device=device)
    z[0, 0], z[1, 1], z[2, 2], z[3, 3] = np.nan, np.inf, -np.inf, np.nan
    t[3], t[4] = -100, -100
    want = oracle(z, t, reduction="sum")
    loss = kf.cross_entropy_(z, t, ignore_index=-100, reduction="sum")
    assert_close(loss, want[0], "float64")
    assert_close(z, want[1], "float64")
    z, t = torch.randn(2, 9, device=device), torch.tensor([1, 9], device=device)
    assert kf.cross_entropy_(z, t, reduction="none").isnan().tolist() == [False, True]
    assert (z[1] == 0).all()


def test_autocast(device: str) -> None:
    x, t = torch.randn(4, 9, device=device, requires_grad=True), torch.randint(9, (4,), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = kf.cross_entropy_(x.bfloat16(), t)
    assert loss.dtype == torch.float32
    loss.backward()
    assert_close(x.grad, oracle(x.bfloat16(), t)[1], "bfloat16")


def test_what_was_consumed_is_no_logits_any_more() -> None:
    x, t = torch.randn(4, 9, requires_grad=True), torch.randint(9, (4,))
    loss = kf.cross_entropy_(x * 1, t)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|the first one wrote over the logits"):
        loss.backward()
    logits = x * 1
    other = torch.logsumexp(logits, -1).sum()
    kf.cross_entropy_(logits, t).backward()
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|the first one wrote over the logits"):
        other.backward()


Z, I = np.zeros((4, 9), np.float32), np.zeros(4, np.int64)  # noqa: E741
FLOATS = "logits must be an array of floats, got"
OF_INTEGERS = "targets must be an array of int32 or int64, got"
J, leaf, call = torch.from_numpy(I), torch.zeros(4, 9, requires_grad=True), kf.cross_entropy_
ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: call(leaf, J), RuntimeError, "logits are a leaf that requires grad"),
    (lambda: kf.fuse(lambda z, t: call(z, t))(Z, I), TypeError, "is no function of traced values"),
    (lambda: call(I, I), TypeError, f"{FLOATS} one of int64"),
    (lambda: call(Z + 0j, I), TypeError, f"{FLOATS} one of complex64"),
    (lambda: call([1.0], I), TypeError, f"{FLOATS} list"),
    (lambda: call(Z, I[:2]), ValueError, r"targets must have shape \(4,\)"),
    (lambda: call(np.float32(1)[...], I[0][...]), ValueError, "logits must have an axis of classes"),
    (lambda: call(Z, Z[:, 0]), TypeError, f"{OF_INTEGERS} one of float32"),
    (lambda: call(Z, [1, 2, 3, 4]), TypeError, f"{OF_INTEGERS} list"),
    (lambda: call(Z, J), TypeError, "targets must be an array of numpy as logits is, got one of torch"),
    (
        lambda: call(torch.zeros(1, 9).expand(4, 9), J),
        ValueError,
        r"logits must have memory for each element, got strides \(0, 1\)",
    ),
    (lambda: call(Z, I, ignore_index=1.5), TypeError, r"ignore_index must be an integer or None, got 1\.5"),
    (
        lambda: torch.func.grad(lambda z: call(z, J))(torch.zeros(4, 9)),
        TypeError,
        r"logits are a tensor of torch\.func",
    ),
    (lambda: call(Z, I, reduction="all"), ValueError, "reduction must be"),
    (lambda: call(read_only(Z.copy()), I), ValueError, "read-only"),
]


def test_errors() -> None:
    refusals(ERRORS)
    jax = pytest.importorskip("jax")
    refusals([(lambda: call(jax.numpy.asarray(Z), jax.numpy.asarray(I)), TypeError, "must be writable")])


def test_no_second_array_of_the_logits_size() -> None:
    """Beside 200 MB of logits, which need no gradient of another operation."""
    code = """
import resource, torch, kfusion as kf

def step(n, v=50000):
    logits = torch.zeros(n, v).add_(0.5)
    z, t = logits.requires_grad_().view_as(logits), torch.zeros(n, dtype=torch.int64)
    kf.cross_entropy_(z, t).backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

print(step(64), step(1000))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    few, many = map(int, run.stdout.split())
    assert many - few < 225


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_memory_on_a_gpu() -> None:
    logits, t = torch.randn(4096, 32000, device="cuda").bfloat16(), torch.randint(32000, (4096,), device="cuda")
    for _ in range(2):
        z = logits.detach().requires_grad_().view_as(logits)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        (gradient,) = torch.autograd.grad(kf.cross_entropy_(z, t), z)
        torch.cuda.synchronize()
        assert gradient.data_ptr() == logits.data_ptr()
    assert torch.cuda.max_memory_allocated() - before < 0.01 * logits.nbytes
