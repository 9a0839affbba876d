"""Elements at positions that are data: read where they are used, in the kernel that uses them."""

import itertools

import numpy as np
import pytest

import kfusion as kf
from sweeps import sweep

torch = pytest.importorskip("torch")
F = torch.nn.functional


def table(rng, shape):
    return rng.integers(-9, 9, shape).astype(np.float32)


# ---- values


POSITIONS = {
    "some": np.array([3, 0, 4]),
    "from the end": np.array([-1, -5, 2]),
    "repeated": np.array([1, 1, 1, 1]),
    "of any shape": np.array([[0, 4, -2], [2, 2, 1]]),
    "one": np.array(2),
    "none": np.zeros((0,), int),
    "strided": np.arange(10)[::-2] // 2,
    "int32": np.array([4, -5], np.int32),
}


def test_positions(rng):
    def check(positions, axis):
        i, x = POSITIONS[positions], table(rng, (5, 6, 5))
        f = kf.fuse(lambda x, i: kf.take(x, i, axis) * 2)
        for a in (x, x[::-1, :, ::-1].swapaxes(0, 2)):
            np.testing.assert_array_equal(f(a, i), np.take(a, i, axis) * 2)
            np.testing.assert_array_equal(f.unfused(a, i), np.take(a, i, axis) * 2)

    sweep(check, itertools.product(POSITIONS, (0, 1, 2)))


# Functions of a table and of positions of its rows, each in one kernel.
ONE_KERNEL = {
    "rows that are reduced": (lambda x, i: kf.layernorm(x[i]), lambda x, i: normal(x[i])),
    "a position for each element": (
        lambda x, i: kf.take_along_axis(x, i[:, None] + kf.minimum(kf.iota((1, x.shape[1])), 1), 0).max(-1),
        lambda x, i: x[i[:, None] + np.minimum(np.arange(x.shape[1]), 1), np.arange(x.shape[1])].max(-1),
    ),
    "positions that the kernel computes": (
        lambda x, i: kf.take(x, kf.minimum(i, 7) + kf.where(kf.iota((30,), 0) > 14, 1, 0), 0) * 2,
        lambda x, i: x[np.minimum(i, 7) + (np.arange(30) > 14)] * 2,
    ),
    "all else broadcasts": (
        lambda x, i: kf.take_along_axis(x, i[None, :5], 0),
        lambda x, i: x[i[:5], np.arange(5)][None],
    ),
}


def normal(x):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5)


def test_one_kernel(rng):
    def check(name, cols):
        (f, want), x, i = ONE_KERNEL[name], rng.standard_normal((9, cols)), rng.integers(0, 7, 30)
        x = x[:, :5] if "broadcasts" in name else x
        fused = kf.fuse(lambda x, i: f(x, i))
        assert len(fused.plan(x, i).groups) == 1
        np.testing.assert_allclose(fused(x, i), want(x, i), rtol=1e-12, atol=1e-12)

    sweep(check, itertools.product(ONE_KERNEL, (40, 1000, 5000)))


def test_positions_that_are_slow_to_compute(rng):
    """A kernel of their own stores them: one for both would divide for each of 40 columns."""
    x, i = rng.standard_normal((9, 40)), rng.integers(0, 100, 30)
    f = kf.fuse(lambda x, i: kf.take(x, kf.minimum(i % 9, 7) + kf.iota((30,), 0) % 2, 0) * 2)
    assert len(f.plan(x, i).groups) == 2
    np.testing.assert_array_equal(f(x, i), x[np.minimum(i % 9, 7) + np.arange(30) % 2] * 2)


@pytest.mark.parametrize("columns", [5, 40, 100_000])
def test_one_position_that_the_kernel_computes(columns, rng):
    """A row is looked up once its position is computed: what other kernels left in its place is no index."""
    x, i = rng.standard_normal((3, columns)), np.array([-1])
    leaves = kf.fuse(lambda y: (kf.softmax(y * y, -1), (y * y).sum(0), (y * y + y).sum(1)))
    for index in (i, i[0:1].reshape(()), i.astype(np.int32)):
        for f, want in (
            (lambda x, i: x[-i].sum(), x[1].sum()),
            (lambda x, i: x[i + 1].max(), x[0].max()),
            (lambda x, i: kf.softmax(x[i % 3 - 1].reshape(-1), -1).sum(), 1.0),
            (lambda x, i: (x[i * 2] * x).sum(), (x[-2] * x).sum()),
        ):
            fused = kf.fuse(f)
            for _ in range(3):
                leaves(np.full((40, 70), 1e150)), leaves(np.full((7, 300), 1e18, np.float32))
                np.testing.assert_allclose(fused(x, index), want, rtol=1e-9, atol=1e-9)


def test_tables_of_numbers_that_no_array_holds():
    i = np.array([[2, -1], [0, 1]])
    f = kf.fuse(lambda i: (kf.take(kf.iota((3, 5), 1) + kf.iota((3, 5), 0), i, 0), kf.take(kf.iota((4,), 0), i, 0)))
    both = np.add.outer(np.arange(3), np.arange(5))[i], np.arange(4)[i]
    for got, want in zip(f(i), both, strict=True):
        np.testing.assert_array_equal(got, want)


SEVERAL = {
    "rows and columns": lambda x, i, j: x[i, j],
    "behind a slice": lambda x, i, j: x[:, i[:1], j[:1, None]],
    "axes between": lambda x, i, j: x[i, :, j],
    "a new axis between": lambda x, i, j: x[i, None, j],
    "a slice between, and behind": lambda x, i, j: x[None, 1:, i[:1], 1:3, None, j[:1]],
    "three": lambda x, i, j: x[i, j[:, None], :, i],
    "an integer beside": lambda x, i, j: x[1, i],
    "an integer apart": lambda x, i, j: x[1, :, i],
    "nothing between": lambda x, i, j: x[:, i[:1], ..., 0, j[:1]],
    "without axes": lambda x, i, j: x[i[0], :, j[0]],
    "with and without axes": lambda x, i, j: x[i[0], :, j],
    "not traced": lambda x, i, j: x[I, :, i],
}
I = np.array([1, -2, 0])  # noqa: E741


def test_several_index_arrays(rng):
    """NumPy and torch put the axes of arrays that are apart in front, but differ in what is apart."""
    x, i, j = table(rng, (4, 5, 6, 7)), rng.integers(-4, 4, 3), rng.integers(-5, 5, 3).astype(np.int32)

    def check(name):
        index = SEVERAL[name]
        f = kf.fuse(lambda x, i, j: index(x, i, j) * 2)
        for a in (x, x.swapaxes(0, 1).copy().swapaxes(0, 1)):
            want = index(a, i, j) * 2
            for got in (f(a, i, j), f.unfused(a, i, j)):
                assert got.shape == want.shape
                np.testing.assert_array_equal(got, want)
        if name != "not traced":
            given = torch.from_numpy(x), torch.from_numpy(i), torch.from_numpy(j)
            torch.testing.assert_close(f(*given), f.__wrapped__(*given), rtol=0, atol=0)

    sweep(check, [(name,) for name in SEVERAL])


def test_several_index_arrays_are_in_one_kernel():
    plan = kf.plan(lambda x, i, j: x[i, j] * 2, kf.spec((9, 9, 64)), kf.spec((5,), "int64"), kf.spec((5,), "int64"))
    assert plan.fused.launches == 1


def test_the_table_as_out(rng):
    """Other elements are read after it is written to: a copy has to be made."""
    x = rng.standard_normal((64, 40)).astype(np.float32)
    i, want = np.arange(64)[::-1].copy(), x[::-1] + 1
    f = kf.fuse(lambda x, i: kf.take(x, i, 0) + 1)
    assert f(x, i, out=x) is x
    np.testing.assert_array_equal(x, want)


def test_rows_alone_are_copied(threads, some, rng):
    """Tables and indices as they lie, rows of any length; the axes before and behind the one that is taken of."""
    take = {axis: kf.fuse(lambda x, i, axis=axis: kf.take(x, i, axis)) for axis in (0, 1)}
    batch, columns = table(rng, (3, 7, 40)), table(rng, (7, 80))
    tables = [(0, table(rng, (7, n))) for n in (0, 1, 3, 64, 4097)] + [(0, table(rng, (14, 40))[::-2])]
    tables += [(0, columns[:, 1::2]), (0, columns[:, ::-1]), (0, table(rng, (7, 3, 5))), (0, table(rng, (40, 7)).T)]
    tables += [(0, np.broadcast_to(columns[:, :1], (7, 40))), (1, batch), (1, batch[::-1]), (1, batch.swapaxes(0, 2))]

    def check(k, index, n):
        threads(n)
        (axis, x), i = tables[k], rng.integers(-7, 7, (6, 8)).astype(index)
        for j in (i, i.T, i[::2, ::-3], i[:, :0], np.broadcast_to(i[0], (3, 8))):
            np.testing.assert_array_equal(take[axis](x, j), np.take(x, j, axis))

    sweep(check, some(itertools.product(range(len(tables)), ("int32", "int64"), (1, 3)), 28))
    x, i, out = tables[3][1], rng.integers(-7, 7, (2, 3)), np.zeros((2, 3, 128), np.float32)[:, :, :64]
    take[0](x, i, out=out)
    np.testing.assert_array_equal(out, x[i])
    for bad in (7, -8):
        with pytest.raises(IndexError, match=f"take: index {bad} is out of bounds for axis 0 with size 7"):
            take[0](x, np.array([0, bad]))
    with pytest.raises(IndexError, match=r"embedding: index -1 is out of bounds .* must not be negative"):
        kf.fuse(lambda x, i: F.embedding(i, x))(torch.from_numpy(x), torch.tensor([[-1]]))


# ---- positions that there are not


def test_out_of_bounds(rng):
    x, (i, j) = rng.standard_normal((5, 5, 40)), np.zeros((2, 2), int)

    def check(f, message, *arrays):
        for g in (kf.fuse(f), kf.fuse(f).unfused):
            with pytest.raises(IndexError, match=message):
                g(*arrays)

    def rows():
        for bad in (5, -6, 2**40, -(2**63)):
            for axis, index in ((0, np.array([0, bad])), (1, np.array([[bad]])), (0, np.array(bad))):
                message = f"take: index {bad} is out of bounds for axis {axis} with size 5"
                yield lambda x, i, axis=axis: kf.take(x, i, axis) + 1, message, x, index
        for bad in ((4, 0), (0, 5), (-5, 0), (1, -6), (2**62, 1), (1, -(2**63))):  # each in its own axis
            message = r"x\[i, j\]: index 20 is out of bounds for axis 0 with size 20"
            yield lambda x, i, j: x[i, j] + 1, message, x[:4, :, 0], *np.array([(0, 0), bad]).T
        message = "could not be broadcast together with shapes \\(2,\\) \\(3,\\)"
        yield lambda x, i, j: x[i, j] + 1, message, x, i, np.arange(3)
        yield lambda x, i, j: x[i, j] + 1, "must be of integers, got float64", x, i, j * 1.0

    sweep(check, rows())


TORCHS = {
    "embedding": lambda x, i: F.embedding(i, x) + 1,
    "index_select": lambda x, i: torch.index_select(x, 0, i) + 1,
    "gather": lambda x, i: torch.gather(x, 0, i[:, None]) + 1,
}


def test_torch_counts_from_the_start_only():
    def check(name):
        f, x = kf.fuse(TORCHS[name]), torch.randn(5, 3)
        torch.testing.assert_close(f(x, torch.tensor([4, 0])), TORCHS[name](x, torch.tensor([4, 0])), rtol=0, atol=0)
        for bad in (-1, 5):
            with pytest.raises(IndexError, match=f"{name}: index {bad} is out of bounds for axis 0 with size 5"):
                f(x, torch.tensor([2, bad]))

    sweep(check, [(name,) for name in TORCHS])


def test_nothing_is_wanted_of_an_empty_axis():
    with pytest.raises(ValueError, match="empty axis"):
        kf.take(np.zeros((0, 3)), np.array([0]), 0)
    with pytest.raises(ValueError, match="empty axis"):
        kf.take_along_axis(np.zeros((0, 3)), np.array([[0]]), 0)
    assert kf.take(np.zeros((0, 3)), np.zeros((2, 0), int), 0).shape == (2, 0, 3)


# ---- plans


def bert(ids, words, places, weight, bias):
    return F.layer_norm(F.embedding(ids, words) + places, (words.shape[1],), weight, bias)


BERT = [kf.spec((8, 512), "int64", like="torch"), *(kf.spec(s, like="torch") for s in ((30522, 768), (512, 768)))]
BERT += [kf.spec((768,), like="torch")] * 2


@pytest.mark.parametrize("device", ["cpu", "H200"])
def test_embeddings_are_one_kernel(device):
    (kernel,) = kf.plan(bert, *BERT, device=device).groups
    assert kernel.kind == "rows"
    (words,) = [load for load in kernel.loads if load.gathered]
    read = 8 * 512 * 8 + (8 * 512 + 512 + 2) * 768 * 4  # indices, as many rows of words as there are, places, weights
    assert (words.value, kernel.compulsory.read) == ("words", read)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_by_class_read_logits_once(smoothing):
    def loss(x, t, w):
        return kf.cross_entropy(x, t, weight=w, ignore_index=-100, label_smoothing=smoothing, reduction="none")

    x, t = kf.spec((4096, 32000)), kf.spec((4096,), "int64")
    (kernel,) = kf.plan(loss, x, t, kf.spec((32000,)), device="H200").groups
    assert kernel.compulsory.read == (4096 + 1) * 32000 * 4 - (0 if smoothing else (32000 - 4096) * 4) + 4096 * 8
    (after,) = kf.plan(lambda x, t: F.nll_loss(F.log_softmax(x, -1), t, reduction="none"),
                       kf.spec((4096, 32000), like="torch"), kf.spec((4096,), "int64", like="torch"),
                       device="H200").groups  # fmt: skip
    assert after.compulsory.total == 4096 * 32000 * 4 + 4096 * (8 + 4)


def test_what_a_kernel_makes_is_stored_before_it_is_taken_from():
    x, i = kf.spec((64, 32)), kf.spec((9,), "int64")
    p = kf.plan(lambda x, i: kf.take(kf.softmax(x), i, 0) + 1, x, i, device="H200")
    assert [g.kind for g in p.groups] == ["rows", "pointwise"]
    for refusal in p.refusals:  # of what softmax divides by, too: its quotients are computed where they are read
        assert refusal.reason == kf.Reason.GATHER
        assert "all of them have to be stored before the first is read" in refusal.sentence
    assert len(kf.plan(lambda x, i: kf.take(kf.exp(x) * x, i, 0) + 1, x, i, device="H200").groups) == 1


def test_elementwise_work_is_done_at_the_positions_alone(rng):
    x, y, i = rng.standard_normal((50, 40)), rng.standard_normal((50, 1)), rng.integers(-50, 50, (4, 3))
    f = kf.fuse(lambda x, y, i: kf.take(kf.exp(x) * y + kf.iota((40,), 0), i, 0))
    np.testing.assert_allclose(f(x, y, i), (np.exp(x) * y + np.arange(40))[i], rtol=1e-14, atol=1e-13)
    (kernel,) = f.plan(x, y, i, device="H200").groups
    assert kernel.compulsory.read == 12 * (40 + 1 + 1) * 8
    j = rng.integers(0, 50, (2, 40))
    g = kf.fuse(lambda x, y, j: kf.take_along_axis((x * y).T, j.T, 1))
    np.testing.assert_array_equal(g(x, y, j), np.take_along_axis((x * y).T, j.T, 1))
    with pytest.raises(IndexError, match="index 50 is out of bounds"):
        f(x, y, i * 0 + 50)
    several = np.arange(64) % 50
    several[[3, 20, 40]] = 77, 60, -90
    with pytest.raises(IndexError, match="index 77 is out of bounds"):  # the first one
        kf.fuse(lambda x, i: kf.take(x, i, 0) * 2)(np.arange(50, dtype=np.float32), several)


# ---- CUDA


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu(dtype):
    words, places = (
        torch.randn(1000, 768, device="cuda", dtype=dtype),
        torch.randn(128, 768, device="cuda", dtype=dtype),
    )
    weight, bias = torch.randn(2, 768, device="cuda", dtype=dtype)
    ids = torch.randint(0, 1000, (4, 128), device="cuda")
    f = kf.fuse(bert)
    assert len(f.plan(ids, words, places, weight, bias).groups) == 1
    want = bert(ids, *(v.double() for v in (words, places, weight, bias)))
    torch.testing.assert_close(f(ids, words, places, weight, bias).double(), want, rtol=2e-2, atol=2e-2)
    x, target = torch.randn(300, 5000, device="cuda"), torch.randint(0, 5000, (300,), device="cuda")
    target[7] = -100
    loss = kf.fuse(lambda x, t: kf.cross_entropy(x, t, ignore_index=-100))
    torch.testing.assert_close(loss(x, target), F.cross_entropy(x, target), rtol=1e-5, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("classes", [32_000, 50_257, 70_000, 128_257, 262_144])
def test_losses_of_long_rows_and_gradients_on_a_gpu(classes, dtype):
    x, t = torch.randn(140, classes, device="cuda", dtype=dtype), torch.randint(classes, (140,), device="cuda")
    x[1, 5], x[2, 7], x[3], x[4, 9], x[7] = torch.inf, torch.nan, -torch.inf, -torch.inf, 3
    t[5], t[8], t[9] = -100, classes - 1, 0
    f = kf.value_and_grad(lambda x, t: kf.cross_entropy(x, t, ignore_index=-100, reduction="sum"))
    _, got = f(x, t)
    leaf = x.double().requires_grad_()
    F.cross_entropy(leaf, t, reduction="sum").backward()
    few = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 3e-6}[dtype]
    least = 2**-24 if dtype == torch.float16 else 1e-9  # float16 has no steps between smaller ones
    torch.testing.assert_close(got.double(), leaf.grad, rtol=few, atol=least, equal_nan=True)


@pytest.mark.cuda
def test_nothing_is_read_outside_on_a_gpu():
    x, i = torch.ones(5, 64, device="cuda"), torch.tensor([4, 5, -1, -6, 2**40], device="cuda")
    taken, embedded = kf.fuse(lambda x, i: x[i] + 1)(x, i), kf.fuse(lambda x, i: F.embedding(i, x) + 1)(x, i)
    assert taken[[0, 2]].eq(2).all()
    assert taken[[1, 3, 4]].isnan().all()
    assert embedded[0].eq(2).all()
    assert embedded[1:].isnan().all()
    pairs = kf.fuse(lambda x, i: x[i, i] + 1)(x, i)
    assert pairs[[0, 2]].eq(2).all()
    assert pairs[[1, 3, 4]].isnan().all()
    whole = kf.fuse(lambda x, i: x[i] + 1)(x.int(), i)
    assert whole.tolist() == [[v] * 64 for v in (2, 1, 2, 1, 1)]
