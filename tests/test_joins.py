"""Joins: arrays that the kernels of their parts store into, and what is pushed through them."""

import functools

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from sweeps import sweep

pytestmark = pytest.mark.native

F32 = 4


def specs(*shapes, dtype="float32"):
    return [kf.spec(s, dtype) for s in shapes]


def bytes_of(plan, *, fused=True):
    """Read and written, of which none may be issued twice."""
    cost = plan.fused if fused else plan.unfused
    assert cost.compulsory == cost.issued
    return cost.compulsory.read, cost.compulsory.written


def both(f, *arrays):
    """The fused result, which must be the unfused one to the bit."""
    fused = kf.fuse(f)
    got, apart = fused(*arrays), fused.unfused(*arrays)
    for a, b in zip(*(r if isinstance(r, (tuple, list)) else [r] for r in (got, apart)), strict=True):
        assert a.tobytes() == b.tobytes()
    return got


# ---- graphs ----


def graph(*parts, axis=0):
    g = _core.Graph()
    joined = g.concatenate([g.input(f"x{i}", *p) for i, p in enumerate(parts)], axis)
    g.set_outputs([("", joined)])
    return g, joined


@pytest.mark.parametrize("axis", [0, -2])
def test_shape_and_dtype(axis):
    g, joined = graph(((2, 3), "int32"), ((4, 3), "float32"), ((0, 3), "bool"), axis=axis)
    g.verify()
    assert (g.shape(joined), g.dtype(joined)) == ((6, 3), "float64")  # NumPy's rule
    assert g.node(joined)["axis"] == 0


def test_refused():
    def check(message, parts, axis):
        with pytest.raises(ValueError, match=f"concatenate: {message}"):
            graph(*parts, axis=axis)

    rows = [
        (r"need at least one array to join", [], 0),
        (r"arrays without axes cannot be joined", [((), "float32")], 0),
        (r"axis 2 is out of bounds for array of dimension 2", [((2, 3), "float32")], 2),
        (
            r"parts must have one shape but for axis 1, got \(2, 3\) \(3, 3\)",
            [((2, 3), "float32"), ((3, 3), "float32")],
            1,
        ),
        (r"parts must have one shape but for axis 0, got \(2, 3\) \(2,\)", [((2, 3), "float32"), ((2,), "float32")], 0),
    ]
    sweep(check, rows)


def test_json_holds_more_parts_than_axes():
    g, _ = graph(*[((2, 1), "float32")] * 100, axis=1)
    assert _core.Graph.from_json(g.to_json()) == g
    broken = g.to_dict()
    broken["nodes"][-1]["axis"] = 2
    with pytest.raises(ValueError, match="the axis joined along must exist"):
        _core.Graph.from_dict(broken)


def test_simplified():
    """Parts without elements go, and so does a join of one part."""
    g, _ = graph(((0, 3), "float32"), ((4, 3), "float32"), ((0, 3), "float32"))
    assert [n["op"] for n in g.simplify().to_dict()["nodes"]] == ["input"] * 3
    g, _ = graph(((0, 3), "float32"), ((0, 3), "float32"))
    assert [n["op"] for n in g.simplify().to_dict()["nodes"]][-1] == "concatenate"


# ---- plans ----


def test_parts_are_stored_where_they_lie():
    n = 35
    p = kf.plan(lambda a, b: kf.concatenate((kf.relu(a), kf.exp(b))), *specs((3, 7), (2, 7)))
    assert [g.label for g in p.groups] == ["relu+concatenate", "exp+concatenate"]
    assert bytes_of(p) == (n * F32, n * F32)
    assert bytes_of(p, fused=False) == (2 * n * F32, 2 * n * F32)
    assert p.unfused.launches == 4  # parts of two sizes
    p = kf.plan(lambda a, b: kf.concatenate((kf.relu(a), kf.exp(b)), 1), *specs((3, 7), (3, 7)))
    assert (p.fused.launches, p.unfused.launches) == (1, 3)


def rotary(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + kf.concatenate((-x[..., half:], x[..., :half]), -1) * sin


def rotary_in_pairs(x, cos, sin):
    return x * cos + kf.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape) * sin


def rotary_of_scaled(x, cos, sin):
    return rotary(x * 2, cos, sin)


def rotary_written_out(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    c, s = cos[..., ::2], sin[..., ::2]
    return kf.stack((a * c - b * s, b * c + a * s), -1).reshape(x.shape)


def of_made_tables(x, angles):
    table = kf.concatenate((angles, angles), -1)
    return rotary(x, kf.cos(table), kf.sin(table))


def of_repeated_tables(x, angles):
    table = kf.repeat(angles, 2, -1)
    return rotary_in_pairs(x, kf.cos(table), kf.sin(table))


def test_rotary_embedding_is_one_kernel(rng):
    def check(f, *tables, read):
        arrays = [rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 5, 8), *tables)]
        p = kf.plan(f, *arrays)
        assert p.fused.launches == 1
        assert bytes_of(p) == ((240 + read) * F32, 240 * F32)
        np.testing.assert_allclose(both(f, *arrays), f(*arrays), rtol=1e-6, atol=1e-6)

    rows = [(f, (5, 8), (5, 8)) for f in (rotary, rotary_in_pairs, rotary_of_scaled)]
    sweep(functools.partial(check, read=80), rows)
    sweep(functools.partial(check, read=40), [(rotary_written_out, (5, 8), (5, 8))])  # half of each table
    sweep(functools.partial(check, read=20), [(of_made_tables, (5, 4)), (of_repeated_tables, (5, 4))])


def test_rows_are_pushed_through():
    """softmax of stacked batches: no join is stored but the result."""
    p = kf.plan(lambda a, b: kf.softmax(kf.concatenate((a, b)) * 2), *specs((3, 7), (4, 7)))
    assert bytes_of(p) == (49 * F32, 49 * F32)
    assert p.fused.launches == 2


def test_what_reduces_the_joined_axis_reads_the_join():
    p = kf.plan(lambda a, b: kf.layernorm(kf.concatenate((kf.relu(a), b), -1)), *specs((3, 7), (3, 4)))
    assert [g.kind for g in p.groups] == ["pointwise", "pointwise", "rows"]
    assert bytes_of(p) == (2 * 33 * F32, 2 * 33 * F32)
    refusals = [r for r in p.refusals if r.consumer.startswith("layernorm") and r.producer == "concatenate"]
    assert {r.producer_group for r in refusals} == {0, 1}
    assert all(r.reason == "domain_mismatch" for r in refusals)


def test_a_residual_stays_one_array():
    """The sum is reduced as a whole: pushing the join through it would store it in pieces and read it again."""

    def f(x, r, w):
        h = x + r
        return h, rotary(kf.rmsnorm(h, w), w, w)

    p = kf.plan(f, *specs((6, 8), (6, 8), (8,)))
    assert p.fused.launches == 2
    assert p.groups[0].kind == "rows"


def test_gated_units_are_one_kernel(rng):
    """The halves of a value that nothing else reads are computed where they are read."""

    def f(x, bias):
        value, gate = kf.split(x + bias, 2, -1)
        return value * kf.gelu(gate)

    x, bias = rng.standard_normal((5, 8)).astype(np.float32), rng.standard_normal(8).astype(np.float32)
    p = kf.plan(f, x, bias)
    assert p.fused.launches == 1
    assert bytes_of(p) == ((40 + 8) * F32, 20 * F32)
    np.testing.assert_allclose(both(f, x, bias), f(x, bias), rtol=1e-6)
    p = kf.plan(lambda x: (y := x * 2)[:, :4] + y[:, 3:7], x)  # 4 would be computed twice
    assert p.fused.launches == p.unfused.launches
    p = kf.plan(lambda x: ((y := x * 2)[:, :4] * y[:, 4:], y.sum(1)), x)  # all of it is needed
    assert p.fused.compulsory.written == (40 + 20 + 5) * F32


def test_what_does_not_pay_does_not_stop_the_rest():
    """Three slices for products would be three kernels instead of one; the halves behind them still save one."""

    def layer(x):
        q, k, v = kf.split(x * 2, 3, -1)
        value, gate = kf.split((q @ k.T) @ v + 1, 2, -1)
        return value * kf.silu(gate)

    def layers(x, n):
        for _ in range(n - 1):
            x = kf.tile(layer(x), (1, 6))
        return layer(x)

    for n in (1, 3):
        p = kf.plan(layers, kf.spec((8, 24)), n, executors="available", device="H200")
        assert p.fused.launches == 3 * n + 1  # two products, and what is between those of two layers


def test_a_slice_of_one_part_is_a_slice_of_that_part():
    """Also behind a transpose: nothing else of the join is computed."""
    p = kf.plan(lambda a, b: kf.exp(kf.concatenate((a * 2, b * 3)).T[:, 1:3]), *specs((4, 3), (5, 3)))
    assert p.fused.launches == 1
    assert bytes_of(p) == (6 * F32, 6 * F32)


def test_views_that_others_read_stay_views():
    """Heads that are turned, and read whole by a product."""

    def f(x, c, s):
        k = x.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
        return kf.matmul(k, kf.matrix_transpose(rotary(k, c, s)))

    p = kf.plan(f, *specs((2, 5, 12), (5, 4), (5, 4)))
    assert [g.kind for g in p.groups] == ["pointwise", "matmul"]
    assert p.fused.compulsory.written == (120 + 2 * 3 * 5 * 5) * F32
    assert p.groups[0].stores[0].shape == (2, 3, 5, 2)  # half of k as it is, which the product reads transposed


def test_unfused_pad_and_roll():
    p = kf.plan(lambda x: kf.pad(x, 1), kf.spec((5, 6)))
    assert p.unfused.launches == 3  # x, its sides, above and below
    assert bytes_of(p, fused=False) == (30 * F32, 56 * F32)
    p = kf.plan(lambda x: kf.roll(x, 2, 0), kf.spec((4, 6)))
    assert (p.unfused.launches, p.fused.launches) == (1, 1)
    assert bytes_of(p) == (24 * F32, 24 * F32)


def test_many_parts():
    """More than a kernel has inputs and outputs."""
    n = 100
    x = np.arange(3.0 * n, dtype=np.float32).reshape(n, 3)
    f = lambda x: kf.relu(kf.concatenate([x[i : i + 1] for i in reversed(range(n))]))  # noqa: E731
    assert kf.plan(f, x).fused.launches <= -(-n // 16) + 1
    np.testing.assert_array_equal(both(f, x), x[::-1])


def test_a_join_that_grows_is_one_array():
    """Joins of joins, more than are taken apart at once: the inner ones are stored then."""

    def grown(x, z, times):
        for i in range(times):
            x = kf.concatenate((x, z * i))
        return x

    p = kf.plan(grown, *specs((4,), (1,)), 50)
    assert p.fused.compulsory.written == (4 + 50) * F32
    assert p.unfused.compulsory.written == sum(4 + i + 1 for i in range(1, 50)) * F32 + (5 + 50) * F32
    x, z = np.arange(4, dtype=np.float32), np.ones(1, np.float32)
    np.testing.assert_array_equal(both(lambda x, z: grown(x, z, 100), x, z), np.concatenate((x, np.arange(100))))


# ---- results ----


JOINS = {
    "parts of other dtypes": lambda x, y: kf.concatenate((x, y.astype("float64"), x > 0)),
    "a part twice": lambda x, y: kf.concatenate((x * 2, x * 2, x)),
    "a part that is a result": lambda x, y: (z := x + 1, kf.concatenate((z, y))),
    "a join that is read": lambda x, y: (z := kf.concatenate((x, y)), z.sum(0), z * 2, z[1:3]),
    "a join of joins": lambda x, y: kf.concatenate((kf.concatenate((x, y)), kf.concatenate((y, x)) + 1), 1),
    "a join in two joins": lambda x, y: (z := kf.stack((x, y)), kf.concatenate((z, z)), kf.concatenate((z, -z), 1)),
    "of one part": lambda x, y: kf.concatenate((kf.exp(x),)),
    "of nothing": lambda x, y: kf.concatenate((x[:0], y[3:3])),
    "with parts of nothing": lambda x, y: kf.concatenate((x[:0], y, x[2:2])) + 1,
    "cut at two places": lambda x, y: kf.concatenate((x[:1], y, x[:1]))[:3] * kf.concatenate((x[:2], y[:1])),
    "cut along two axes": lambda x, y: kf.concatenate((x, y), 1) + kf.concatenate((x, y)).reshape(3, 10),
    "reversed": lambda x, y: kf.concatenate((x[::-1], y[:, ::-1])).T * 2,
    "sums of rows": lambda x, y: kf.concatenate((x.sum(1), y.max(1))),
    "halves of one": lambda x, y: kf.concatenate((-x[:, 2:], x[:, :2]), 1)[:, 1:4] + y[:, :3],
    "masked": lambda x, y: kf.tril(kf.stack((x, y))) + kf.triu(x, 1),
    "of transposed": lambda x, y: kf.concatenate((x.T, y.T), 1).sum(1),
    "repeated": lambda x, y: kf.tile(kf.repeat(x, 2, 1), (2, 1)) + kf.tile(y, 2).sum(),
}


def test_results(rng):
    x, y = (rng.integers(-4, 5, (3, 5)).astype(np.float32) for _ in range(2))  # whose sums are exact in any order
    x = np.asfortranarray(x)

    def check(name):
        f = JOINS[name]
        got, want = both(f, x, y), f(x, y)  # one kernel for each call
        for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)

    sweep(check, [(name,) for name in JOINS])
    numbers = both(lambda x: kf.stack((x.sum(), x.max(), x[0, 0])), x)
    np.testing.assert_array_equal(numbers, [x.sum(), x.max(), x[0, 0]])
    x, y = rng.integers(-4, 5, (2, 40, 100)).astype(np.float32)
    f = lambda x, y: kf.concatenate((x * 2, y), 1)[:, 102:97:-1] + 1  # noqa: E731  # backwards, of both parts
    np.testing.assert_array_equal(both(f, x, y), f(x, y))


def test_into_arrays_that_are_given(rng):
    """Also into one that is read: no element may be lost."""
    x, cos, sin = (rng.standard_normal((6, 8)).astype(np.float32) for _ in range(3))
    f = kf.fuse(rotary)
    want = f(x, cos, sin)
    for out in (np.empty((6, 8), np.float32), np.empty((8, 6), np.float32).T, np.empty((6, 16), np.float32)[:, ::-2]):
        assert f(x, cos, sin, out=out) is out
        np.testing.assert_array_equal(out, want)
    assert f(x, cos, sin, out=x) is x
    np.testing.assert_array_equal(x, want)
    rolled = kf.fuse(lambda x: kf.roll(x, 1, 0))
    want = np.roll(x, 1, 0)
    np.testing.assert_array_equal(rolled(x, out=x), want)


def test_wrong_arguments():
    x = np.ones((3, 4), np.float32)

    def check(call, message, error=ValueError):
        for f in (call, kf.fuse(call)):
            with pytest.raises(error, match=r"kfusion\." + message):
                f(x)

    rows = [
        (lambda x: kf.pad(x, -1), r"pad: pad_width must not be negative, got -1"),
        (lambda x: kf.pad(x, ((1, 1),) * 3), r"pad: pad_width must be a pair for each of 2 axes"),
        (lambda x: kf.pad(x, 3, "reflect"), r"pad: reflect reaches at most 2 elements of an axis of 3, got 3"),
        (lambda x: kf.pad(x, 1, "mirror"), r"pad: mode must be one of constant, edge, .*, got 'mirror'"),
        (lambda x: kf.roll(x, (1, 2), (0, 1, 0)), r"roll: shift and axis must be as many, got 2 and 3"),
        (lambda x: kf.repeat(x, -1), r"repeat: repeats must not be negative, got -1"),
        (lambda x: kf.repeat(x, [1, 2, 3], 0), r"repeat: repeats must be an integer, got \[1, 2, 3\]", TypeError),
        (lambda x: kf.tile(x, (2, -1)), r"tile: reps must not be negative"),
        (lambda x: kf.tril(x[0]), r"tril: x must have at least 2 axes, got shape \(4,\)"),
        (lambda x: kf.split(x, 2), r"split: 3 elements along axis 0 are no 2 equal parts"),
        (lambda x: kf.chunk(x, 0), r"chunk: chunks must be at least 1, got 0"),
        (lambda x: kf.stack((x, x[:1])), r"stack: arrays must have one shape, got \(3, 4\), \(1, 4\)"),
        (lambda x: kf.concatenate(()), r"concatenate: arrays must have at least one array"),
        (lambda x: kf.concatenate((x, x[0])), r"concatenate: parts must have one shape but for axis 0"),
    ]
    sweep(check, rows)
    with pytest.raises(TypeError, match=r"kfusion.concatenate: arrays must be a tuple or list of arrays, got ndarray"):
        kf.concatenate(x)
