"""Products and what follows them on a GPU's tensor cores: results against float64, for every shape and layout."""

from __future__ import annotations

import concurrent.futures

import numpy as np
import pytest

import kfusion as kf
from kinds import HAVE_GPU
from sweeps import sweep

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


def check(f, *arguments, dtype="bfloat16", kernels=1, by_time=False):
    """`f` on the arguments in one kernel, beside what it gives of float64."""
    fused = forced(f, by_time)
    plan = fused.plan(*arguments)
    assert [g.executor for g in plan.groups].count("tensor_cores") >= 1, plan.groups
    assert len(plan.groups) == kernels, plan.groups
    got, again = fused(*arguments), fused(*arguments)
    want = f(*(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments))
    for one, other, wanted in zip(*map(as_tuple, (got, again, want)), strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        assert one.shape == wanted.shape
        assert torch.equal(one.isnan(), wanted.isnan())
        finite = wanted.isfinite() & (wanted.abs() < 6e4)
        error, size = (one.double() - wanted)[finite], wanted[finite]
        assert error.norm() <= 1.5 * ROUNDING[dtype] * size.norm().clamp(min=1e-30), error.norm()
        assert (error.abs() <= 4 * ROUNDING[dtype] * size.abs() + 2e-2).all()


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def shifted(*shape):
    """At an address between multiples of 16 bytes."""
    return draw(int(np.prod(shape)) + 1)[1:].view(*shape)


def weight(*shape):
    return draw(*shape, scale=0.1)


def rand(*shape):
    return torch.randn(*shape, device="cuda")


def beside(x, *weights):
    return tuple(F.linear(x, one) for one in weights)


def swiglu(x, g, u):
    return F.silu(F.linear(x, g)) * F.linear(x, u)


# Functions of x [m, k], w [n, k], u [n, k], a bias, a matrix of the result's shape and a vector of rows.
OF_SHAPES = {
    "bias and gelu": lambda x, w, u, b, r, s: gelu(F.linear(x, w, b)),
    "residual": lambda x, w, u, b, r, s: F.linear(x, w, b) + r,
    "several results": lambda x, w, u, b, r, s: (torch.relu(x @ w.T), (x @ w.T) * s[:, None], (x @ w.T).float()),
    "gates": lambda x, w, u, b, r, s: swiglu(x, w, u),
    "largest of rows": lambda x, w, u, b, r, s: (x @ w.T).amax(-1),
    "least of rows": lambda x, w, u, b, r, s: (x @ w.T).amin(-1),
    "squares of rows": lambda x, w, u, b, r, s: (x @ w.T).square().float().sum(-1),
    "largest of columns": lambda x, w, u, b, r, s: (x @ w.T).amax(0),
    "variance of rows": lambda x, w, u, b, r, s: F.linear(x, w, b).var(-1, correction=0),
    "variance of columns": lambda x, w, u, b, r, s: F.linear(x, w, b).var(0, correction=0),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*SHAPES, (333, 136, 96), (300, 72, 1000)])
def test_every_shape(shape, dtype):
    m, k, n = shape
    scale = k**-0.5
    x, b, r, s = (draw(*d, dtype=dtype) for d in ((m, k), (n,), (m, n), (m,)))
    w, u = (draw(n, k, dtype=dtype, scale=scale) for _ in range(2))
    names = [(name,) for name in OF_SHAPES if m > 1 or "variance" not in name]
    sweep(lambda name: check(OF_SHAPES[name], x, w, u, b, r, s, dtype=dtype), names)
    w = draw(k, n, dtype=dtype, scale=scale)  # in the other order
    check(lambda x, w: torch.relu(x @ w) * 0.5, x, w, dtype=dtype)
    check(lambda x, w: torch.relu(x @ w).amax(0), x, draw(k, n + -n % 8, dtype=dtype, scale=scale), dtype=dtype)
    check(lambda x, w: torch.relu(x.T @ w), draw(k, m + -m % 8, dtype=dtype), w, dtype=dtype)
    statistics = (rand(n), rand(n).abs() + 0.5, rand(n), rand(n))
    batch_norm = lambda x, w, *s: torch.relu(F.batch_norm(x @ w.T, *s))  # noqa: E731
    check(batch_norm, x, draw(n, k, dtype=dtype, scale=scale), *statistics, dtype=dtype)


def positions(x, w):
    rows, cols = torch.arange(130, device="cuda"), torch.arange(264, device="cuda")
    return torch.where(cols < rows[:, None], x @ w.T, 0.0)


def more_than_shared_memory_takes(x, w, *vectors):
    y = (x @ w.T).float()
    for v in vectors:
        y = torch.tanh(y + v)
    return y


def several_epilogues(x, q, k, v, a, r):
    y = F.linear(x, q)
    return y, y.float() * 2, gelu(F.linear(x, k, a)) * r, F.linear(x, v)


def thirds(x, w, b):
    q, k, v = F.linear(x, w, b).split(64, -1)
    return torch.relu(q), k * 2.0, v + 1.0


def wide(y):
    return y if y.dtype == torch.float64 else y.float()


def losses(x, w, t):
    y = wide(F.linear(x, w))
    return F.cross_entropy(y, t, reduction="none") + 0.1 * torch.logsumexp(y, -1).square()


def splade(h, w, b):
    return torch.log1p(torch.relu(F.linear(h, w, b))).amax(1)


def test_operands():
    """What the epilogue reads and stores in other ways than by boxes; batches; what is computed of columns alone."""
    x, w, mask = draw(130, 72), weight(264, 72), rand(130, 264) > 0.5
    nans, qkv = draw(130, 72), [weight(c, 72) for c in (520, 264, 72)]
    nans[3, 5], nans[7, 1] = float("nan"), float("inf")
    odd = [weight(c, 72) for c in (7, 264, 33, 1)]
    integers = torch.randint(0, 5, (264,), device="cuda")
    biased = lambda x, w, b: gelu(F.linear(x, w, b))  # noqa: E731
    sweep(check, [
        *((biased, x, weight(n, 72), draw(n)) for n in (1, 7, 255, 333)),  # odd columns are stored one by one
        (lambda x, w, b, r: ((x @ w.T).float() + b) * r, x, w, rand(264), rand(130, 264)),
        (lambda x, w, m, s: torch.where(m, (x @ w.T) * s, -1.0), x, w, mask, 0.75),
        (lambda x, w, m: (x @ w.T).masked_fill(m, 0.0), x, w, mask[:1]),
        (lambda x, w, a, b, c, r, s: ((F.linear(x, w) + a) * b - c) * r + s, x, w, *(draw(264) for _ in range(3)),
         draw(130, 264), draw(130, 264)),
        (positions, x, w),
        (lambda x, w: torch.relu(x @ w.T), draw(200, 640)[20:150, 64:136], weight(264, 160)[:, 8:80]),
        (lambda x, w, r: x @ w.T + r, x, w, draw(130, 600)[:, 8:272]),
        (lambda x, w, b, r: F.linear(x, w, b) + r, shifted(130, 72), shifted(264, 72), shifted(264), shifted(130, 264)),
        (lambda x, w: torch.relu(x @ w.T), nans, w),
        *(row for b, m, k, n in ((3, 130, 72, 264), (16, 8, 64, 40), (2, 300, 8, 24)) for row in (
            (lambda x, w: torch.relu(x @ w), draw(b, m, k), draw(b, k, n, scale=k**-0.5)),
            (lambda x, w, r: x @ w.transpose(1, 2) + r, draw(b, m, k), draw(b, n, k, scale=k**-0.5), draw(b, m, n)),
            (lambda x, w, r: x @ w.transpose(1, 2) + r, draw(b, m, k), draw(b, n, k, scale=k**-0.5), draw(m, n)),
        )),
        (biased, draw(3, 5, 40, 72), w, draw(264)),
        (lambda x, w, r: F.linear(x, w) * r, draw(3, 5, 40, 72), w, draw(3, 5, 40, 1)),
        (lambda x, w: torch.relu(x @ w), x, weight(3, 72, 264)),
        (lambda x, g, u, a, b: gelu(x @ g + a) * (x @ u + b), draw(257, 136), weight(136, 520), weight(136, 520),
         draw(520), draw(520)),
        (lambda x, w, a, b, r: ((x @ w.T).float() * a + b, ((x @ w.T).float() * a.exp() + r).to(x.dtype)),
         draw(1300, 72), w, rand(264), rand(264), draw(1300, 264)),
        (lambda x, v, w, a, b: F.silu((x @ v.T).float() * a) * ((x @ w.T).float() + b), draw(1300, 72),
         weight(1000, 72), weight(1000, 72), rand(1000), rand(1000)),
        *((lambda x, w, a: (x @ w).float() * a - a, draw(3, m, 72), weight(3, 72, 264), rand(3, 1, 264))
          for m in (16, 700)),
        (lambda x, q, k, v, a, b: ((x @ q.T).float() + a, x @ k.T, (x @ v.T).float() * b - 1), draw(700, 72), *qkv,
         rand(520), rand(72)),
        (lambda x, w, a, i: torch.where(i > 2, (x @ w.T).float() * a, i.float()), draw(300, 72), w, rand(528)[::2],
         integers),
        (more_than_shared_memory_takes, draw(300, 72), w, *(rand(264) for _ in range(9))),
        *((several_epilogues, draw(m, 136), *(weight(c, 136) for c in (520, 264, 72)), draw(264), draw(m, 1))
          for m in (16, 130, 1000)),
        (lambda x, q, k, v: (x @ q, x @ k, torch.relu(x @ v)), x, *(one.T.contiguous() for one in qkv)),
        (beside, x, *odd),
        (beside, x, *(weight(256, 72) for _ in range(4))),
        (lambda x, b, q, k, v: (F.linear(x, q, b), F.linear(x, k), F.linear(x, v)), shifted(130, 72), shifted(264),
         *(shifted(c, 72) for c in (264, 128, 128))),
        (losses, draw(333, 136), weight(3001, 136), torch.randint(3001, (333,), device="cuda")),
        (losses, nans, draw(700, 72), torch.randint(700, (130,), device="cuda")),
        (lambda x, w: torch.var_mean(wide(F.linear(x, w)) + 1000.0, -1), draw(333, 136), weight(30_011, 136)),
        *((splade, draw(b, s, k), draw(v, k, scale=k**-0.5), draw(v)) for b, s, k, v in
          ((7, 300, 136, 1001), (6, 512, 768, 515), (3, 96, 776, 700), (2, 5, 8, 3), (1, 1, 64, 9))),
    ])  # fmt: skip
    check(lambda x, w, y: torch.cat([torch.relu(x @ w.T), y], 1), x, w, draw(130, 64), kernels=2)
    x, w, b = draw(2, 65, 72), weight(3 * 64, 72), draw(3 * 64)
    one = forced(thirds)
    assert sum(g.ops.count("matmul") for g in one.plan(x, w, b).groups) == 1
    for got, want in zip(one(x, w, b), thirds(x.double(), w.double(), b.double()), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=2.0**-7, atol=2e-2)
    x = torch.linspace(-12, 12, 256 * 8, device="cuda").view(256, 8).bfloat16()  # gelu in the tails
    y, want = forced(lambda x, w: gelu(x @ w))(x, torch.eye(8, device="cuda").bfloat16()), gelu(x.double())
    assert ((y.double() - want).abs() <= 2.0**-8 * want.abs() + 1e-12).all()


def test_results_that_are_given():
    x, w, k = draw(130, 72), weight(264, 72), weight(128, 72)
    f = forced(lambda x, w: torch.relu(x @ w.T))
    pair = forced(lambda x, w, k: (F.linear(x, w), F.linear(x, k)))
    out = [torch.full((130, n), float("nan"), device="cuda", dtype=torch.bfloat16) for n in (264, 264, 128)]
    f(x, w, out=out[0])
    pair(x, w, k, out=tuple(out[1:]))
    assert all(torch.equal(got, want) for got, want in zip(out, (f(x, w), *pair(x, w, k)), strict=True))
    square = draw(72, 72)
    want = f(square, square)
    f(square, square, out=square)  # over what is read
    assert torch.equal(square, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 64, 264, 40), (7, 72, 128, 128), (130, 136, 520, 264), (300, 768, 768, 768),
                                   (1000, 1208, 1000, 264), (2100, 264, 2048, 512)])  # fmt: skip
def test_queries_keys_and_values(shape, dtype):
    m, k, n, few = shape
    x, columns = draw(m, k, dtype=dtype), (n, few, few)
    weights = [draw(c, k, dtype=dtype, scale=k**-0.5) for c in columns]
    biases = [draw(c, dtype=dtype) for c in columns]
    f = lambda x, q, k, v, a, b, c: (F.linear(x, q, a), F.linear(x, k, b), F.linear(x, v, c))  # noqa: E731
    check(f, x, *weights, *biases, dtype=dtype)
    f = lambda x, q, k, v: (F.linear(x, q), torch.relu(F.linear(x, k)), F.linear(x, v) * 0.5)  # noqa: E731
    check(f, x, *weights, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("depth", [8, 72, 1000, 4096])
@pytest.mark.parametrize("widths", [(24, 264, 520, 40), (1000, 776, 8, 8), (1376, 512, 512, 1376)])
def test_gradients_of_weights(depth, widths, dtype):
    """Products of one depth beside one another, with factors and rows of their own."""
    a, b, c, d = (draw(depth, n, dtype=dtype, scale=depth**-0.5) for n in widths)
    check(lambda a, b, c, d: (a.T @ b, c.T @ b, b.T @ d, d.T @ a), a, b, c, d, dtype=dtype, by_time=True)


def test_products_apart():
    def epilogues(a, b, c, d, bias, row):
        return torch.relu(a @ b.T), c @ d.T * row + bias, torch.tanh(b @ d.T).to(row.dtype) * 2

    sweep(lambda f, *arrays: check(f, *arrays, by_time=True), [
        (lambda a, b, c, d: (a @ b.T, c @ d.T), *(weight(n, 136) for n in (333, 130, 40, 264))),
        (epilogues, *(weight(n, 264) for n in (300, 136, 1000, 72)), draw(72), draw(1000, 1)),
        (lambda a, b, c: (a.T @ b, b.T @ c), shifted(128, 72), draw(128, 520), shifted(128, 72)),
    ])  # fmt: skip


class TestLosses:
    @pytest.mark.parametrize("shape", [(333, 136, 3001), (1300, 768, 5000), (1, 64, 130), (129, 8, 257)])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_cross_entropy(self, shape, smoothing, weighted):
        m, k, n = shape
        x, w = draw(m, k), draw(n, k, scale=k**-0.5)
        c = torch.rand(n, device="cuda").bfloat16()
        labels = torch.randint(n, (m,), device="cuda")
        labels[: m // 3] = torch.arange(m // 3, device="cuda") * 7 % n
        labels[1::5] = -100

        def f(x, w, t, c, reduction="none"):
            return F.cross_entropy(F.linear(x, w), t, weight=c if weighted else None, label_smoothing=smoothing,
                                   reduction=reduction)  # fmt: skip

        check(f, x, w, labels, c)
        for reduction in ("mean", "sum"):
            one = forced(lambda x, w, t, c, reduction=reduction: f(x, w, t, c, reduction))
            want = f(x.double(), w.double(), labels, c.double(), reduction)
            torch.testing.assert_close(one(x, w, labels, c).double(), want, rtol=2.0**-7, atol=0)


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

    def test_what_is_not_finite(self):
        most = lambda x, w, b: F.linear(x, w, b).argmax(-1)  # noqa: E731
        for value in (float("nan"), float("inf"), float("-inf")):
            x, w, b = whole(130, 72), whole(700, 72), whole(700)
            b[[40, 300]] = value
            self.check(most, x, w, b)
            b[:] = value
            self.check(most, x, w, b)
            self.check(lambda x, w, b: F.linear(x, w, b).argmin(-1), x, w, b)
        self.check(lambda x, w, b: F.linear(x, w).argmax(-1), whole(64, 64), whole(128_256, 64), b)


def test_many_columns_are_walked_in_parts():
    x, w = draw(333, 136), weight(30011, 136)
    largest = lambda x, w: (x @ w.T).amax(-1)  # noqa: E731
    fused = forced(largest)
    assert "kParts = true" in fused.source(x, w)
    check(largest, x, w)
    for _ in range(20):  # counters are zero again after each launch
        assert torch.equal(fused(x, w), (x @ w.T).amax(-1))
    x, w = draw(130, 72), draw(700, 72)
    x[3, 5] = float("nan")  # is kept
    check(largest, x, w)
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


def test_in_a_graph():
    f = forced(lambda x, w: torch.relu(x @ w.T))
    x, w, y = draw(257, 136), weight(520, 136), draw(257, 520)
    f(x, w, out=y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f(x, w, out=y)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, f(x, w))
