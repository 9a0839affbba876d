"""Targets of torch's losses that are no classes: an IndexError on the CPU, as torch raises one."""

import itertools

import pytest

import kfusion as kf
from kfusion._ops import chunk_products
from sweeps import sweep

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

N, K, V = 6, 4, 9
WEIGHT = torch.rand(V, dtype=torch.float64)
LOSSES = {
    "cross_entropy": F.cross_entropy,
    "with weights": lambda x, t: F.cross_entropy(x, t, WEIGHT.to(x.dtype)),
    "smoothed": lambda x, t: F.cross_entropy(x, t, WEIGHT.to(x.dtype), label_smoothing=0.1, reduction="sum"),
    "of images": lambda x, t: F.cross_entropy(x.reshape(2, -1, V).transpose(1, 2), t.reshape(2, -1)),
    "ignored": lambda x, t: F.cross_entropy(x, t, ignore_index=V + 3, reduction="none").sum(),
    "nll_loss": lambda x, t: F.nll_loss(F.log_softmax(x, -1), t),
    "nll_loss with weights": lambda x, t: F.nll_loss(F.log_softmax(x, -1), t, WEIGHT.to(x.dtype)),
    "multi_margin_loss": lambda x, t: F.multi_margin_loss(x, t.clamp(min=-9)),
}


def drawn(bad):
    torch.manual_seed(0)
    t = torch.randint(V, (N,))
    t[2] = bad
    return torch.randn(N, V, dtype=torch.float64), t


def test_rows_that_are_ignored_may_have_any_target():
    for name, bad in (("cross_entropy", -100), ("ignored", V + 3), ("with weights", -100), ("nll_loss", -100)):
        x, t = drawn(bad)
        torch.testing.assert_close(kf.fuse(LOSSES[name])(x, t), LOSSES[name](x, t))


def test_a_target_outside_of_the_classes(some):
    def check(name, bad):
        loss, (x, t) = LOSSES[name], drawn(bad)
        with pytest.raises(RuntimeError if name == "multi_margin_loss" else IndexError):  # torch's
            loss(x, t)
        fused = kf.fuse(loss)
        for call in (fused, kf.value_and_grad(loss), lambda x, t: fused(x.requires_grad_(), t).backward()):
            with pytest.raises(IndexError, match="out of bounds"):
                call(x, t)
        t[2] = 1
        torch.testing.assert_close(fused(x, t), loss(x, t))

    sweep(check, some(itertools.product(LOSSES, [V, -1, V + 10**6, -(10**6)]), 16))


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("bad", [V, -1])
def test_without_logits(monkeypatch, reduction, bad):
    monkeypatch.setitem(chunk_products._BYTES, "cpu", 64)
    x, t = drawn(bad)
    x, w = x[:, :K].clone(), torch.randn(V, K, dtype=torch.float64)

    def loss(x, w):
        return F.cross_entropy(F.linear(x, w), t, reduction=reduction).sum()

    both = kf.value_and_grad(loss, (0, 1))
    with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
        both(x, w)
    t[2] = -100
    made, gradients = both(x, w)
    wanted = [v.clone().requires_grad_() for v in (x, w)]
    expected = loss(*wanted)
    expected.backward()
    torch.testing.assert_close(made, expected.detach())
    for g, v in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(g, v.grad)


def test_the_named_kernel_gives_nan():
    x, t = drawn(V)
    assert kf.fuse(kf.cross_entropy)(x, t).isnan()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("bad", [V, -1])
def test_compiled(bad, monkeypatch):
    from kfusion._torch_compile.backend import backend
    from kfusion._torch_compile.compiled import Compiled

    x, t = drawn(bad)
    ours = torch.compile(F.cross_entropy, backend=backend)
    with torch.no_grad():
        with pytest.raises(IndexError):
            ours(x, t)
        t[2] = 3
        monkeypatch.setattr(Compiled, "_eagerly", lambda self, values: pytest.fail("operator by operator"))
        torch.testing.assert_close(ours(x, t), F.cross_entropy(x, t))
