"""Functions that write into their arguments: what eager does, after all reads, and in place where kernels can."""

import itertools
import tracemalloc

import numpy as np
import pytest

import kfusion as kf
from sweeps import sweep

torch = pytest.importorskip("torch")

SHAPE = (5, 4)


def of(body, library=np):
    """A function of x and y."""
    scope = {"np": np, "torch": torch, "library": library, "NAMED": NAMED}
    exec(f"def f(x, y):\n    {body}\n", scope)
    return scope["f"]


NAMED = torch.zeros(3)
PLUS = "x += y; return x * 2"
PARTS = "x[1] = y[0]; x[-2:, 1:3] += y[:2, :2]; x[0, None, 2] = 7; return y + x, x"
SHIFTED = "x[1:] = x[:-1] * 1; y[...] = x; return y, x"
STORED_TWICE = "t = x + y; x[...] = t; y[...] = t; return t"
A_SUM = "x -= x.sum(0); y *= x.max()"
BOTH = [
    PLUS,
    PARTS,
    SHIFTED,
    STORED_TWICE,
    A_SUM,
    "x[...] = y[0]",
    "rows, turned = x[1:3], x.T; rows += y[:2]; turned[0] = 5; x[2:2] = 3; return rows * 2, turned, x",
    "x[::2] += 1; x[[0, 3]] = y[:2]; return x",
    "x[x < 0] = 3; x[y[:, 0] > 0] = y[0, 0]",
]
OF_NUMPY = ["np.add(x, y, out=x); np.copyto(x, y[0], where=y > 0); x.sort()", "x.fill(2)"]
OF_TORCH = [
    "torch.mul(x, y, out=x); x.lerp_(y, 0.25).clamp_(min=0).view(-1)[3:6].zero_(); return x.contiguous().neg_()",
    "x[1].copy_(y[1]).fill_(y[0, 0]); x.t()[2].add_(1, alpha=2); x.data -= y; y.detach().mul_(2); return x, y",
]
CASES = [(text, library) for text in BOTH for library in ("numpy", "torch")]
CASES += [(text, "numpy") for text in OF_NUMPY] + [(text, "torch") for text in OF_TORCH]


def arrays(library, rng, dtype=np.float32):
    made = [rng.integers(-8, 8, SHAPE).astype(dtype) for _ in range(2)]  # whose sums have no error
    return made if library == "numpy" else [torch.from_numpy(a) for a in made]


def copied(array):
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def assert_as_eager(function, given, layout=copied):
    """Two calls on the same arrays: results, arguments, and which results are arguments."""
    fused = kf.fuse(function)
    ours, theirs = [layout(a) for a in given], [layout(a) for a in given]
    for _ in range(2):
        got, want = fused(*ours), function(*theirs)
        for g, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            assert [a is g for a in ours] == [a is w for a in theirs]
            if w is not None:
                np.testing.assert_array_equal(np.asarray(g), np.asarray(w))
        for g, w in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(np.asarray(g), np.asarray(w))


def test_arguments_are_written_to(rng):
    sweep(lambda body, library: assert_as_eager(of(body), arrays(library, rng)), CASES)


LAYOUTS = [
    lambda a: np.asfortranarray(a),
    lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    lambda a: a[::-1].copy()[::-1],
]


def test_of_any_dtype_layout_and_shape(rng):
    for dtype in ("float16", "float64", "int32", "int64"):
        assert_as_eager(of(PARTS), arrays("numpy", rng, dtype))
        assert_as_eager(of(PLUS), arrays("torch", rng, dtype))
    rows = itertools.product([PLUS, PARTS, A_SUM, SHIFTED], LAYOUTS)
    sweep(lambda body, layout: assert_as_eager(of(body), arrays("numpy", rng), layout), rows)
    for shape in ((0,), (1,), (3, 0, 2), ()):
        assert_as_eager(of("x += y; x[...] = x * y"), [np.full(shape, 3.0), np.full(shape, 2.0)])


def test_an_optimizer_s_step_is_one_kernel(rng):
    def adamw(p, g, m, v, step, lr):
        p.mul_(1 - lr * 0.01)
        m.mul_(0.9).add_(g, alpha=1 - 0.9)
        v.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        denom = (v.sqrt() / (1 - 0.999**step) ** 0.5).add_(1e-8)
        p.addcdiv_(m, denom, value=-lr / (1 - 0.9**step))

    ours = [torch.from_numpy(rng.standard_normal(1000)).abs() for _ in range(4)]
    theirs = [t.clone() for t in ours]
    fused = kf.fuse(adamw)
    for step, lr in ((1, 1e-2), (2, 1e-3)):
        fused(*ours, step, lr)
        adamw(*theirs, step, lr)
    for got, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=0)
    plan = fused.plan(*ours, 3, 1e-3)
    (kernel,) = plan.groups
    assert (kernel.issued.read, kernel.issued.written) == (4 * 8000, 3 * 8000)
    assert plan.savings["fused_bytes"] == 7 * 8000
    assert {s.value for s in kernel.stores} == {"p (written)", "m (written)", "v (written)"}
    assert fused._cached() == 1


def test_only_the_part_is_written():
    def f(cache, new):
        cache[:, 2:3] = new

    cache, new = torch.zeros(4, 100), torch.ones(4, 1)
    assert kf.fuse(f).plan(cache, new).fused.issued.written == 4 * 4
    assert_as_eager(f, [cache, new])


WHOLE = [
    PLUS,
    STORED_TWICE,
    "old = x * 1; x[...] = y; y[...] = old",
    "old = x * 3 + y; x += y; y[...] = old - x; return old * x",
    "x *= x; y += x * y; x -= y",
]


def test_whole_tiles_in_place(rng):
    def check(body, dtype):
        x, f = [rng.integers(-4, 4, 5003).astype(dtype) for _ in range(2)], of(body)
        assert_as_eager(f, x)
        assert_as_eager(f, [a[::2] for a in x], lambda a: np.repeat(a, 2)[::2])
        assert_as_eager(f, [a[3:] for a in x], lambda a: np.concatenate((a[:3], a))[3:])

    sweep(check, itertools.product(WHOLE, ["float32", "float64", "int64"]))


def allocated(f, *args):
    """Most bytes that NumPy has for a call at once."""
    f(*args)
    tracemalloc.start()
    f(*args)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_kernels_store_in_place_where_they_can(rng):
    x, two = rng.standard_normal(20_000), of("x += 1; y *= 2")
    for f, args in ((of("x -= x.mean()"), [x, 0]), (two, [x, x[:15_000].copy()]), (two, [x[::2], x[1::2]])):
        assert allocated(kf.fuse(f), *args) < 40_000
    turned = kf.fuse(of("x[...] = x[::-1].copy()"))
    assert allocated(turned, x, 0) >= x.nbytes  # each element is read after another is written


def test_out_beside_arguments_that_are_written(rng):
    f = kf.fuse(of(PLUS))
    x, y, out = (rng.standard_normal(SHAPE) for _ in range(3))
    want = (x + y) * 2
    assert f(x, y, out=out) is out
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(x, want / 2)
    f(x, y, out=y)
    np.testing.assert_array_equal(y, x * 2)
    with pytest.raises(ValueError, match="out must not overlap an array that the function writes to"):
        f(x, y, out=x)
    with pytest.raises(ValueError, match="out must be one array for each of 0 results"):
        kf.fuse(of("x[...] = y[0]"))(x, y, out=out)


def test_arguments_that_cannot_be_written_to(rng):
    f, x, y = kf.fuse(of(PLUS)), rng.standard_normal(6), np.ones(6)
    x.flags.writeable = False
    unaligned = np.zeros(49, np.uint8)[1:].view(np.float64)
    spread = np.lib.stride_tricks.as_strided(np.zeros(1), (6,), (0,))
    for bad, why in ((x, "it is read-only"), (unaligned, "not aligned"), (spread, "elements of it share memory")):
        with pytest.raises(ValueError, match=f"f: x must be writable, since the function writes to it.*{why}"):
            f(bad, y)
    np.testing.assert_array_equal(y, 1)
    x = rng.standard_normal((6, 2))
    f(x[:3], x[3:])
    f(x[:, 0], x[:, 1])
    for y in (x, x[::-1], x[:1]):
        with pytest.raises(ValueError, match="x, which the function writes to, must not share memory with another"):
            f(x, y)


def test_an_error_leaves_the_arguments(rng):
    def fail(x):
        raise OSError("no")

    def f(x, y):
        x += 1
        y[0] = 2
        return kf.call(fail, y, result=kf.spec(y.shape))

    x, y = rng.standard_normal(SHAPE), rng.standard_normal(SHAPE)
    before = x.copy(), y.copy()
    with pytest.raises(OSError, match="no"):
        kf.fuse(f)(x, y)
    np.testing.assert_array_equal((x, y), before)


# ---- calls of torch that write to an argument themselves ----

POSITIONS = torch.tensor([1, 3])
IN_PLACE = {
    "index_copy_": lambda c, k: (c.index_copy_(0, POSITIONS, k * 2) * 1).sum(1),
    "x[i] = y": lambda c, k: c.__setitem__(POSITIONS, k * 2),
    "the argument comes back": lambda c, k: c.index_add_(0, POSITIONS, k),
    "a copy comes back": lambda c, k: (c.index_copy_(0, POSITIONS, k).clone(), c[1:] * 2),
}
THROUGH_A_COPY = {
    "read before": lambda c, k: (c * 2, c.index_copy_(0, POSITIONS, k))[0],
    "what was there comes back": lambda c, k: (c.clone(), c.index_copy_(0, POSITIONS, k))[0],
    "a part read before": lambda c, k: c.index_copy_(0, POSITIONS, c[:2] * 2),
    "twice": lambda c, k: c.index_copy_(0, POSITIONS, k).index_add_(0, POSITIONS, k) * 1,
    "read between": lambda c, k: (c.index_copy_(0, POSITIONS, k).sum(), c.sort(0), c.index_add_(0, POSITIONS, k))[0],
    "changed again": lambda c, k: c.index_copy_(0, POSITIONS, k).mul_(2).sum(1),
    "a part of it": lambda c, k: (c[1:].index_copy_(0, POSITIONS, k), c * 1)[1],
    "of another's values": lambda c, k: (c[:2].copy_(k), c.copy_(c * 2), c.index_copy_(0, POSITIONS, k), c * 1)[3],
}


def test_calls_that_write(rng, monkeypatch):
    clones, clone = [], torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda x, **kwargs: clones.append(x.shape) or clone(x, **kwargs))

    def check(name, layout):
        function = (IN_PLACE | THROUGH_A_COPY)[name]
        cache, new = (torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in ((5, 4), (2, 4)))
        ours, theirs = layout(cache), layout(cache)
        for fused in (kf.fuse(function), kf.fuse(function).unfused):
            fused(ours, new), function(theirs, new)
            before = ours._version
            clones.clear()
            got = fused(ours, new)
            assert not (name in IN_PLACE and layout is layouts[0] and cache.shape in clones)
            want = function(theirs, new)
            assert ours._version > before
            assert (got is ours) == (want is theirs)
            torch.testing.assert_close((ours, got), (theirs, want))

    layouts = clone, lambda x: x.t().clone().t(), lambda x: x.repeat(1, 2)[:, 1 : 1 + x.shape[1]]
    sweep(check, itertools.product(IN_PLACE | THROUGH_A_COPY, layouts))


def test_calls_that_write_to_named_tensors_and_shared_memory():
    f = kf.fuse(lambda k: NAMED.index_add_(0, POSITIONS[:1], k).sum())
    NAMED.zero_()
    assert [float(f(torch.ones(1))) for _ in range(3)] == [1, 2, 3]
    cache = torch.zeros(5, 4)
    with pytest.raises(ValueError, match="must not share memory with another"):
        kf.fuse(lambda c, k: c.index_copy_(0, POSITIONS, k))(cache, cache[:2])

    def asks(c, k):
        c.index_copy_(0, POSITIONS, k)
        return c if c.sum() > 0 else k

    with pytest.raises(kf.TraceError, match="branching"):
        kf.fuse(asks)(cache, torch.ones(2, 4))
    assert not cache.any()


def test_a_tensor_that_the_function_names():
    def f(x):
        NAMED.data -= x
        torch.add(NAMED, 1, out=NAMED)
        return NAMED

    NAMED.zero_()
    fused = kf.fuse(f)
    for i in (1, 2):
        assert fused(torch.full((3,), 3.0)) is NAMED
        assert NAMED.tolist() == [-2.0 * i] * 3


def test_a_tensor_that_is_read_before_it_is_written():
    def f(x):
        row, before = NAMED[0], NAMED.clone()
        total = x + row
        NAMED.add_(x)
        return before * 1, total, row + x

    NAMED.zero_()
    fused = kf.fuse(f)
    for i in (0, 1, 2):
        before, total, after = fused(torch.ones(3))
        assert (before[0], total[0], after[0], NAMED[0]) == (i, i + 1, i + 2, i + 1)


# ---- tensors that the function makes ----


MADE = [
    "out = torch.zeros(3, 4); out.index_add_(0, torch.tensor([0, 2, 1, 0, 2]), x); return out.relu()",
    """out = torch.empty(3, 4)
    row, turned = out[1], out.t()
    out.fill_(1)
    before = x[0] + out[0]
    out.fill_(2)
    after = x[0] + out[0]
    row.copy_(x[1])
    turned[0] += 1
    return before, after, out, row, [r * 1 for r in out][1]""",
    """like, some = torch.zeros_like(x, dtype=torch.float64), torch.arange(4.0)
    like.add_(x, alpha=2)
    like[x > 0] = 1
    some += x[0]
    ones = torch.ones(4).mul_(3)
    return torch.stack([some, ones]), torch.nn.functional.relu(like, inplace=True), ones""",
    "copy = NAMED.clone(); copy[0] = x[0, 0]; return copy",
]
MADE_BY_NUMPY = [
    """out, ones, some = np.zeros((7, 4), like=x), np.ones(4, np.float32, like=x), np.empty((2, 0), bool, like=x)
    out[1:6] = x
    out[0, 2] = x[1, 1]
    ones += x[0]
    row = out[6]
    row += 1
    return out, ones, some, np.multiply(x, 2, out=np.zeros(x.shape, x.dtype, like=x))""",
    """numbers, row, one = np.full(4, 3, like=x), np.full((5, 4), np.arange(4), like=x), np.full(2, x[0, 0], like=x)
    numbers[x[0] > 0] = 7
    row[2:] -= 1
    one[1] = 9
    return numbers, row, one, np.full((), np.float32(2.5), like=x), np.full(3, True, like=x)""",
]


def test_what_the_function_makes(rng):
    x = rng.standard_normal((5, 4)).astype(np.float32)
    sweep(lambda body: assert_as_eager(of(body), [torch.from_numpy(x), torch.from_numpy(x)]), [(b,) for b in MADE])
    for body in MADE_BY_NUMPY:
        for got, want in zip(kf.fuse(of(body))(x, x), of(body)(x, x), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_array_equal(got, want)
    with pytest.raises(kf.TraceError, match=r"numpy.full does not honour order="):
        kf.fuse(lambda x: np.full((2, 2), x[0, 0], order="F", like=x))(x)
    with pytest.raises(TypeError, match=r"zeros: dtype must be one of bool, .* got uint8"):
        kf.fuse(lambda x: np.zeros(2, np.uint8, like=x))(x)


def test_constants_of_torch_are_torch_s():
    f = kf.fuse(lambda x: (torch.zeros_like(x)[0].relu() + x, torch.ones_like(x).sum(0).add(2) * x))
    assert [r.tolist() for r in f(torch.ones(1))] == [[1], [3]]


def test_tensors_that_are_refused():
    """An operator of torch's does not hide it; a tensor that was written to is no constant."""

    def unknown(x):
        made = torch.Tensor(3)
        made += x
        return made

    def constant(x):
        out = torch.zeros(3)
        out.add_(x)
        return kf.relu(out)

    message = "computes at once gets a tensor that the traced function has written to"
    for f, match in ((unknown, "written to a tensor that is no argument"), (constant, message)):
        with pytest.raises(kf.TraceError, match=match):
            kf.fuse(f)(torch.ones(3))
