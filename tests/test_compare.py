"""kfusion.compare: what it checks, measures and returns. Nothing here asserts a time."""

from __future__ import annotations

import dataclasses
import decimal
import importlib.util
import itertools
import json
import subprocess
import sys

import matplotlib
import ml_dtypes
import numpy as np
import pytest

import kfusion as kf
from kfusion import _arrays, _timing
from kfusion._compare import oracle, peers
from kfusion._compare import versions as _versions
from sweeps import refusals, sweep

matplotlib.use("Agg")
FUSED = kf.fused_relu_layernorm
QUICK = {"repeats": 1, "peers": (), "cache": "hot"}
INSTALLED = [
    n for n in ("numpy", "numexpr", "torch", "jax", "jax.jit") if importlib.util.find_spec(n.partition(".")[0])
]


def random(shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.fixture(scope="module")
def comparison():
    return kf.compare(FUSED, random((64, 96)), repeats=2, peers=["numpy"])


def relu_chain(x, b):
    return np.log(np.maximum(x * 2 + b, 0) + 1)


@pytest.fixture(scope="module")
def chain():
    return kf.compare(relu_chain, random((64, 96)), random(96), repeats=2, peers=INSTALLED)


def peers_of(comparison):
    return [row.name for row in comparison.rows if row.is_peer and row.cache == "hot"]


# ---- what it returns ------------------------------------------------------------------------------------------------


def test_rows_of_a_kernel(comparison):
    assert comparison.caches == ("cold", "hot")
    names = ["unfused", "fused", "fused, again", "fused, fresh", "copy", "numpy"]
    for cache in comparison.caches:
        assert [row.name for row in comparison.rows if row.cache == cache] == names
    for row in comparison.rows:
        assert 0 < row.p20_us <= row.median_us <= row.p80_us
        assert row.copy_pct > 0
        assert row.is_peer == (row.name == "numpy")
    fused, unfused, copy = (comparison.row(name) for name in ("fused", "unfused", "copy"))
    matrix_bytes, statistics = 64 * 96 * 4, 64 * 4  # of the unfused kernels: mean twice, variance
    assert (unfused.launches, unfused.moved_bytes) == (5, 8 * matrix_bytes + 5 * statistics)
    assert (fused.launches, fused.moved_bytes) == (1, 2 * matrix_bytes)
    assert (copy.launches, copy.moved_bytes, copy.copy_pct) == (1, 2 * matrix_bytes, 100.0)
    assert fused.gbps == pytest.approx(fused.moved_bytes / (fused.median_us * 1e-6) / 1e9)
    assert fused.speedup == pytest.approx(fused.copy_pct / unfused.copy_pct)
    assert unfused.speedup == 1.0
    peer = comparison.row("numpy")
    assert (peer.launches, peer.moved_bytes, peer.gbps) == (None, None, None)
    assert comparison.predicted == FUSED.plan(kf.spec((64, 96))).savings
    assert comparison.speedup == comparison.row("fused", "cold").speedup
    with pytest.raises(KeyError, match="cupy"):
        comparison.row("cupy")
    predicted = FUSED.plan(kf.spec((4096, 1024))).savings
    assert (round(predicted["unfused_bytes"] / 1e6), round(predicted["fused_bytes"] / 1e6, 2)) == (134, 33.55)
    assert predicted["speedup_estimate"] == pytest.approx(4.0, rel=0.01)


def test_rows_of_any_function(chain):
    assert peers_of(chain) == INSTALLED
    assert chain.notes == ()
    assert all(row.max_abs_error < 1e-5 for row in chain.rows if row.name != "copy")
    assert chain.max_difference == 0
    plan = kf.plan(relu_chain, kf.spec((64, 96)), kf.spec(96))
    fused, unfused, copy = (chain.row(name) for name in ("fused", "unfused", "copy"))
    assert (fused.launches, unfused.launches) == (1, 5)
    assert (fused.moved_bytes, unfused.moved_bytes) == (plan.fused.issued.total, plan.unfused.issued.total)
    assert fused.moved_bytes == 4 * (64 * 96 * 2 + 96)
    assert abs(copy.moved_bytes - fused.moved_bytes) <= 8
    assert fused.predicted_us == pytest.approx(copy.median_us * fused.moved_bytes / copy.moved_bytes)
    assert (chain.predicted, chain.predicted_speedup) == (plan.savings, plan.savings["speedup_estimate"])


def test_texts(comparison, chain, monkeypatch):
    plain = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert (plain["shape"], plain["dtype"], plain["array"], plain["device"]) == ([64, 96], "float32", "numpy", "cpu")
    assert {"name", "threads", "isa", "caches_bytes"} <= set(plain["hardware"]["cpu"])
    assert {"python", "kfusion", "numpy"} <= set(plain["versions"])
    assert len(plain["rows"]) == len(comparison.rows)
    assert plain["predicted_speedup"] == pytest.approx(4.0, rel=0.02)
    text = str(comparison)
    for word in ("x: float32[64,96]", "cold cache", "hot cache", "launches", "by bytes", "GB/s", "% copy", "predicted"):
        assert word in text
    assert "\x1b" not in text
    assert repr(comparison).startswith("<Comparison: relu_layernorm(x: float32[64,96]) on ")
    page = comparison._repr_html_()
    assert (page.count("<table>"), page.count("</tr>")) == (2, 2 * 7)
    text = str(chain)
    assert chain.title.startswith("relu_chain(x: float32[64,96], b: float32[96]) on ")
    assert ("by bytes" in text, "passes" in text, "kfusion.plan" in text) == (True, False, True)
    assert max(len(line) for line in text.splitlines() if " on " not in line) <= 80
    assert json.loads(json.dumps(chain.to_dict()))["arguments"] == {"x": "float32[64,96]", "b": "float32[96]"}
    pytest.importorskip("rich")  # on a terminal of 80 columns
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert all(name in str(comparison) for name in ("\x1b", "fused, again", "speedup", "error", "100"))


def test_the_fastest_is_named(comparison):
    def check(speedups, fastest, verdict):
        one = comparison.row("fused", "hot")
        rows = tuple(
            dataclasses.replace(one, name=name, speedup=speedup, is_peer="fused" not in name)
            for name, speedup in ({"unfused": 1.0, "fused, again": 9.0, "copy": 20.0} | speedups).items()
        )
        shown = dataclasses.replace(comparison, rows=rows)
        assert shown.fastest("hot").name == fastest
        assert verdict in " ".join(str(shown).split())

    rows = [
        ({"fused": 4.0, "numpy": 2.0}, "fused", "Fastest with hot cache: fused, 2.00x as fast as numpy."),
        ({"fused": 2.0, "numpy": 3.0}, "numpy", "numpy, 1.50x as fast as fused. Fusing does not pay here."),
        ({"fused": 2.0, "torch.compile": 3.0}, "torch.compile", "torch.compile, 1.50x as fast as fused. "),
        ({"fused": 0.5, "torch.compile": 1.0}, "unfused", "unfused, 2.00x as fast as fused. Fusing does not pay here."),
    ]
    sweep(check, rows)


def test_plots(comparison, tmp_path):
    import matplotlib.pyplot as plt
    from PIL import Image

    before = plt.get_fignums()
    assert len(comparison.plot(tmp_path / "picture.png").axes) == 2
    assert plt.get_fignums() == before
    with Image.open(tmp_path / "picture.png") as image:
        image.verify()
    with pytest.raises(ValueError, match="nonsense"):
        comparison.plot(tmp_path / "picture.nonsense")
    assert [p.name for p in tmp_path.iterdir()] == ["picture.png"]
    figure, ax = plt.subplots()
    assert comparison.plot(ax=ax, cache="hot") is figure
    assert "hot cache" in ax.get_title(loc="left")
    assert plt.get_fignums() == []


# ---- arrays and functions -------------------------------------------------------------------------------------------


def test_arrays_of_numpy(some):
    def check(shape, dtype):
        w, b = random(shape[-1]).astype(dtype), random(shape[-1]).astype(dtype)
        c = kf.compare(FUSED, random(shape, dtype), w, b, eps=1e-3, **QUICK | {"cache": "cold"})
        assert (c.shape, c.dtype, c.arguments["eps"]) == (shape, dtype, "0.001")
        assert c.arguments["weight"] == c.arguments["bias"] == f"{dtype}[{shape[-1]}]"
        assert c.row("fused").max_abs_error >= 0

    shapes = [(1, 1), (7,), (3, 5, 17), (2, 1, 1023)]
    sweep(check, some(itertools.product(shapes, ["float16", "float32", "float64"]), 3))
    x = random((64, 40))[::-2, 1::3]
    x.flags.writeable = False
    before = x.copy()
    assert kf.compare(FUSED, x, **QUICK | {"peers": ["numpy"]}).shape == (32, 13)
    np.testing.assert_array_equal(x, before)
    x = random((6, 32))
    x[1, 3], x[2, 4], x[3] = np.nan, np.inf, -1.0
    kf.compare(FUSED, x, **QUICK)
    c = kf.compare(kf.unfused_relu_layernorm, random((8, 8)), **QUICK)  # the same pair
    assert {row.name for row in c.rows} == {"unfused", "fused", "fused, again", "fused, fresh", "copy"}


def test_arrays_of_other_libraries():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    all_of_them = QUICK | {"peers": ["numpy", "torch", "jax"]}
    c = kf.compare(FUSED, random((16, 64), ml_dtypes.bfloat16), random(64), **all_of_them)
    assert (peers_of(c), c.notes) == (all_of_them["peers"], ())
    assert all(row.max_abs_error < 0.1 for row in c.rows if row.is_peer)
    x = torch.from_numpy(random((16, 32))).to(torch.bfloat16)
    c = kf.compare(FUSED, x, torch.ones(32), **QUICK | {"peers": ["torch", "numpy"]})
    assert (c.array, c.dtype, set(peers_of(c))) == ("torch", "bfloat16", {"torch", "numpy"})
    c = kf.compare(FUSED, jnp.asarray(random((16, 32))), **QUICK)
    assert c.array == "jax"
    assert "fused, fresh" not in {row.name for row in c.rows}  # they have no out


@pytest.mark.cuda
def test_our_own_gpu_array():
    c = kf.compare(FUSED, kf.to_device(random((256, 1024))), repeats=1)
    assert (c.array, c.device) == ("kfusion", "cuda")
    assert json.loads(json.dumps(c.to_dict()))["hardware"]["gpu"]["name"]


def test_functions(tmp_path):
    made = kf.fuse(forbid=[("softmax", "multiply")])(lambda x: kf.softmax(x) * 2)  # keeps its options
    c = kf.compare(made, random((8, 8)), **QUICK)
    assert (c.row("fused").launches, c.row("unfused").launches) == (2, 2)

    def several(x, *, scale, norm=True):
        return {"y": (kf.softmax(x) if norm else x) * scale, "sum": x.sum()}, 3

    c = kf.compare(several, random((5, 7), "float64"), scale=2.0, norm=True, **QUICK | {"peers": ["numpy"]})
    assert c.arguments == {"x": "float64[5,7]", "scale": "2.0", "norm": "True"}
    assert peers_of(c) == ["numpy"]
    torch = pytest.importorskip("torch")
    f = lambda x: torch.nn.functional.gelu(x, approximate="tanh").sum(-1)  # noqa: E731
    c = kf.compare(f, torch.from_numpy(random((6, 5))), **QUICK | {"peers": ["torch", "numpy"]})
    assert peers_of(c) == ["torch", "numpy"]
    pytest.importorskip("onnx")
    from onnx_models import model

    file = model(tmp_path, "r = Relu(x) ; y = Softmax(r)", {"x": [5, 7]})
    for source in (file, kf.fuse(file)):
        assert {row.name for row in kf.compare(source, random((5, 7)), **QUICK).rows} >= {"fused", "unfused"}


def test_large_arrays_are_checked_by_whole_rows_with_both_ends(monkeypatch):
    assert oracle.sample_rows(5, 10**9).tolist() == [0, 4]
    rows = oracle.sample_rows(10**6, 4096)
    assert (rows[0], rows[-1]) == (0, 10**6 - 1)
    assert 2 <= len(rows) <= 256
    assert oracle.sample_rows(3, 5).tolist() == [0, 1, 2]
    assert oracle.sample_rows(1, 2**30).tolist() == [0]
    monkeypatch.setattr(oracle, "_CHECKED_ELEMENTS", 2000)
    monkeypatch.setattr(oracle, "_WHOLE_ELEMENTS", 4000)
    for f in (lambda x: kf.layernorm(x) * 2, lambda x: x / x.sum(), lambda x: (x + 1).sum(), lambda x: x.astype("i4")):
        kf.compare(f, random((100, 60)), **QUICK | {"peers": ["numpy"]})
        kf.compare(f, random((7000,)), **QUICK)


# ---- what is wrong --------------------------------------------------------------------------------------------------


SMALL = random((2, 4))


def writes(x):
    x *= 2
    return x + 1


def test_bad_arguments(monkeypatch):
    def called(f=FUSED, x=SMALL, **options):
        return lambda: kf.compare(f, x, **QUICK | options)

    def one(x):
        return kf.exp(x) if hasattr(x, "shape") else x

    monkeypatch.setitem(sys.modules, "jax", None)
    refusals([
        (called(random((2, 2))), TypeError, r"must be a function of arrays.*ndarray"),
        (called(x=random((0, 4))), ValueError, r"must not be empty.*\(0, 4\)"),
        (called(x=random((4, 0))), ValueError, r"must not be empty.*\(4, 0\)"),
        (called(x=[[1.0, 2.0]]), TypeError, "list"),
        (called(x=np.ones((2, 3), np.int32)), TypeError, "int32"),
        (called(weight=np.ones(3, np.float32)), ValueError, r"weight.*\(4,\).*\(3,\)"),
        (called(repeats=0), ValueError, "at least 1, got 0"),
        (called(cache="warm"), ValueError, "'cold', 'hot' or None, got 'warm'"),
        (called(peers="numpy"), TypeError, "list of names"),
        (called(peers=["numba"]), ValueError, "numba"),
        (called(peers=["jax"]), ImportError, "the peer 'jax' cannot be imported"),
        (called(one, random((0, 4))), ValueError, r"x must not be empty.*\(0, 4\)"),
        (called(one, kf.spec((3, 4))), TypeError, "x must be an array, got spec"),
        (lambda: kf.compare(one), TypeError, "missing a required argument"),
        (called(one, 3.0), TypeError, "must be an array, got float"),
        (called(writes), TypeError, "writes writes to x, which every timed call would do again"),
    ])  # fmt: skip


class Instead:
    """A function in the place of a kernel, with its plan."""

    def __init__(self, kernel, function):
        self.plan, self.function = kernel.plan, function

    def __call__(self, *args, **keywords):
        return self.function(*args, **keywords)


def test_wrong_results_stop_before_measuring(monkeypatch):
    def wrong(x, *, out=None, stream=None):
        out = np.empty_like(x) if out is None else out
        FUSED(x, out=out)
        out[-1, 3] += 1e-2
        return out

    def forgetful(x, *, out=None, stream=None):
        result = FUSED(x)
        if out is None:
            return result
        out[1:] = result[1:]
        return out

    def no_measuring(*args, **kwargs):
        raise RuntimeError("measured a wrong kernel")

    def check(place, broken, message, limit):
        made = _versions.versions_of(FUSED)
        pair = made._replace(**{place: Instead(getattr(made, place), broken)})
        monkeypatch.setattr(_versions, "versions_of", lambda f: pair)
        monkeypatch.setattr(oracle, "_CHECKED_ELEMENTS", limit)
        with pytest.raises(AssertionError, match=message):
            kf.compare(FUSED, random((9, 8)), **QUICK | {"cache": None})
        monkeypatch.undo()
        monkeypatch.setattr(_timing, "measure", no_measuring)

    monkeypatch.setattr(_timing, "measure", no_measuring)
    says = r"float64 reference differ in 1 of .* column 3"
    rows = [("fused", wrong, says, 10**6), ("unfused", wrong, says, 10**6), ("fused", wrong, "float64 reference", 10)]
    sweep(check, [*rows, ("fused", forgetful, "nan", 10**6)])


def test_peers_that_cannot_are_notes(monkeypatch):
    right = peers.program

    def broken(*args):
        raise TypeError("no such dtype here")

    def wrong(*given):
        return lambda *arrays: [y + 1 for y in right(*given)(*arrays)]

    def check(place, put, function, name, message):
        with monkeypatch.context() as context:
            context.setattr(peers, place, put)
            c = kf.compare(function, random((4, 6)), random(6), **QUICK | {"peers": [name]})
        (note,) = c.notes
        assert note.startswith(message)
        assert not any(row.is_peer for row in c.rows)
        assert " ".join(note.split()) in " ".join(str(c).split())

    rows = [
        ("program", broken, FUSED, "numpy", "numpy is left out: no such dtype here"),
        ("load", lambda name: None, FUSED, "cupy", "cupy is left out: it has no arrays on the CPU."),
        ("program", wrong, relu_chain, "numpy",
         "numpy is left out: numpy and the float64 reference differ in 24 of 24"),
    ]  # fmt: skip
    sweep(check, rows)


def test_default_peers_import_nothing():
    code = (
        "import sys, numpy as np, kfusion as kf\n"
        "c = kf.compare(kf.fused_relu_layernorm, np.ones((4, 8), 'float32'), cache='hot', repeats=1)\n"
        "heavy = {'torch', 'jax', 'cupy', 'matplotlib'} & set(sys.modules)\n"
        "print([r.name for r in c.rows if r.is_peer], sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "['numpy'] []"


@pytest.mark.slow
def test_compiled_peers():
    pytest.importorskip("torch")
    c = kf.compare(lambda x: kf.gelu(x) + 1, random((8, 64)), **QUICK | {"peers": ["torch.compile"]})
    left_out = [note for note in c.notes if "torch.compile" in note]  # where there is no compiler, say
    assert left_out or c.row("torch.compile").max_abs_error < 1e-5


# ---- measuring ------------------------------------------------------------------------------------------------------


def test_progress():
    seen = []
    kf.compare(FUSED, random((8, 8)), progress=lambda done, what: seen.append((done, what)), **QUICK)
    fractions = [done for done, _ in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert all(isinstance(what, str) and what for _, what in seen)

    def stop(done, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kf.compare(FUSED, random((8, 8)), progress=stop, **QUICK)


def scheduled(repeats, budget_s=0.0):
    """Samples, and what ran, by a clock that only counts."""
    log = []

    class Clock:
        def sample(self, run):
            log.append(run())
            return [2.0 if run() == "copy" else 4.0]

    variants = [_timing.Variant("a", lambda: "a"), _timing.Variant("b", lambda: "b", is_peer=True)]
    options = {"repeats": repeats, "budget_s": budget_s, "seed": 0, "progress": lambda done, what: None}
    return _timing.measure(variants, _timing.Variant("copy", lambda: "copy"), Clock(), **options), log


def test_the_schedule():
    samples, log = scheduled(repeats=6)
    assert log[::2] == ["copy"] * 12  # before every sample
    assert sorted(log[1::2]) == ["a"] * 6 + ["b"] * 6
    assert sorted(log[1:4:2]) == ["a", "b"]  # one of each first, for an estimate
    assert log[1::2] not in (["a"] * 6 + ["b"] * 6, ["b"] * 6 + ["a"] * 6)
    assert samples["a"].copy_ratios == [0.5] * 6
    assert samples["a"].percentile_us(50) == 4.0
    samples, _ = scheduled(repeats=None)  # no budget still takes a few
    assert len(samples["a"].times_us) == _timing._MIN_SAMPLES
    assert len(samples["b"].times_us) == _timing._MIN_PEER_SAMPLES
    samples, _ = scheduled(repeats=None, budget_s=1e9)  # a large one is bounded
    assert len(samples["a"].times_us) == _timing._MAX_SAMPLES


# ---- libraries ------------------------------------------------------------------------------------------------------


def test_libraries_are_told_apart_by_types():
    class Matrix(np.ndarray):
        __module__ = "torch"

    assert _arrays.kind(np.ones(3).view(Matrix)) == "numpy"
    assert _arrays.kind(np.float32(1)) == "numpy"
    assert _arrays.kind(decimal.Decimal(1)) == "decimal"
    assert _arrays.kind(pytest.importorskip("jax.numpy").ones(3)) == "jax"
    torch = pytest.importorskip("torch")
    assert _arrays.kind(torch.ones(3)) == "torch"
    assert _arrays.kind(torch.nn.Parameter(torch.ones(3))) == "torch"
    assert _arrays.kind(type("Tensor", (torch.Tensor,), {"__module__": "model"})()) == "torch"
