"""Linear + cross entropy with gradients by chunks of rows, against torch's in float64."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from kfusion._ops import logit_chunks
from kfusion._tracing.trace import trace
from kinds import HAVE_GPU, np_dtype
from reference import float64

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if HAVE_GPU and torch.cuda.is_available() else [])]
ERROR = {"float64": 1e-13, "float32": 5e-6, "float16": 1e-3, "bfloat16": 1e-2}  # of the norm


@pytest.fixture(autouse=True)
def _seed(seed: int) -> None:
    torch.manual_seed(seed)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """What each pass over the rows was asked for."""
    seen: list[set[int]] = []
    run = logit_chunks.Chunks.run

    def noting(self: Any, arrays: Any, g: Any, wanted: dict[int, Any]) -> Any:
        seen.append(set(wanted))
        return run(self, arrays, g, wanted)

    monkeypatch.setattr(logit_chunks.Chunks, "run", noting)
    return seen


def drawn(n: int, k: int, v: int, dtype: str = "float64", device: str = "cpu", *, bias: bool = True) -> list[Any]:
    """x, weight, targets and a bias or None."""
    x = torch.randn(n, k, dtype=torch.float64)
    w = torch.randn(v, k, dtype=torch.float64) * max(1, k) ** -0.5
    b = torch.randn(v, dtype=torch.float64) if bias else None
    kind = getattr(torch, dtype)
    x, w, b = (a if a is None else a.to(kind).to(device) for a in (x, w, b))
    return [x, w, torch.randint(v, (n,), device=device), b]


def leaves(*arrays: Any) -> list[Any]:
    return [a if a is None else a.detach().clone().requires_grad_() for a in arrays]


def oracle(
    x: Any,
    w: Any,
    t: Any,
    b: Any,
    g: Any = None,
    *,
    ignore_index: int | None = None,
    class_weight: Any = None,
    **options: Any,
) -> tuple[Any, list[Any]]:
    """The loss and gradients in float64."""
    if class_weight is not None:
        options["weight"] = class_weight.double().cpu()
    x, w, b = leaves(*(a if a is None else a.double().cpu() for a in (x, w, b)))
    ignored = -100 if ignore_index is None else ignore_index
    loss = F.cross_entropy(F.linear(x, w, b), t.cpu(), ignore_index=ignored, **options)
    loss.backward(torch.ones_like(loss) if g is None else g.double().cpu())
    return loss.detach(), [a.grad for a in (x, w, b) if a is not None]


def ours(x: Any, w: Any, t: Any, b: Any, g: Any = None, **options: Any) -> tuple[Any, list[Any]]:
    x, w, b = leaves(x, w, b)
    loss = kf.fused_linear_cross_entropy(x, w, t, b, **options)
    loss.backward(torch.ones_like(loss) if g is None else g)
    return loss.detach(), [a.grad for a in (x, w, b) if a is not None]


def assert_close(got: Any, want: Any, dtype: str) -> None:
    """In the norm, and NaN where the other one has it."""
    got, want = float64(got), float64(want)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    got, want = got[finite], want[finite]
    assert np.linalg.norm(got - want) <= ERROR[dtype] * max(np.linalg.norm(want), 1e-3)


def assert_same(got: tuple[Any, list[Any]], want: tuple[Any, list[Any]], dtype: str) -> None:
    assert_close(got[0], want[0], dtype)
    for g, w in zip(got[1], want[1], strict=True):
        assert str(g.dtype) == f"torch.{dtype}"
        assert_close(g, w, dtype)


# ---- values ----


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", list(ERROR))
def test_gradients(dtype: str, reduction: str, device: str) -> None:
    cases = [(True, 3, 0.1), (False, None, 0.0)]  # each has kernels of its own, which take long to compile on a GPU
    if device == "cpu":
        cases = list(itertools.product([True, False], [None, 3], [0.0, 0.1]))
    for bias, ignore_index, label_smoothing in cases:
        x, w, t, b = drawn(37, 24, 71, dtype, device, bias=bias)
        if ignore_index is not None:
            t[::3] = ignore_index
        options = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
        g = torch.randn(37 if reduction == "none" else (), device=device).to(x.dtype)
        want = oracle(x, w, t, b, g, **options)
        assert_same(ours(x, w, t, b, g, chunk_rows=10, **options), want, dtype)


SHAPES = [(1, 1, 1), (1, 5, 7), (2, 3, 1), (9, 3, 5), (10, 3, 5), (11, 3, 5), (21, 1, 33), (20, 64, 257), (31, 7, 1023)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_shapes(shape: tuple[int, int, int], dtype: str, device: str) -> None:
    if device == "cuda" and shape[-1] not in (1, 7, 257):
        pytest.skip("compiles long")
    for chunk_rows, reduction in itertools.product([1, 10, None], ["mean", "none"]):
        args = drawn(*shape, dtype, device)
        want = oracle(*args, reduction=reduction)
        assert_same(ours(*args, reduction=reduction, chunk_rows=chunk_rows), want, dtype)


def test_no_rows_and_no_columns(device: str) -> None:
    for n, k in [(0, 4), (0, 0), (3, 0)]:
        for reduction in ("mean", "sum", "none"):
            args = drawn(n, k, 6, device=device)
            assert_same(ours(*args, reduction=reduction), oracle(*args, reduction=reduction), "float64")


def test_all_rows_ignored(device: str) -> None:
    for reduction in ("mean", "sum", "none"):
        x, w, t, b = drawn(7, 4, 6, device=device)
        t[:] = -1
        options = {"reduction": reduction, "ignore_index": -1}
        assert_same(ours(x, w, t, b, chunk_rows=3, **options), oracle(x, w, t, b, **options), "float64")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(value: float, device: str) -> None:
    for where, reduction in itertools.product(["x", "weight", "bias"], ["sum", "none"]):
        x, w, t, b = drawn(9, 5, 12, device=device)
        x, w = x.abs() + 0.1, w.abs() + 0.1  # so that infinite products have one sign
        t[0], t[1], t[5] = 2, 3, -100
        {"x": x[5], "weight": w[2], "bias": b[2:3]}[where][0] = value
        options = {"reduction": reduction, "ignore_index": -100}
        assert_same(ours(x, w, t, b, chunk_rows=4, **options), oracle(x, w, t, b, **options), "float64")


def test_a_target_that_is_no_class(device: str) -> None:
    x, w, t, b = drawn(5, 3, 4, device=device)
    t[2] = 4
    loss, (dx, *_) = ours(x, w, t, b, reduction="none", chunk_rows=2)
    assert loss.isnan().tolist() == [False, False, True, False, False]
    assert (dx[2] == 0).all()
    assert ours(x, w, t, b)[0].isnan()


def test_large_logits(device: str) -> None:
    x, w, t, b = drawn(8, 4, 9, device=device)
    args = [x * 1e4, w, t, b]
    assert_same(ours(*args, chunk_rows=3), oracle(*args), "float64")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_chunks_are_summed_in_float32(dtype: str, device: str) -> None:
    x, w, t, b = drawn(2048, 16, 40, dtype, device)
    x, t = x.abs() + 1, torch.zeros_like(t)  # what is added has one sign
    b[0] += 5  # and is no power of two
    want = oracle(x, w, t, b, reduction="sum")
    got = ours(x, w, t, b, reduction="sum", chunk_rows=8)
    for g, v in zip(got[1][1:], want[1][1:], strict=True):
        assert (g.double().cpu() - v).norm() <= 0.6 * torch.finfo(g.dtype).eps * v.norm()  # 0.5 is one rounding


def test_gradients_of_float16_that_are_small_by_themselves(device: str) -> None:
    """GradScaler has them: the loss's gradient makes up for a mean over many rows."""
    x, w, t, b = drawn(4096, 8, 64, "float16", device)
    scale = torch.tensor(2.0**13, device=device).half()
    assert_same(ours(x, w, t, b, scale, chunk_rows=1000), oracle(x, w, t, b, scale), "float16")


def test_leading_axes_and_strides(device: str) -> None:
    x, w, t, b = drawn(24, 5, 11, device=device)
    want = oracle(x, w, t, b)
    loss, (dx, dw, db) = ours(x.reshape(2, 3, 4, 5), w, t.reshape(2, 3, 4), b, chunk_rows=7)
    assert_same((loss, [dx.reshape(24, 5), dw, db]), want, "float64")
    g = torch.randn(24, dtype=x.dtype, device=device)
    given = x.reshape(2, 3, 4, 5), w, t.reshape(2, 3, 4), b, g.reshape(2, 3, 4)
    loss, (dx, dw, db) = ours(*given, reduction="none", chunk_rows=7)
    each = oracle(x, w, t, b, g, reduction="none")
    assert_same((loss.reshape(24), [dx.reshape(24, 5), dw, db]), each, "float64")
    turned = x.t().contiguous().t(), w.t().contiguous().t(), torch.stack([t, t], 1)[:, 0], b
    assert_same(ours(*turned, chunk_rows=7), want, "float64")
    wide = torch.zeros(24, 10, dtype=x.dtype, device=device)[:, ::2].copy_(x)
    assert_same(ours(wide, w, t.int(), b, chunk_rows=7), want, "float64")
    loss, (dx, _, _) = ours(x[0], w, t[0], b)
    assert_same((loss, [dx]), (lambda y: (y[0], [y[1][0][0]]))(oracle(x[:1], w, t[:1], b)), "float64")


# ---- weights of classes ----


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", list(ERROR))
def test_weights_of_classes(dtype: str, reduction: str, device: str) -> None:
    for bias, ignore_index, label_smoothing in [(True, 3, 0.1), (False, None, 0.0)]:
        x, w, t, b = drawn(37, 24, 71, dtype, device, bias=bias)
        t[::3] = 3
        options: dict[str, Any] = {"reduction": reduction, "ignore_index": ignore_index}
        options |= {"label_smoothing": label_smoothing, "class_weight": torch.rand(71, device=device).to(x.dtype)}
        g = torch.randn(37 if reduction == "none" else (), device=device).to(x.dtype)
        want = oracle(x, w, t, b, g, **options)
        assert_same(ours(x, w, t, b, g, chunk_rows=10, **options), want, dtype)
        with torch.no_grad():
            assert_close(kf.linear_cross_entropy(x, w, t, b, **options), want[0], dtype)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_weights_of_classes_of_which_none_counts(dtype: str, device: str) -> None:
    """Where all rows are ignored gradients are 0, where all weigh nothing they are NaN, as torch's."""
    for weights, target in [(torch.rand(6), 2), (torch.zeros(6), 5)]:
        x, w, t, b = drawn(7, 4, 6, dtype, device)
        t[:] = target
        options = {"ignore_index": 2, "class_weight": weights.to(x)}
        for reduction in ("mean", "sum", "none"):
            g = torch.ones(7 if reduction == "none" else ()).to(x)
            want = oracle(x, w, t, b, g, reduction=reduction, **options)
            assert_same(ours(x, w, t, b, g, chunk_rows=3, reduction=reduction, **options), want, dtype)


def test_weights_of_classes_and_odd_targets(device: str) -> None:
    x, w, t, b = drawn(5, 3, 4, device=device)
    weights = torch.rand(4, device=device).double()
    want = oracle(x, w, t, b, torch.ones(5), reduction="none", class_weight=weights, label_smoothing=0.3)[0]
    t[2], want[2] = 4, float("nan")
    loss, (dx, *_) = ours(
        x, w, t, b, torch.ones_like(x[:, 0]), reduction="none", chunk_rows=2, class_weight=weights, label_smoothing=0.3
    )
    assert_close(loss, want, "float64")
    assert (dx[2] == 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_weights_of_classes_have_no_gradient(reduction: str) -> None:
    x, w, t, _ = drawn(5, 3, 4)
    weights = torch.rand(4).double()
    f = lambda c: kf.linear_cross_entropy(x, w, t, class_weight=c, reduction=reduction).sum()  # noqa: E731
    with pytest.raises(TypeError, match=r"linear_cross_entropy: class_weight has no gradient"):
        kf.grad(f)(weights)
    loss = kf.fused_linear_cross_entropy(x, w, t, class_weight=weights.requires_grad_(), reduction=reduction)
    with pytest.raises(TypeError, match=r"linear_cross_entropy: class_weight has no gradient"):
        loss.sum().backward()


def test_weights_of_classes_that_do_not_fit() -> None:
    x, w, t, _ = drawn(5, 3, 4)
    with pytest.raises(ValueError, match=r"class_weight must have shape \(4,\), got \(5,\)"):
        kf.linear_cross_entropy(x, w, t, class_weight=torch.rand(5).double())
    with pytest.raises(TypeError, match="class_weight must be float64 as x is, got float32"):
        kf.linear_cross_entropy(x, w, t, class_weight=torch.rand(4))


def test_weights_of_classes_under_autocast() -> None:
    x, w, t, b = drawn(20, 16, 33, "float32")
    weights = torch.rand(33)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, got = ours(x, w, t, b, class_weight=weights, chunk_rows=7)
    want = oracle(*(a.bfloat16() for a in (x, w)), t, b.bfloat16(), class_weight=weights)
    assert loss.dtype == torch.float32
    for a, v in zip([loss, *got], [want[0], *want[1]], strict=True):
        assert_close(a, v, "bfloat16")


def test_weights_of_classes_of_numpys() -> None:
    x, w, t, b = drawn(37, 8, 11)
    weights = torch.rand(11).double()
    options = {"ignore_index": 4, "label_smoothing": 0.2}
    f = lambda x, w, b, c: kf.linear_cross_entropy(x, w, t.numpy(), b, class_weight=c, chunk_rows=10, **options)  # noqa: E731
    loss, grads = kf.value_and_grad(f, (0, 1, 2))(*(a.numpy() for a in (x, w, b, weights)))
    want = oracle(x, w, t, b, class_weight=weights, **options)
    for a, v in zip([loss, *grads], [want[0], *want[1]], strict=True):
        assert_close(a, v, "float64")


def test_options_that_are_no_numbers() -> None:
    x, w, t, _ = drawn(5, 3, 4)
    for name, value in [("chunk_rows", 1.5), ("chunk_rows", "3"), ("ignore_index", 2.0)]:
        calls = [lambda x: kf.linear_cross_entropy(x, w, t, **{name: value})]  # noqa: B023
        calls += [kf.grad(calls[0]), lambda x: kf.fused_linear_cross_entropy(x, w, t, **{name: value})]  # noqa: B023
        for call in calls:
            with pytest.raises(TypeError, match=rf"{name} must be an integer or None, got {value!r}"):
                call(x)
    with pytest.raises(TypeError, match="label_smoothing must be a number, got 'a'"):
        kf.linear_cross_entropy(x, w, t, label_smoothing="a")
    with pytest.raises(ValueError, match="chunk_rows must be at least 1, got 0"):
        kf.linear_cross_entropy(x, w, t, chunk_rows=0)


# ---- torch's autograd ----


def test_only_what_is_wanted_is_computed(passes: list[set[int]]) -> None:
    x, w, t, b = drawn(10, 4, 6)
    for asked in itertools.product([False, True], repeat=3):
        for reduction in ("mean", "none"):
            given = [a.clone().requires_grad_(is_asked) for a, is_asked in zip((x, w, b), asked, strict=True)]
            loss = kf.fused_linear_cross_entropy(*given[:2], t, given[2], reduction=reduction, chunk_rows=4)
            assert loss.requires_grad == any(asked)
            if any(asked):
                loss.backward(torch.ones_like(loss))
            wanted = {number for number, is_asked in zip((1, 2, 3), asked, strict=True) if is_asked}
            assert passes == ([wanted | ({0} if reduction == "mean" else set())] if any(asked) else [])
            passes.clear()
            grads = [
                g
                for g, is_asked in zip(
                    oracle(x, w, t, b, reduction=reduction)[1]
                    if reduction == "mean"
                    else oracle(x, w, t, b, torch.ones(10), reduction=reduction)[1],
                    asked,
                    strict=True,
                )
                if is_asked
            ]
            for a, want in zip([a for a in given if a.requires_grad], grads, strict=True):
                assert_close(a.grad, want, "float64")
            assert all(a.grad is None for a in given if not a.requires_grad)


def test_no_grad_takes_the_kernel(passes: list[set[int]]) -> None:
    x, w, t, b = drawn(10, 4, 6)
    x.requires_grad_()
    with torch.no_grad():
        loss = kf.fused_linear_cross_entropy(x, w, t, b)
    assert not loss.requires_grad
    assert passes == []
    assert_close(loss, oracle(x, w, t, b)[0], "float64")


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_backward_twice_and_accumulation(reduction: str, passes: list[set[int]]) -> None:
    args = drawn(10, 4, 6)
    x, w, b = leaves(args[0], args[1], args[3])
    loss = kf.fused_linear_cross_entropy(x, w, args[2], b, reduction=reduction, chunk_rows=3)
    first, second = torch.randn(2, *loss.shape, dtype=loss.dtype)
    loss.backward(first, retain_graph=True)
    kept = [a.grad.clone() for a in (x, w, b)]
    loss.backward(second)
    want = oracle(*args, first, reduction=reduction)[1], oracle(*args, second, reduction=reduction)[1]
    for a, before, one, other in zip((x, w, b), kept, *want, strict=True):
        assert_close(before, one, "float64")
        assert_close(a.grad, one + other, "float64")
    assert len(passes) == (1 if reduction == "mean" else 2)


def test_gradients_are_the_callers_own() -> None:
    """What is done to gradients between two backward passes does not show in the second one's."""
    args = drawn(10, 4, 6)
    x, w, b = leaves(args[0], args[1], args[3])
    loss = kf.fused_linear_cross_entropy(x, w, args[2], b, reduction="sum")
    grads = torch.autograd.grad(loss, (x, w, b), retain_graph=True)
    want = [g.clone() for g in grads]
    for g in grads:
        g.zero_()
    for g, v in zip(torch.autograd.grad(loss, (x, w, b)), want, strict=True):
        assert torch.equal(g, v)


def test_second_derivatives_are_refused() -> None:
    x, w, t, _ = drawn(5, 3, 4)
    for reduction in ("mean", "none"):
        f = lambda x: kf.linear_cross_entropy(x, w, t, reduction=reduction).sum()  # noqa: B023, E731
        with pytest.raises(TypeError, match="linear_cross_entropy"):
            kf.grad(lambda x: kf.grad(f)(x).sum())(x)  # noqa: B023


class Head(nn.Module):
    """A layer and a head that has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.layer = nn.Linear(8, 8)

    def hidden(self, ids: Any) -> Any:
        return torch.tanh(self.layer(self.embedding(ids)))

    def forward(self, ids: Any, targets: Any) -> Any:
        return kf.linear_cross_entropy(self.hidden(ids), self.embedding.weight, targets, ignore_index=0, chunk_rows=5)


def test_within_a_module_whose_weight_is_shared(passes: list[set[int]]) -> None:
    model = Head().double()
    ids, targets = torch.randint(30, (2, 3, 7))
    loss = kf.fuse(model)(ids, targets)
    (loss * 3).backward()
    got = [p.grad.clone() for p in model.parameters()]
    assert passes == [{0, 1, 2}]
    model.zero_grad()
    logits = model.hidden(ids) @ model.embedding.weight.t()
    want = F.cross_entropy(logits.reshape(-1, 30), targets.reshape(-1), ignore_index=0)
    (want * 3).backward()
    assert_close(loss.detach(), want.detach(), "float64")
    for g, p in zip(got, model.parameters(), strict=True):
        assert_close(g, p.grad, "float64")


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast(reduction: str, device: str) -> None:
    x, w, t, b = drawn(20, 16, 33, "float32", device)
    g = torch.randn(20 if reduction == "none" else (), device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss, got = ours(x, w, t, b, g, reduction=reduction, chunk_rows=7)
        plain = kf.linear_cross_entropy(x, w, t, b, reduction=reduction)
    want = oracle(*(a.bfloat16() for a in (x, w)), t, b.bfloat16(), g, reduction=reduction)
    assert loss.dtype == plain.dtype == torch.float32
    assert_close(loss, want[0], "bfloat16")
    assert_close(plain, want[0], "bfloat16")
    for a, v in zip(got, want[1], strict=True):
        assert a.dtype == torch.float32
        assert_close(a, v, "bfloat16")


def test_other_sizes_need_no_other_trace() -> None:
    for n, k, v in [(10, 4, 6), (13, 4, 6), (29, 5, 8), (7, 3, 11), (1, 4, 6)]:
        args = drawn(n, k, v)
        assert_same(ours(*args), oracle(*args), "float64")
        assert_same(ours(*args, ignore_index=-100), oracle(*args), "float64")


# ---- gradients that a graph is told ----


def test_gradients_by_a_rule() -> None:
    g = _core.Graph()
    x, known = g.input("x", (3,), "float64"), g.input("known", (3,), "float32")
    total = g.reduce("sum", g.map("exp", [x]), None)
    y = g.reshape(total, ())
    g.set_gradients([y], [x], [], [known])
    seed = g.input("seed", (), "float64")
    (dx,), calls = g.vjp([y], [seed], [x])
    assert calls == []
    g.set_outputs([("dx", dx)])
    given = np.zeros(3), np.array([1, 2, 3], np.float32), np.array(2.0)
    (found,) = _core.run_graph(g, list(given), "f")
    np.testing.assert_array_equal(found, [2, 4, 6])
    for arguments, gradients in [([x], [known, known]), ([seed], [known]), ([x, x], [known])]:
        with pytest.raises(ValueError, match="set_gradients: "):
            g.set_gradients([y], arguments, [], gradients)
    with pytest.raises(ValueError, match=r"set_gradients: the result must broadcast"):
        g.set_gradients([x], [seed], [], [seed])


@pytest.mark.parametrize("of", ["elements", "rows"])
def test_gradients_of_arrays_by_a_rule(of: str) -> None:
    """Each element of an argument gets what its own element of the result does, or that of its row."""
    g = _core.Graph()
    x, known = g.input("x", (2, 3), "float64"), g.input("known", (2, 3), "float64")
    y = g.map("exp", [x]) if of == "elements" else g.reduce("sum", x, [1], keepdims=True)
    g.set_gradients([y], [x], [], [known])
    seed = g.input("seed", g.shape(y), "float64")
    (dx,), _ = g.vjp([y], [seed], [x])
    g.set_outputs([("dx", dx)])
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(g.shape(n)) for n in (x, known, seed)]
    np.testing.assert_array_equal(_core.run_graph(g, given, "f")[0], given[1] * given[2])


def test_numbers_of_each_call() -> None:
    x, w, t, b = drawn(40, 8, 6)
    f = kf.value_and_grad(lambda x, n, s: kf.linear_cross_entropy(x, w, t, b, ignore_index=n, label_smoothing=s))
    for ignore_index, label_smoothing in [(3, 0.1), (5, 0.1), (5, 0.2), (2, 0.0), (-100, 0.0)]:
        options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        want = oracle(x, w, t, b, **options)
        assert_same(ours(x, w, t, b, chunk_rows=ignore_index + 200, **options), want, "float64")
        loss, dx = f(x, ignore_index, label_smoothing)
        assert_close(loss, want[0], "float64")
        assert_close(dx, want[1][0], "float64")


# ---- other arrays ----


@pytest.mark.parametrize("dtype", list(ERROR))
@pytest.mark.parametrize("library", ["numpy", *(["cupy"] if HAVE_GPU else [])])
def test_value_and_grad(library: str, dtype: str) -> None:
    if library == "cupy" and dtype == "bfloat16":
        pytest.skip("CuPy has no products of bfloat16")
    xp = pytest.importorskip(library)
    x, w, t, b = drawn(37, 24, 71)
    given = [xp.asarray(a.numpy().astype(np_dtype(dtype))) for a in (x, w, b)]
    exact = [torch.from_numpy(float64(a.get() if library == "cupy" else a)) for a in given]
    for reduction in ("mean", "sum", "none"):

        def f(x: Any, w: Any, b: Any, t: Any) -> Any:
            losses = kf.linear_cross_entropy(x, w, t, b, reduction=reduction, ignore_index=4, chunk_rows=10)  # noqa: B023
            return kf.sum(losses * losses) if losses.ndim else losses

        loss, grads = kf.value_and_grad(f, (0, 1, 2))(*given, xp.asarray(t.numpy()))
        rows, g = oracle(*exact[:2], t, exact[2], reduction=reduction, ignore_index=4)[0], None
        if reduction == "none":
            g = 2 * rows
        want, wanted = oracle(*exact[:2], t, exact[2], g, reduction=reduction, ignore_index=4)
        assert_close(loss.get() if library == "cupy" else loss, (want**2).sum() if want.ndim else want, dtype)
        for a, v in zip(grads, wanted, strict=True):
            assert str(a.dtype) == dtype
            assert_close(a.get() if library == "cupy" else a, v, dtype)


def test_arrays_that_cannot_be_written_to() -> None:
    jax = pytest.importorskip("jax")
    x, w, t, b = (a.numpy() for a in drawn(37, 24, 71))
    f = kf.value_and_grad(lambda x, w, b, t: kf.linear_cross_entropy(x, w, t, b, chunk_rows=10), (0, 1, 2))
    want = f(x, w, b, t)
    with jax.default_device(jax.devices("cpu")[0]):  # on a GPU JAX has no products that work on memory of others
        loss, grads = f(*map(jax.numpy.asarray, (x, w, b, t)))
    for got, exact in zip((loss, *grads), (want[0], *want[1]), strict=True):
        assert isinstance(got, jax.Array)
        assert_close(np.asarray(got), exact, "float64")


def test_vjp() -> None:
    x, w, t, b = drawn(11, 4, 6)
    y, pull = kf.vjp(lambda x, w: kf.linear_cross_entropy(x, w, t, b, chunk_rows=4), x, w)
    want = oracle(x, w, t, b, torch.tensor(3.0))
    assert_close(y, want[0], "float64")
    for g, v in zip(pull(torch.tensor(3.0, dtype=x.dtype)), want[1][:2], strict=True):
        assert_close(g, v, "float64")


# ---- memory ----


def test_no_array_of_a_plan_has_the_logits() -> None:
    n, k, v = 8192, 4096, 128256
    specs = kf.spec((n, k), "bfloat16"), kf.spec((v, k), "bfloat16"), kf.spec((n,), "int64")
    f = kf.value_and_grad(lambda x, w, t: kf.linear_cross_entropy(x, w, t), (0, 1))
    graph = trace(f.__wrapped__, *specs).graph
    sizes = [int(np.prod(graph.shape(node))) for node in range(len(graph))]
    assert max(sizes) == k * v
    assert n * v > max(sizes)
    assert kf.plan(f, *specs, device="H200").fused.peak_intermediate_bytes <= 1.1 * (4 * k * v + 2 * n * k)


@pytest.mark.slow
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_memory_that_a_call_takes(library: str, reduction: str) -> None:
    """The most that the process has, above what it has for a few rows: of 410 MB of logits no more than some chunks."""
    code = f"""
import resource, sys
import numpy as np, kfusion as kf

def step(n, library, v=50000, k=16):
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((n, k), (v, k)))
    t = rng.integers(0, v, n)
    if library == "torch":
        import torch
        x, w, t = torch.from_numpy(x).requires_grad_(), torch.from_numpy(w).requires_grad_(), torch.from_numpy(t)
        kf.fused_linear_cross_entropy(x, w, t, reduction={reduction!r}, chunk_rows=64).sum().backward()
    else:
        f = lambda x, w: kf.sum(kf.linear_cross_entropy(x, w, t, reduction={reduction!r}, chunk_rows=64))
        kf.value_and_grad(f, (0, 1))(x, w)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

print(step(64, {library!r}), step(2048, {library!r}))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    few, many = map(int, run.stdout.split())
    assert many - few < 100


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
def test_memory_on_a_gpu() -> None:
    x, w, t, _ = drawn(8192, 1024, 64000, "bfloat16", "cuda", bias=False)
    ours(x, w, t, None)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ours(x, w, t, None, chunk_rows=512)
    most = torch.cuda.max_memory_allocated() - before
    chunk, gradients = 512 * 64000 * 2, 64000 * 1024 * (4 + 2 + 2) + 8192 * 1024 * 6
    assert most < 2.5 * chunk + gradients < 8192 * 64000 * 2


# ---- errors ----


def test_errors() -> None:
    x, w, t, b = drawn(5, 3, 4)
    x, w, t, b = (a.numpy() for a in (x, w, t, b))
    f = kf.linear_cross_entropy
    for error, text, call in [
        (
            ValueError,
            "weight must have shape (classes, k) for x (..., k), got (4, 2) for (5, 3)",
            lambda: f(x, w[:, :2], t),
        ),
        (ValueError, "bias must have shape (4,), got (3,)", lambda: f(x, w, t, b[:3])),
        (ValueError, "targets must have shape (5,), got (4,)", lambda: f(x, w, t[:4])),
        (TypeError, "weight must be float64 as x is, got float32", lambda: f(x, w.astype(np.float32), t)),
        (TypeError, "targets must be int32 or int64, got float64", lambda: f(x, w, t.astype(float))),
        (TypeError, "x must be floats, got int64", lambda: f(x.astype(int), w, t)),
        (ValueError, "chunk_rows must be at least 1, got 0", lambda: f(x, w, t, chunk_rows=0)),
        (ValueError, 'reduction must be "mean", "sum" or "none", got \'all\'', lambda: f(x, w, t, reduction="all")),
        (ValueError, "label_smoothing must be from 0 to 1, got 2", lambda: f(x, w, t, label_smoothing=2)),
    ]:
        with pytest.raises(error, match=re.escape(f"kfusion.linear_cross_entropy: {text}")):
            call()
