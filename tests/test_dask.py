"""Fused functions of dask arrays: against the plain function of the whole arrays, whatever the chunks."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from graph_strategies import cases
from replay import replay
from sweeps import refusals, sweep

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

RNG = np.random.default_rng(7)
X = RNG.standard_normal((11, 6)).astype("float32")
B = RNG.standard_normal(6).astype("float32")
W = RNG.standard_normal((6, 4)).astype("float32")
CHUNKS = [(11, 6), (4, 6), (11, 4), (3, 2), ((1, 9, 1), (5, 1))]


def bias_relu(x: Any, b: Any) -> Any:
    return kf.relu(x + b) * 2


def statistics(x: Any) -> Any:
    return {"sum": x.sum(0), "mean": x.mean(), "var": x.var(axis=0), "max": x.max(1), "std": x.std(axis=1)}


def truths(x: Any) -> Any:
    return (x > 0).any(0), (x > -9).all(), x.min(0), np.prod(x, axis=1), (x > 0).sum(1)


def standardized(x: Any) -> Any:
    return (x - x.mean(0)) / (x.std(0) + 1e-3)


def linear(x: Any, w: Any) -> Any:
    y = x @ w
    return kf.relu(y), y.sum(0), y - y.mean(0)


def of_extents(x: Any) -> Any:
    return x / x.shape[0], np.ones_like(x), x.T.reshape(6, 1, 11), x


def leaves(result: Any) -> list[Any]:
    return list(result.values() if isinstance(result, dict) else result if isinstance(result, tuple) else [result])


def check(f: Any, *arrays: Any, tolerance: float = 1e-5) -> None:
    plain = [np.asarray(a) for a in arrays]
    wanted, got = f(*plain), kf.fuse(f)(*arrays)
    assert type(got) is type(wanted) or isinstance(got, da.Array)
    for want, lazy in zip(leaves(wanted), leaves(got), strict=True):
        assert isinstance(lazy, da.Array)
        assert (lazy.shape, lazy.dtype) == (want.shape, want.dtype)
        value = lazy.compute(scheduler="synchronous")
        np.testing.assert_allclose(np.float64(value), np.float64(want), rtol=tolerance, atol=tolerance)
        if lazy.ndim:
            last = lazy.blocks[tuple(n - 1 for n in lazy.numblocks)]
            assert last.compute(scheduler="synchronous").shape == last.shape


def test_functions_in_any_chunks(some):
    of_one = (kf.softmax, kf.layernorm, statistics, truths, standardized, of_extents)
    sweep(check, some([(f, da.from_array(X, chunks=chunks)) for f in of_one for chunks in CHUNKS], 12))
    x, small = [da.from_array(X, chunks=chunks) for chunks in CHUNKS], np.arange(16.0).reshape(4, 4)
    for b, w in ((B, W), (da.from_array(B, chunks=4), da.from_array(W, chunks=(5, 3)))):
        sweep(check, some([row for a in x for row in ((bias_relu, a, b), (linear, a, w))], 4))
    check(lambda x: x * B, da.from_array(X, chunks=(4, 3)))  # arrays that the function names
    for f in (lambda x: x + x.T, lambda x: x @ x, lambda x: x.sum(1) + x):  # along one of two axes that are the same
        for chunks in ((1, 4), (4, 1), (2, 2)):
            x = da.from_array(small, chunks=chunks)
            says = r"axis \d of x is in \d chunks, but axes 0 and 1 of x both run along it: pass"
            with pytest.raises(ValueError, match=says):
                kf.fuse(f)(x)
        check(f, x.rechunk(-1))

    def without_elements(extents, some, others):
        y, z = da.ones((extents, 4), chunks=(some, 4)), da.ones((sum(others), 4), chunks=(others, 4))
        check(lambda y, z: y - 2 * z, y, z)

    one = [(1, (1, 0), (1,)), (1, (0, 1), (1, 0)), (1, (1, 0), (2, 1))]
    sweep(without_elements, [*one, (0, (0, 0), (0,)), (0, (0, 0), (1,)), (3, (3, 0), (1, 2))])


def test_numbers():
    """300 values of 300 are beyond float16 in a block, not in the mean; variances far from zero; NaN and infinities."""
    x = np.full((300, 2), 300, "float16")
    got = kf.fuse(lambda x: (x.mean(0), x.var(0)))(da.from_array(x, chunks=(100, 2)))
    assert [v.compute().tolist() for v in got] == [[300, 300], [0, 0]]
    x = (1e6 + np.arange(1000.0)).reshape(-1, 1)
    got = kf.fuse(lambda x: x.var(axis=0))(da.from_array(x, chunks=(7, 1))).compute()
    np.testing.assert_allclose(got, x.var(axis=0), rtol=1e-12)
    x = X.copy()
    x[2, 1], x[3, 2], x[9, 3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        check(lambda x: (x.max(0), x.sum(0), x.mean(), np.isnan(x).any(0)), da.from_array(x, chunks=(3, 4)))

    def loss(w: Any, x: Any) -> Any:
        return (kf.relu(x @ w) ** 2).mean()

    wanted = kf.value_and_grad(loss)(W, X)  # gradients by an array in memory: sums over the rows of all blocks
    for got, want in zip(kf.value_and_grad(loss)(W, da.from_array(X, chunks=(4, 6))), wanted, strict=True):
        np.testing.assert_allclose(got.compute(), want, rtol=1e-4, atol=1e-6)


class Scaled:
    scale = 3.0

    @kf.fuse
    def both(self, xs: Any, *, flag: bool) -> Any:
        return [x * self.scale for x in xs] if flag else xs


def test_calls():
    x = da.from_array(X, chunks=(4, 3))
    for got in Scaled().both([x, x], flag=True):
        np.testing.assert_allclose(got.compute(), X * 3)
    fused = kf.fuse(standardized)
    np.testing.assert_allclose(fused.unfused(x).compute(), standardized(X), rtol=1e-4, atol=1e-5)
    assert fused.plan(x).groups == fused.plan(X).groups  # of the whole array

    def fails(block: Any) -> Any:
        raise AssertionError("computed")

    x = da.ones((8, 4), chunks=(2, 4))
    assert fused(x.map_blocks(fails, dtype="float64", meta=np.empty((0, 0)))).chunks == ((2, 2, 2, 2), (4,))
    y = fused(x)
    names = {str(key[0] if isinstance(key, tuple) else key).rpartition("-")[0] for key in dict(y.dask)}
    assert {"kfusion-standardized-moments", "kfusion-standardized-mean"} <= names
    assert y.name.startswith("kfusion-standardized-")
    assert y.name == kf.fuse(standardized)(x).name  # the same call, the same keys
    assert y.name != kf.fuse(standardized)(x + 1).name


def test_different_calls_have_different_keys():
    """Dask computes one of equal keys, and takes it for the other."""
    x = np.arange(16.0).reshape(4, 4)
    lazy = da.from_array(x, chunks=(4, 4))

    def check_keys(f, g):
        some = [kf.fuse(h)(lazy) for h in (f, g)]
        assert some[0].name != some[1].name
        for got, h in zip(dask.compute(*some, scheduler="synchronous"), (f, g), strict=True):
            np.testing.assert_array_equal(got, h(x))

    pairs = [
        (lambda x: x.sum(0), lambda x: x.sum(1)), (lambda x: x.sum(0), lambda x: x.sum(0, keepdims=True)),
        (lambda x: x[:2], lambda x: x[2:]), (lambda x: x[:2], lambda x: x[::2]),
        (lambda x: np.concatenate([x, -x], 0), lambda x: np.concatenate([x, -x], 1)),
        (lambda x: x * 2.0, lambda x: x * 2.5), (lambda x: x + np.arange(4.0), lambda x: x + np.arange(4.0)[::-1]),
    ]  # fmt: skip
    sweep(check_keys, pairs)


def writes(x: Any) -> Any:
    x += 1
    return x


def test_refusals():
    def needs_a_whole_axis(f, axis, why):
        fused = kf.fuse(f)
        says = rf"axis \d of x is in \d chunks, but .*{why}.*: pass x.rechunk\({{\d: -1}}\)"
        with pytest.raises(ValueError, match=says):
            fused(da.from_array(X, chunks=(4, 3)))
        if why in ("slice", "iota"):
            whole = da.from_array(X, chunks=(4, 6) if axis == 1 else (11, 3))
            np.testing.assert_array_equal(fused(whole).compute(), f(X))

    rows = [
        (lambda x: x[1:], 0, "slice"), (lambda x: x @ x.T, 0, "both run along it"),
        (lambda x: np.sort(x, axis=1), 1, "numpy.sort"), (lambda x: x.reshape(22, 3), 0, "reshape"),
        (lambda x: np.argmax(x, axis=1), 1, "iota"),
    ]  # fmt: skip
    sweep(needs_a_whole_axis, rows)
    x, sort = da.from_array(X, chunks=4), kf.fuse(lambda x: np.sort(x, axis=1))
    refusals([
        (lambda: sort(da.from_array(X, chunks=-1)), TypeError,  # a graph for other processes holds no functions
         r"numpy\.sort \(test_dask.* is a call of the array library, which such arrays"),
        (lambda: kf.fuse(kf.relu)(x[x[:, 0] > 0]), ValueError,
         r"x has chunks of unknown sizes: call x.compute_chunk_sizes\(\)"),
        (lambda: kf.fuse(kf.relu)(x.astype("complex64")), TypeError, "x's dtype must be one of"),
        (lambda: kf.fuse(kf.relu)(da.ma.masked_greater(x, 1)), TypeError,
         "x's blocks must be a plain array, got MaskedArray"),
        (lambda: kf.relu(x), TypeError,
         r"got dask\.array\.Array; pass it to .*kfusion\.fuse\(f\)\.plan\(x\), or kfusion\.spec"),
        (lambda: kf.fuse(kf.relu)(x, out=X), TypeError, "out= and stream= are for arrays in memory"),
        (lambda: kf.fuse(lambda x: x.sum(0))(da.from_array(X, chunks=((4, 0, 7), 6))), ValueError,
         "one of them without elements, and is reduced"),
        (lambda: kf.fuse(writes)(x), TypeError, "it writes to x"),
    ])  # fmt: skip


def test_fused_functions_pickle_with_their_code():
    """To a process that cannot import them: those of a notebook, and those that a function makes."""
    cloudpickle = pytest.importorskip("cloudpickle")

    def doubled(x: Any) -> Any:
        return x * 2

    fused = kf.fuse(doubled)
    text = cloudpickle.dumps(fused)
    again = pickle.loads(text)
    assert again is pickle.loads(text)  # one object for many tasks: traced once
    np.testing.assert_array_equal(again(X), X * 2)
    assert copy.copy(fused) is copy.deepcopy(fused) is fused


@pytest.mark.slow
def test_an_array_larger_than_a_worker():
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, memory_limit="600MB", dashboard_address=":0"
    )
    with cluster, distributed.Client(cluster) as client:
        rows = 300_000  # in blocks that are small beside what libraries take of a worker's memory
        x = da.arange(rows, chunks=2500, dtype="float32")[:, None] + da.zeros((1, 1000), dtype="float32")
        assert x.nbytes == 1_200_000_000
        chain = kf.fuse(lambda x: (kf.log1p(kf.relu(x - 1) * 2).max(0), x.var(axis=0), x.mean()))
        most, var, mean = client.gather(client.compute(list(chain(x))))
        np.testing.assert_allclose(most, np.full(1000, np.log1p(2.0 * (rows - 2))), rtol=1e-5)
        np.testing.assert_allclose(var, np.full(1000, (rows**2 - 1) / 12), rtol=1e-4)
        np.testing.assert_allclose(mean, (rows - 1) / 2, rtol=1e-4)
        assert client.submit(kf.fuse(lambda x: x * 2), np.ones(3)).result().tolist() == [2, 2, 2]


@pytest.mark.filterwarnings("ignore:Increasing number of chunks")
@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(case=cases(contractions=True, gathers=True, bases=[(3, 5), (1, 5), (7, 4)]), data=st.data())
def test_any_function_of_blocks(case, data):
    """In any chunks; where some are refused, what the message says to pass is taken."""
    fused = kf.fuse(replay(case.graph))
    arrays = []
    for x in case.inputs:
        sizes = [data.draw(st.integers(1, max(n, 1)), label="chunk") for n in x.shape]
        arrays.append(da.from_array(x, chunks=tuple(sizes)))
    for _ in range(40):
        try:
            results = fused(arrays)
            break
        except ValueError as error:
            number, axis = re.search(r"pass arrays\.(\d+)\.rechunk\({(\d+): -1}\)", str(error)).groups()
            arrays[int(number)] = arrays[int(number)].rechunk({int(axis): -1})
    case.check([r.compute(scheduler="synchronous") for r in results])
