"""Products and what follows them on a GPU's tensor cores: results against float64, for every shape and layout."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest

import kfusion as kf
from kinds import HAVE_GPU

torch = pytest.importorskip("torch")
HOPPER = HAVE_GPU and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not HOPPER, reason="needs a GPU of compute capability 9.0")]

F = torch.nn.functional
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# rows, depth, columns: tails of tiles and of slices, one row, one slice, less than one
SHAPES = [(1, 8, 8), (7, 16, 24), (128, 64, 256), (129, 8, 264), (127, 72, 248), (1000, 776, 1000), (777, 1208, 520),
          (384, 64, 512), (2100, 72, 4104), (64, 4096, 128)]  # fmt: skip


def forced(f, by_time=False):
    """Run by tensor cores, whatever is predicted to be faster; loops by the generated kernels."""
    return kf.FusedFunction(f, {"executors": ["tensor_cores", "cuda"], "by_time": by_time})


def draw(*shape, dtype="bfloat16", scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).to(DTYPES[dtype])


def check(f, *arguments, dtype="bfloat16", kernels=1, exact=None, by_time=False):
    """`f` on the arguments in one kernel, beside what it gives of float64."""
    fused = forced(f, by_time)
    plan = fused.plan(*arguments)
    assert [g.executor for g in plan.groups].count("tensor_cores") >= 1, plan.groups
    assert len(plan.groups) == kernels, plan.groups
    got = fused(*arguments)
    again = fused(*arguments)
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments]
    want = (exact or f)(*wide)
    for one, other, wanted in zip(*map(as_tuple, (got, again, want)), strict=True):
        assert torch.equal(
            one.view(torch.int16) if one.itemsize == 2 else one, other.view(torch.int16) if one.itemsize == 2 else other
        )
        assert one.shape == wanted.shape
        finite = wanted.isfinite() & (wanted.abs() < 6e4)
        assert torch.equal(one.isnan(), wanted.isnan())
        error = (one.double() - wanted)[finite].norm() / wanted[finite].norm().clamp(min=1e-30)
        assert error <= 1.5 * ROUNDING[dtype], error
        worst = (one.double() - wanted)[finite].abs() - 4 * ROUNDING[dtype] * wanted[finite].abs()
        if worst.numel():
            assert worst.max() <= 2e-2
    return got


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def gelu(x):
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
class TestStored:
    def test_bias_and_gelu(self, shape, dtype):
        m, k, n = shape
        x, w, b = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, scale=k**-0.5), draw(n, dtype=dtype)
        check(lambda x, w, b: gelu(F.linear(x, w, b)), x, w, b, dtype=dtype)

    def test_residual(self, shape, dtype):
        m, k, n = shape
        x, w, b = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, scale=k**-0.5), draw(n, dtype=dtype)
        check(lambda x, w, b, r: F.linear(x, w, b) + r, x, w, b, draw(m, n, dtype=dtype), dtype=dtype)

    def test_weights_of_the_other_order(self, shape, dtype):
        m, k, n = shape
        x, w = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, scale=k**-0.5)
        check(lambda x, w: torch.relu(x @ w) * 0.5, x, w, dtype=dtype)

    def test_a_transposed_left_factor(self, shape, dtype):
        m, k, n = shape
        m += -m % 8
        x, w = draw(k, m, dtype=dtype), draw(k, n, dtype=dtype, scale=k**-0.5)
        check(lambda x, w: torch.relu(x.T @ w), x, w, dtype=dtype)

    def test_several_results(self, shape, dtype):
        m, k, n = shape
        x, w, r = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, scale=k**-0.5), draw(m, dtype=dtype)
        check(lambda x, w, r: (torch.relu(x @ w.T), (x @ w.T) * r[:, None], (x @ w.T).float()), x, w, r, dtype=dtype)


class TestOperands:
    """What the epilogue reads and stores in other ways than by boxes."""

    @pytest.mark.parametrize("n", [1, 7, 255, 333])
    def test_odd_columns_are_stored_one_by_one(self, n):
        check(lambda x, w, b: gelu(F.linear(x, w, b)), draw(130, 72), draw(n, 72, scale=0.1), draw(n))

    def test_float32_arrays(self):
        b, r = torch.randn(264, device="cuda"), torch.randn(130, 264, device="cuda")
        check(lambda x, w, b, r: ((x @ w.T).float() + b) * r, draw(130, 72), draw(264, 72, scale=0.1), b, r)

    def test_masks_and_numbers(self):
        mask = torch.rand(130, 264, device="cuda") > 0.5
        f = lambda x, w, m, s: torch.where(m, (x @ w.T) * s, -1.0)  # noqa: E731
        check(f, draw(130, 72), draw(264, 72, scale=0.1), mask, 0.75)
        check(lambda x, w, m: (x @ w.T).masked_fill(m, 0.0), draw(130, 72), draw(264, 72), mask[:1])

    def test_two_matrices_and_three_vectors(self):
        f = lambda x, w, a, b, c, r, s: ((F.linear(x, w) + a) * b - c) * r + s  # noqa: E731
        vectors = [draw(264) for _ in range(3)]
        check(f, draw(130, 72), draw(264, 72, scale=0.1), *vectors, draw(130, 264), draw(130, 264))

    def test_positions(self):
        def f(x, w):
            rows, cols = torch.arange(130, device="cuda"), torch.arange(264, device="cuda")
            return torch.where(cols < rows[:, None], x @ w.T, 0.0)

        check(f, draw(130, 72), draw(264, 72, scale=0.1))

    def test_views_of_wider_arrays(self):
        x, w = draw(200, 640)[20:150, 64:136], draw(264, 160, scale=0.1)[:, 8:80]
        check(lambda x, w: torch.relu(x @ w.T), x, w)
        r = draw(130, 600)[:, 8:272]
        check(lambda x, w, r: x @ w.T + r, x, w, r)

    def test_arrays_at_any_address(self):
        def shifted(*shape):
            n = int(np.prod(shape))
            return draw(n + 1)[1:].view(*shape)

        x, w, b, r = shifted(130, 72), shifted(264, 72), shifted(264), shifted(130, 264)
        check(lambda x, w, b, r: F.linear(x, w, b) + r, x, w, b, r)

    def test_a_result_that_is_given(self):
        x, w = draw(130, 72), draw(264, 72, scale=0.1)
        out = torch.full((130, 264), float("nan"), device="cuda", dtype=torch.bfloat16)
        f = forced(lambda x, w: torch.relu(x @ w.T))
        f(x, w, out=out)
        assert torch.equal(out, f(x, w))
        square = draw(72, 72)
        want = f(square, square)
        f(square, square, out=square)  # over what is read
        assert torch.equal(square, want)

    def test_results_within_a_join(self):
        f = lambda x, w, y: torch.cat([torch.relu(x @ w.T), y], 1)  # noqa: E731
        check(f, draw(130, 72), draw(264, 72, scale=0.1), draw(130, 64), kernels=2)

    def test_nan_and_infinity(self):
        x, w = draw(130, 72), draw(264, 72)
        x[3, 5], x[7, 1] = float("nan"), float("inf")
        check(lambda x, w: torch.relu(x @ w.T), x, w)

    def test_gelu_in_the_tails(self):
        x = torch.linspace(-12, 12, 256 * 8, device="cuda").view(256, 8).bfloat16()
        eye = torch.eye(8, device="cuda").bfloat16()
        y = forced(lambda x, w: gelu(x @ w))(x, eye)
        want = gelu(x.double())
        assert ((y.double() - want).abs() <= 2.0**-8 * want.abs() + 1e-12).all()


class TestBatches:
    @pytest.mark.parametrize("shape", [(3, 130, 72, 264), (16, 8, 64, 40), (2, 300, 8, 24)])
    def test_batches_of_both(self, shape):
        b, m, k, n = shape
        check(lambda x, w: torch.relu(x @ w), draw(b, m, k), draw(b, k, n, scale=k**-0.5))
        check(lambda x, w, r: x @ w.transpose(1, 2) + r, draw(b, m, k), draw(b, n, k, scale=k**-0.5), draw(b, m, n))
        check(lambda x, w, r: x @ w.transpose(1, 2) + r, draw(b, m, k), draw(b, n, k, scale=k**-0.5), draw(m, n))

    def test_leading_axes_are_rows(self):
        x, w, b = draw(3, 5, 40, 72), draw(264, 72, scale=0.1), draw(264)
        check(lambda x, w, b: gelu(F.linear(x, w, b)), x, w, b)
        check(lambda x, w, r: F.linear(x, w) * r, x, w, draw(3, 5, 40, 1))

    def test_one_left_factor_for_all(self):
        check(lambda x, w: torch.relu(x @ w), draw(130, 72), draw(3, 72, 264, scale=0.1))


class TestGates:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [*SHAPES, (333, 136, 96), (300, 72, 1000)])
    def test_two_products_of_one_factor(self, shape, dtype):
        m, k, n = shape
        x = draw(m, k, dtype=dtype)
        g, u = (draw(n, k, dtype=dtype, scale=k**-0.5) for _ in range(2))
        check(lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u), x, g, u, dtype=dtype)

    def test_biases_and_weights_of_the_other_order(self):
        x, a, b = draw(257, 136), draw(520), draw(520)
        g, u = (draw(136, 520, scale=0.1) for _ in range(2))
        check(lambda x, g, u, a, b: gelu(x @ g + a) * (x @ u + b), x, g, u, a, b)


class TestColumns:
    """What is computed of columns alone, once for a tile."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_batch_norm(self, shape, dtype):
        m, k, n = shape
        mean, weight, bias = (torch.randn(n, device="cuda") for _ in range(3))
        variance = torch.rand(n, device="cuda") + 0.5
        check(lambda x, w, *s: torch.relu(F.batch_norm(x @ w.T, *s)), draw(m, k, dtype=dtype),
              draw(n, k, dtype=dtype, scale=k**-0.5), mean, variance, weight, bias, dtype=dtype)  # fmt: skip

    def test_with_a_residual_and_several_results(self):
        f = lambda x, w, a, b, r: ((x @ w.T).float() * a + b, ((x @ w.T).float() * a.exp() + r).to(x.dtype))  # noqa: E731
        a, b = torch.randn(264, device="cuda"), torch.randn(264, device="cuda")
        check(f, draw(1300, 72), draw(264, 72, scale=0.1), a, b, draw(1300, 264))

    def test_of_gates(self):
        f = lambda x, v, w, a, b: F.silu((x @ v.T).float() * a) * ((x @ w.T).float() + b)  # noqa: E731
        a, b = torch.randn(1000, device="cuda"), torch.randn(1000, device="cuda")
        check(f, draw(1300, 72), draw(1000, 72, scale=0.1), draw(1000, 72, scale=0.1), a, b)

    @pytest.mark.parametrize("m", [16, 700])
    def test_of_each_batch(self, m):
        f = lambda x, w, a: (x @ w).float() * a - a  # noqa: E731
        check(f, draw(3, m, 72), draw(3, 72, 264, scale=0.1), torch.randn(3, 1, 264, device="cuda"))

    def test_beside_one_another(self):
        f = lambda x, q, k, v, a, b: ((x @ q.T).float() + a, x @ k.T, (x @ v.T).float() * b - 1)  # noqa: E731
        weights = [draw(c, 72, scale=0.1) for c in (520, 264, 72)]
        check(f, draw(700, 72), *weights, torch.randn(520, device="cuda"), torch.randn(72, device="cuda"))

    def test_every_other_number_and_whole_numbers(self):
        f = lambda x, w, a, i: torch.where(i > 2, (x @ w.T).float() * a, i.float())  # noqa: E731
        a, i = torch.randn(528, device="cuda")[::2], torch.randint(0, 5, (264,), device="cuda")
        check(f, draw(300, 72), draw(264, 72, scale=0.1), a, i)

    def test_more_than_shared_memory_takes(self):
        def f(x, w, *vectors):
            y = (x @ w.T).float()
            for v in vectors:
                y = torch.tanh(y + v)
            return y

        check(f, draw(300, 72), draw(264, 72, scale=0.1), *(torch.randn(264, device="cuda") for _ in range(9)))


class TestBeside:
    """Products of one input with weights of several widths: q, k and v."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(1, 64, 264, 40), (7, 72, 128, 128), (130, 136, 520, 264), (300, 768, 768, 768),
                                       (1000, 1208, 1000, 264), (2100, 264, 2048, 512)])  # fmt: skip
    def test_queries_keys_and_values(self, shape, dtype):
        m, k, n, few = shape
        x, columns = draw(m, k, dtype=dtype), (n, few, few)
        weights = [draw(c, k, dtype=dtype, scale=k**-0.5) for c in columns]
        biases = [draw(c, dtype=dtype) for c in columns]

        def f(x, q, k, v, a, b, c):
            return F.linear(x, q, a), F.linear(x, k, b), F.linear(x, v, c)

        check(f, x, *weights, *biases, dtype=dtype)
        check(lambda x, q, k, v: (F.linear(x, q), torch.relu(F.linear(x, k)), F.linear(x, v) * 0.5), x, *weights,
              dtype=dtype)  # fmt: skip

    @pytest.mark.parametrize("m", [16, 130, 1000])
    def test_epilogues_of_several_kinds(self, m):
        x, q, k, v = draw(m, 136), *(draw(c, 136, scale=0.1) for c in (520, 264, 72))
        a, r = draw(264), draw(m, 1)

        def f(x, q, k, v, a, r):
            y = F.linear(x, q)
            return y, y.float() * 2, gelu(F.linear(x, k, a)) * r, F.linear(x, v)

        check(f, x, q, k, v, a, r)
        check(lambda x, q, k, v: (x @ q, x @ k, torch.relu(x @ v)), x, q.T.contiguous(), k.T.contiguous(),
              v.T.contiguous())  # fmt: skip

    def test_odd_columns_and_four_of_them(self):
        x = draw(130, 72)
        weights = [draw(c, 72, scale=0.1) for c in (7, 264, 33, 1)]
        check(lambda x, *w: tuple(F.linear(x, one) for one in w), x, *weights)
        check(lambda x, *w: tuple(F.linear(x, one) for one in w), x, *(draw(256, 72, scale=0.1) for _ in range(4)))

    def test_arrays_at_any_address(self):
        def shifted(*shape):
            return draw(int(np.prod(shape)) + 1)[1:].view(*shape)

        x, b = shifted(130, 72), shifted(264)
        weights = [shifted(c, 72) for c in (264, 128, 128)]
        check(lambda x, b, q, k, v: (F.linear(x, q, b), F.linear(x, k), F.linear(x, v)), x, b, *weights)

    def test_results_that_are_given(self):
        x, q, k = draw(2, 65, 72), draw(264, 72, scale=0.1), draw(128, 72, scale=0.1)
        out = [torch.full((2, 65, n), float("nan"), device="cuda", dtype=torch.bfloat16) for n in (264, 128)]
        f = forced(lambda x, q, k: (F.linear(x, q), F.linear(x, k)))
        f(x, q, k, out=tuple(out))
        for got, want in zip(out, f(x, q, k), strict=True):
            assert torch.equal(got, want)

    def test_thirds_of_one_matrix(self):
        x, w, b = draw(2, 65, 72), draw(3 * 64, 72, scale=0.1), draw(3 * 64)

        def f(x, w, b):
            q, k, v = F.linear(x, w, b).split(64, -1)
            return torch.relu(q), k * 2.0, v + 1.0

        f_one = forced(f)
        assert sum(g.ops.count("matmul") for g in f_one.plan(x, w, b).groups) == 1
        for got, want in zip(f_one(x, w, b), f(x.double(), w.double(), b.double()), strict=True):
            torch.testing.assert_close(got.double(), want, rtol=2.0**-7, atol=2e-2)


class TestApart:
    """Products of one depth beside one another, with factors and rows of their own."""

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("depth", [8, 72, 1000, 4096])
    @pytest.mark.parametrize("widths", [(24, 264, 520, 40), (1000, 776, 8, 8), (1376, 512, 512, 1376)])
    def test_gradients_of_weights(self, depth, widths, dtype):
        scale = depth**-0.5
        a, b, c, d = (draw(depth, n, dtype=dtype, scale=scale) for n in widths)
        check(lambda a, b, c, d: (a.T @ b, c.T @ b, b.T @ d, d.T @ a), a, b, c, d, dtype=dtype, by_time=True)

    def test_depths_side_by_side(self):
        a, b, c, d = (draw(n, 136, scale=0.1) for n in (333, 130, 40, 264))
        check(lambda a, b, c, d: (a @ b.T, c @ d.T), a, b, c, d, by_time=True)

    def test_epilogues_of_several_kinds(self):
        a, b, c, d = (draw(n, 264, scale=0.1) for n in (300, 136, 1000, 72))
        bias, row = draw(72), draw(1000, 1)

        def f(a, b, c, d, bias, row):
            return torch.relu(a @ b.T), c @ d.T * row + bias, torch.tanh(b @ d.T).to(row.dtype) * 2

        check(f, a, b, c, d, bias, row, by_time=True)

    def test_arrays_at_any_address(self):
        a, c = (draw(128 * 72 + 1)[1:].reshape(128, 72) for _ in range(2))
        b = draw(128, 520)
        check(lambda a, b, c: (a.T @ b, b.T @ c), a, b, c, by_time=True)


class TestLosses:
    @pytest.mark.parametrize("shape", [(333, 136, 3001), (1300, 768, 5000), (1, 64, 130), (129, 8, 257)])
    def test_cross_entropy(self, shape):
        m, k, n = shape
        x, w = draw(m, k), draw(n, k, scale=k**-0.5)
        labels = torch.randint(n, (m,), device="cuda")
        labels[: m // 3] = torch.arange(m // 3, device="cuda") * 7 % n
        labels[-1] = -100
        check(lambda x, w, t: F.cross_entropy(F.linear(x, w), t, reduction="none"), x, w, labels)
        mean = forced(lambda x, w, t: F.cross_entropy(F.linear(x, w), t))
        want = F.cross_entropy(F.linear(x.double(), w.double()), labels)
        if m > 1:
            torch.testing.assert_close(mean(x, w, labels).double(), want, rtol=2.0**-7, atol=0)

    @pytest.mark.parametrize("shape", [(333, 136, 3001), (1300, 768, 5000), (129, 8, 257)])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_class_weights_and_smoothing(self, shape, smoothing, weighted):
        m, k, n = shape
        x, w = draw(m, k), draw(n, k, scale=k**-0.5)
        c = torch.rand(n, device="cuda").bfloat16()
        labels = torch.randint(n, (m,), device="cuda")
        labels[::5] = -100

        def f(x, w, t, c, reduction="none"):
            return F.cross_entropy(F.linear(x, w), t, weight=c if weighted else None, label_smoothing=smoothing,
                                   reduction=reduction)  # fmt: skip

        check(f, x, w, labels, c)
        for reduction in ("mean", "sum"):
            one = forced(lambda x, w, t, c, reduction=reduction: f(x, w, t, c, reduction))
            want = f(x.double(), w.double(), labels, c.double(), reduction)
            torch.testing.assert_close(one(x, w, labels, c).double(), want, rtol=2.0**-7, atol=0)

    def test_the_square_of_logsumexp(self):
        x, w = draw(333, 136), draw(3001, 136, scale=0.1)
        labels = torch.randint(3001, (333,), device="cuda")

        def f(x, w, t):
            y = F.linear(x, w).float() if x.dtype == torch.bfloat16 else F.linear(x, w)
            return F.cross_entropy(y, t, reduction="none") + 0.1 * torch.logsumexp(y, -1).square()

        check(f, x, w, labels)

    @pytest.mark.alone_on_gpu
    def test_the_logits_are_not_stored(self):
        x, w = draw(2048, 512), draw(32_000, 512, scale=0.1)
        labels = torch.randint(32_000, (2048,), device="cuda")
        f = forced(lambda x, w, t: F.cross_entropy(F.linear(x, w), t, reduction="none"))
        f(x, w, labels)
        kf.empty_cache()
        torch.cuda.synchronize()
        before, _ = torch.cuda.mem_get_info()
        f(x, w, labels)
        torch.cuda.synchronize()
        after, _ = torch.cuda.mem_get_info()
        assert before - after < 2048 * 32_000 * 2 / 20

    def test_infinities(self):
        x, w = draw(130, 72), draw(700, 72)
        x[3, 5], x[7] = float("nan"), 0.0
        labels = torch.randint(700, (130,), device="cuda")
        check(lambda x, w, t: F.cross_entropy(F.linear(x, w), t, reduction="none"), x, w, labels)


def whole(*shape):
    """Small whole numbers: sums of products are exact, and often equal."""
    return torch.randint(-2, 3, shape, device="cuda").bfloat16()


class TestPositions:
    @pytest.mark.parametrize("shape", [*SHAPES, (333, 136, 30_011)])
    def test_first_of_equal_extremes(self, shape):
        m, k, n = shape
        x, w, b = whole(m, k), whole(n, k), whole(n)
        for f in (lambda x, w, b: F.linear(x, w, b).argmax(-1), lambda x, w, b: F.linear(x, w, b).argmin(-1),
                  lambda x, w, b: torch.relu(F.linear(x, w, b)).argmax(0),
                  lambda x, w, b: F.linear(x, w, b).max(-1).indices):  # fmt: skip
            self.check(f, x, w, b)

    def check(self, f, x, w, b):
        fused = forced(f)
        assert [g.executor for g in fused.plan(x, w, b).groups] == ["tensor_cores"]
        got = fused(x, w, b)
        with torch.no_grad():
            want = f(x.cpu().double(), w.cpu().double(), b.cpu().double())  # whose first of equal ones is the first
        assert torch.equal(got.cpu(), want)
        assert torch.equal(got, fused(x, w, b))

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_what_is_not_finite(self, value):
        x, w, b = whole(130, 72), whole(700, 72), whole(700)
        b[[40, 300]] = value
        self.check(lambda x, w, b: F.linear(x, w, b).argmax(-1), x, w, b)
        b[:] = value
        self.check(lambda x, w, b: F.linear(x, w, b).argmax(-1), x, w, b)
        self.check(lambda x, w, b: F.linear(x, w, b).argmin(-1), x, w, b)

    def test_beside_the_loss(self):
        x, w = whole(300, 136), whole(3001, 136)
        labels = torch.randint(3001, (300,), device="cuda")

        def f(x, w, t):
            y = F.linear(x, w)
            return F.cross_entropy(y, t, reduction="none"), y.argmax(-1), y.amax(-1)

        fused = forced(f)
        assert [g.executor for g in fused.plan(x, w, labels).groups] == ["tensor_cores"]
        loss, place, largest = fused(x, w, labels)
        want = f(x.cpu().double(), w.cpu().double(), labels.cpu())
        torch.testing.assert_close(loss.cpu().double(), want[0], rtol=2.0**-7, atol=1e-2)
        assert torch.equal(place.cpu(), want[1])
        assert torch.equal(largest.cpu().double(), want[2].bfloat16().double())

    def test_a_large_vocabulary(self):
        x, w = whole(64, 64), whole(128_256, 64)
        self.check(lambda x, w, b: F.linear(x, w).argmax(-1), x, w, x)


class TestMoments:
    @pytest.mark.parametrize("shape", [s for s in SHAPES if s[0] > 1])
    def test_variances(self, shape):
        m, k, n = shape
        x, w, b = draw(m, k), draw(n, k, scale=k**-0.5), draw(n)
        check(lambda x, w, b: F.linear(x, w, b).var(-1), x, w, b)
        check(lambda x, w, b: F.linear(x, w, b).var(0, correction=0), x, w, b)

    def test_around_a_large_mean(self):
        x, w = draw(333, 136), draw(30_011, 136, scale=0.1)

        def f(x, w):
            y = F.linear(x, w)
            return torch.var_mean((y if y.dtype == torch.float64 else y.float()) + 1000.0, -1)

        check(f, x, w)


class TestReduced:
    @pytest.mark.parametrize(
        "shape", [(7, 300, 136, 1001), (6, 512, 768, 515), (3, 96, 776, 700), (2, 5, 8, 3), (1, 1, 64, 9)]
    )
    def test_the_splade_head(self, shape):
        b, s, k, v = shape
        h, w, bias = draw(b, s, k), draw(v, k, scale=k**-0.5), draw(v)
        check(lambda h, w, b: torch.log1p(torch.relu(F.linear(h, w, b))).amax(1), h, w, bias)

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_along_columns(self, shape, dtype):
        m, k, n = shape
        x, w = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, scale=k**-0.5)
        check(lambda x, w: (x @ w.T).amax(-1), x, w, dtype=dtype)
        check(lambda x, w: (x @ w.T).amin(-1), x, w, dtype=dtype)
        check(lambda x, w: (x @ w.T).square().float().sum(-1), x, w, dtype=dtype)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_along_rows(self, shape):
        m, k, n = shape
        check(lambda x, w: (x @ w.T).amax(0), draw(m, k), draw(n, k, scale=k**-0.5))
        check(lambda x, w: torch.relu(x @ w).amax(0), draw(m, k), draw(k, n + -n % 8, scale=k**-0.5))

    def test_many_columns_are_walked_in_parts(self):
        x, w = draw(333, 136), draw(30011, 136, scale=0.1)
        fused = forced(lambda x, w: (x @ w.T).amax(-1))
        assert "kParts = true" in fused.source(x, w)
        check(lambda x, w: (x @ w.T).amax(-1), x, w)
        for _ in range(20):  # counters are zero again after each launch
            assert torch.equal(fused(x, w), (x @ w.T).amax(-1))

    def test_nan_is_kept(self):
        x, w = draw(130, 72), draw(700, 72)
        x[3, 5] = float("nan")
        check(lambda x, w: (x @ w.T).amax(-1), x, w)
        check(lambda x, w: torch.relu(x @ w.T).amax(0), x, w)


def test_arrays_that_take_turns():
    """What is kept of their addresses from one launch to the next is that of each."""
    f = forced(lambda x, w, b, r: F.gelu(x @ w + b) + r)
    sets = [(draw(300, 72), draw(72, 264), draw(264), draw(300, 264)) for _ in range(5)]
    want = [f(*arrays).clone() for arrays in sets]
    for order in ((0, 1, 0, 1, 2, 0, 1, 4, 3, 2, 1), range(4, -1, -1)):
        for i in order:
            assert torch.equal(f(*sets[i]), want[i])
            x, w, b, r = (*sets[i][:3], sets[i - 1][3])
            exact = F.gelu(x.double() @ w.double() + b) + r
            assert (f(x, w, b, r) - exact).norm() < 0.01 * exact.norm()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [(i % 5, pool.submit(f, *sets[i % 5])) for i in range(100)]
        assert all(torch.equal(job.result(), want[i]) for i, job in jobs)


class TestCalls:
    def test_threads_and_streams(self):
        f = forced(lambda x, w, b: gelu(F.linear(x, w, b)))
        work = [(draw(257, 136), draw(520, 136, scale=0.1), draw(520)) for _ in range(8)]
        want = [f(*w) for w in work]

        def run(w):
            with torch.cuda.stream(torch.cuda.Stream()):
                y = f(*w)
                torch.cuda.current_stream().synchronize()
            return y

        torch.cuda.synchronize()
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for got, wanted in zip(pool.map(run, work * 5), want * 5, strict=True):
                assert torch.equal(got, wanted)

    def test_in_a_graph(self):
        f = forced(lambda x, w: torch.relu(x @ w.T))
        x, w = draw(257, 136), draw(520, 136, scale=0.1)
        y = torch.empty(257, 520, device="cuda", dtype=torch.bfloat16)
        f(x, w, out=y)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            f(x, w, out=y)
        x.normal_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, f(x, w))
