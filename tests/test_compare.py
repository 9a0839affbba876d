"""kfusion.compare: what it checks, measures and returns. Nothing here asserts a time."""

from __future__ import annotations

import dataclasses
import decimal
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

import kfusion as kf
from kfusion import _arrays, _core, _timing
from kfusion._compare import oracle, peers
from kfusion._compare import versions as _versions

FUSED = kf.fused_relu_layernorm
QUICK = {"repeats": 1, "peers": ()}


def random(shape, dtype="float32"):
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.fixture(scope="module")
def comparison():
    return kf.compare(FUSED, random((64, 96)), repeats=2, peers=["numpy"])


def test_rows_and_states(comparison):
    assert comparison.caches == ("cold", "hot")
    names = ["unfused", "fused", "fused, again", "fused, fresh", "copy", "numpy"]
    for cache in comparison.caches:
        assert [row.name for row in comparison.rows if row.cache == cache] == names
    for row in comparison.rows:
        assert 0 < row.p20_us <= row.median_us <= row.p80_us
        assert row.copy_pct > 0
        assert row.is_peer == (row.name == "numpy")


def test_counts_follow_from_the_plan(comparison):
    fused, unfused, copy = (comparison.row(name) for name in ("fused", "unfused", "copy"))
    matrix_bytes, statistics = 64 * 96 * 4, 64 * 4  # of the unfused kernels: mean twice, variance
    assert (unfused.launches, unfused.moved_bytes) == (5, 8 * matrix_bytes + 5 * statistics)
    assert (fused.launches, fused.moved_bytes) == (1, 2 * matrix_bytes)
    assert (copy.launches, copy.moved_bytes) == (1, 2 * matrix_bytes)
    assert fused.gbps == pytest.approx(fused.moved_bytes / (fused.median_us * 1e-6) / 1e9)
    assert fused.speedup == pytest.approx(fused.copy_pct / unfused.copy_pct)
    assert unfused.speedup == 1.0
    assert copy.copy_pct == 100.0
    peer = comparison.row("numpy")
    assert (peer.launches, peer.moved_bytes, peer.gbps) == (None, None, None)


def test_known_traffic_of_4096_by_1024_float32():
    predicted = kf.fused_relu_layernorm.plan(kf.spec((4096, 1024))).savings
    assert (round(predicted["unfused_bytes"] / 1e6), round(predicted["fused_bytes"] / 1e6, 2)) == (134, 33.55)
    assert predicted["speedup_estimate"] == pytest.approx(4.0, rel=0.01)


def test_prediction_comes_from_the_plan(comparison):
    assert comparison.predicted == FUSED.plan(kf.spec((64, 96))).savings
    assert comparison.speedup == comparison.row("fused", "cold").speedup


def test_to_dict_is_json(comparison):
    plain = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert (plain["shape"], plain["dtype"], plain["array"], plain["device"]) == ([64, 96], "float32", "numpy", "cpu")
    assert {"name", "threads", "isa", "caches_bytes"} <= set(plain["hardware"]["cpu"])
    assert {"python", "kfusion", "numpy"} <= set(plain["versions"])
    assert len(plain["rows"]) == len(comparison.rows)
    assert plain["predicted_speedup"] == pytest.approx(4.0, rel=0.02)


def test_plain_text(comparison):
    text = str(comparison)
    for word in ("x: float32[64,96]", "cold cache", "hot cache", "launches", "by bytes", "GB/s", "% copy", "predicted"):
        assert word in text
    assert "\x1b" not in text
    assert repr(comparison).startswith("<Comparison: relu_layernorm(x: float32[64,96]) on ")


def test_rich_on_a_terminal_fits_80_columns(comparison, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    text = str(comparison)
    assert "\x1b" in text
    for name in ("fused, again", "speedup", "error", "100"):
        assert name in text


def test_html(comparison):
    page = comparison._repr_html_()
    assert page.count("<table>") == 2
    assert page.count("</tr>") == 2 * 7


def test_unknown_row(comparison):
    with pytest.raises(KeyError, match="cupy"):
        comparison.row("cupy")


def test_plot_returns_a_closed_figure_and_saves(comparison, tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    before = plt.get_fignums()
    figure = comparison.plot(tmp_path / "picture.png")
    assert plt.get_fignums() == before
    assert len(figure.axes) == 2
    with Image.open(tmp_path / "picture.png") as image:
        image.verify()
    assert [p.name for p in tmp_path.iterdir()] == ["picture.png"]


def test_plot_into_given_axes(comparison):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots()
    assert comparison.plot(ax=ax, cache="hot") is figure
    assert "hot cache" in ax.get_title(loc="left")
    assert plt.get_fignums() == []


def test_failing_plot_leaves_no_file(comparison, tmp_path):
    with pytest.raises(ValueError, match="nonsense"):
        comparison.plot(tmp_path / "picture.nonsense")
    assert list(tmp_path.iterdir()) == []


def test_unfused_means_the_same_pair():
    c = kf.compare(kf.unfused_relu_layernorm, random((8, 8)), cache="hot", **QUICK)
    assert {row.name for row in c.rows} == {"unfused", "fused", "fused, again", "fused, fresh", "copy"}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (7,), (3, 5, 17), (2, 1, 1023)])
def test_shapes_and_dtypes_with_parameters(shape, dtype):
    w, b = random(shape[-1]).astype(dtype), random(shape[-1]).astype(dtype)
    c = kf.compare(FUSED, random(shape, dtype), w, b, eps=1e-3, cache="cold", **QUICK)
    assert (c.shape, c.dtype) == (shape, dtype)
    assert c.arguments["eps"] == "0.001"
    assert c.arguments["weight"] == c.arguments["bias"] == f"{dtype}[{shape[-1]}]"
    assert c.row("fused").max_abs_error >= 0


def test_bfloat16_and_all_cpu_peers():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    installed = [n for n in ("numpy", "torch", "jax") if n == "numpy" or pytest.importorskip(n)]
    c = kf.compare(FUSED, random((16, 64), ml_dtypes.bfloat16), random(64), cache="hot", repeats=1, peers=installed)
    assert [row.name for row in c.rows if row.is_peer] == installed
    assert c.notes == ()
    for name in installed:
        assert c.row(name).max_abs_error < 0.1


def test_strided_and_read_only_arrays_are_left_as_they_are():
    x = random((64, 40))[::-2, 1::3]
    x.flags.writeable = False
    before = x.copy()
    c = kf.compare(FUSED, x, cache="hot", repeats=1, peers=["numpy"])
    assert c.shape == (32, 13)
    np.testing.assert_array_equal(x, before)


def test_non_finite_rows_agree():
    x = random((6, 32))
    x[1, 3], x[2, 4], x[3] = np.nan, np.inf, -1.0
    kf.compare(FUSED, x, cache="hot", **QUICK)


def test_torch_arrays():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(random((16, 32))).to(torch.bfloat16)
    c = kf.compare(FUSED, x, torch.ones(32), cache="hot", repeats=1, peers=["torch", "numpy"])
    assert (c.array, c.dtype) == ("torch", "bfloat16")
    numpy_too = {"numpy"} if importlib.util.find_spec("ml_dtypes") else set()
    assert {row.name for row in c.rows if row.is_peer} == {"torch"} | numpy_too


def test_jax_arrays_have_no_out():
    jnp = pytest.importorskip("jax.numpy")
    c = kf.compare(FUSED, jnp.asarray(random((16, 32))), cache="hot", **QUICK)
    assert c.array == "jax"
    assert "fused, fresh" not in {row.name for row in c.rows}


def test_default_peers_import_nothing():
    code = (
        "import sys, numpy as np, kfusion as kf\n"
        "c = kf.compare(kf.fused_relu_layernorm, np.ones((4, 8), 'float32'), cache='hot', repeats=1)\n"
        "heavy = {'torch', 'jax', 'cupy', 'matplotlib'} & set(sys.modules)\n"
        "print([r.name for r in c.rows if r.is_peer], sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "['numpy'] []"


def test_a_peer_that_cannot_is_a_note(monkeypatch):
    def broken(*args):
        raise TypeError("no such dtype here")

    monkeypatch.setattr(peers, "program", broken)
    c = kf.compare(FUSED, random((4, 8)), cache="hot", repeats=1, peers=["numpy"])
    assert c.notes == ("numpy is left out: no such dtype here",)
    assert not any(row.is_peer for row in c.rows)
    assert c.notes[0] in str(c)


def test_cupy_named_on_the_cpu_is_a_note(monkeypatch):
    monkeypatch.setattr(peers, "load", lambda name: None)
    c = kf.compare(FUSED, random((4, 8)), cache="hot", repeats=1, peers=["cupy"])
    assert c.notes == ("cupy is left out: it has no arrays on the CPU.",)


def test_a_peer_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match="the peer 'jax' cannot be imported"):
        kf.compare(FUSED, random((4, 8)), peers=["jax"])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"f": random((2, 2))}, TypeError, r"must be a function of arrays.*ndarray"),
        ({"x": random((0, 4))}, ValueError, r"must not be empty.*\(0, 4\)"),
        ({"x": random((4, 0))}, ValueError, r"must not be empty.*\(4, 0\)"),
        ({"x": [[1.0, 2.0]]}, TypeError, "list"),
        ({"x": np.ones((2, 3), np.int32)}, TypeError, "int32"),
        ({"weight": np.ones(3, np.float32)}, ValueError, r"weight.*\(4,\).*\(3,\)"),
        ({"repeats": 0}, ValueError, "at least 1, got 0"),
        ({"cache": "warm"}, ValueError, "'cold', 'hot' or None, got 'warm'"),
        ({"peers": "numpy"}, TypeError, "list of names"),
        ({"peers": ["numba"]}, ValueError, "numba"),
    ],
)
def test_bad_arguments(change, error, message):
    arguments = {"f": FUSED, "x": random((2, 4)), "repeats": 1, "peers": (), "cache": "hot"} | change
    with pytest.raises(error, match=message):
        kf.compare(**arguments)


class Instead:
    """A function in the place of a kernel, with its plan."""

    def __init__(self, kernel, function):
        self.plan, self.function = kernel.plan, function

    def __call__(self, *args, **keywords):
        return self.function(*args, **keywords)


def put_in_place(monkeypatch, broken, function):
    made = _versions.versions_of(FUSED)
    pair = made._replace(**{broken: Instead(getattr(made, broken), function)})
    monkeypatch.setattr(_versions, "versions_of", lambda f: pair)


@pytest.mark.parametrize("broken", ["fused", "unfused"])
def test_a_wrong_result_stops_before_measuring(monkeypatch, broken):
    def wrong(x, *, out=None, stream=None):
        out = np.empty_like(x) if out is None else out
        FUSED(x, out=out)
        out[-1, 3] += 1e-2
        return out

    def no_measuring(*args, **kwargs):
        raise RuntimeError("measured a wrong kernel")

    put_in_place(monkeypatch, broken, wrong)
    monkeypatch.setattr(_timing, "measure", no_measuring)
    with pytest.raises(AssertionError, match=r"float64 reference differ in 1 of .* column 3"):
        kf.compare(FUSED, random((9, 8)), **QUICK)


def test_an_element_that_is_not_written_is_found(monkeypatch):
    def forgetful(x, *, out=None, stream=None):
        result = FUSED(x)
        if out is None:
            return result
        out[1:] = result[1:]
        return out

    put_in_place(monkeypatch, "fused", forgetful)
    with pytest.raises(AssertionError, match="nan"):
        kf.compare(FUSED, random((9, 8)), **QUICK)


def test_large_arrays_are_checked_by_whole_rows_with_both_ends():
    assert oracle.sample_rows(5, 10**9).tolist() == [0, 4]
    rows = oracle.sample_rows(10**6, 4096)
    assert (rows[0], rows[-1]) == (0, 10**6 - 1)
    assert 2 <= len(rows) <= 256
    assert oracle.sample_rows(3, 5).tolist() == [0, 1, 2]
    assert oracle.sample_rows(1, 2**30).tolist() == [0]


def test_progress_rises_from_0_to_1():
    seen = []
    kf.compare(FUSED, random((8, 8)), progress=lambda done, what: seen.append((done, what)), **QUICK)
    fractions = [done for done, _ in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert all(isinstance(what, str) and what for _, what in seen)


def test_an_error_in_progress_comes_through():
    def stop(done, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kf.compare(FUSED, random((8, 8)), progress=stop, **QUICK)


class TestMeasure:
    """The schedule, with a clock that only counts."""

    def run(self, repeats, budget_s=0.0):
        log = []

        class Clock:
            def sample(self, run):
                log.append(run())
                return [2.0 if run() == "copy" else 4.0]

        variants = [_timing.Variant("a", lambda: "a"), _timing.Variant("b", lambda: "b", is_peer=True)]
        copy = _timing.Variant("copy", lambda: "copy")
        samples = _timing.measure(
            variants, copy, Clock(), repeats=repeats, budget_s=budget_s, seed=0, progress=lambda done, what: None
        )
        return samples, log

    def test_a_copy_before_every_sample(self):
        samples, log = self.run(repeats=6)
        assert log[::2] == ["copy"] * 12
        assert sorted(log[1::2]) == ["a"] * 6 + ["b"] * 6
        assert sorted(log[1:4:2]) == ["a", "b"]  # one of each first, for an estimate
        assert log[1::2] not in (["a"] * 6 + ["b"] * 6, ["b"] * 6 + ["a"] * 6)
        assert samples["a"].copy_ratios == [0.5] * 6
        assert samples["a"].percentile_us(50) == 4.0

    def test_no_budget_still_takes_a_few_samples(self):
        samples, _ = self.run(repeats=None)
        assert len(samples["a"].times_us) == _timing._MIN_SAMPLES
        assert len(samples["b"].times_us) == _timing._MIN_PEER_SAMPLES

    def test_a_large_budget_is_bounded(self):
        samples, _ = self.run(repeats=None, budget_s=1e9)
        assert len(samples["a"].times_us) == _timing._MAX_SAMPLES


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


@pytest.mark.parametrize("to", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_conversions_keep_values_and_dtype(to, dtype):
    pytest.importorskip(to)
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    x = random((6, 8), kind)[::2, ::-1]
    converted = _arrays.convert(x, to)
    assert (_arrays.kind(converted), _arrays.dtype_name(converted)) == (to, dtype)
    np.testing.assert_array_equal(_arrays.host_rows(converted, np.array([0, 2])), x[[0, 2]].astype(np.float64))


@pytest.mark.cuda
@pytest.mark.skipif(_core.cuda_device_count() == 0, reason="needs an NVIDIA GPU")
def test_our_own_gpu_array():
    c = kf.compare(FUSED, kf.to_device(random((256, 1024))), repeats=1)
    assert (c.array, c.device) == ("kfusion", "cuda")
    assert json.loads(json.dumps(c.to_dict()))["hardware"]["gpu"]["name"]


def relu_chain(x, b):
    return np.log(np.maximum(x * 2 + b, 0) + 1)


INSTALLED = [
    n for n in ("numpy", "numexpr", "torch", "jax", "jax.jit") if importlib.util.find_spec(n.partition(".")[0])
]


@pytest.fixture(scope="module")
def chain():
    return kf.compare(relu_chain, random((64, 96)), random(96), repeats=2, peers=INSTALLED)


class TestAnyFunction:
    def test_versions_and_all_peers(self, chain):
        assert [row.name for row in chain.rows if row.is_peer and row.cache == "hot"] == INSTALLED
        assert chain.notes == ()
        assert all(row.max_abs_error < 1e-5 for row in chain.rows if row.name != "copy")
        assert chain.max_difference == 0

    def test_counts_come_from_the_plan(self, chain):
        plan = kf.plan(relu_chain, kf.spec((64, 96)), kf.spec(96))
        fused, unfused, copy = (chain.row(name) for name in ("fused", "unfused", "copy"))
        assert (fused.launches, unfused.launches) == (1, 5)
        assert (fused.moved_bytes, unfused.moved_bytes) == (plan.fused.issued.total, plan.unfused.issued.total)
        assert fused.moved_bytes == 4 * (64 * 96 * 2 + 96)
        assert abs(copy.moved_bytes - fused.moved_bytes) <= 8
        assert fused.predicted_us == pytest.approx(copy.median_us * fused.moved_bytes / copy.moved_bytes)
        assert chain.predicted == plan.savings
        assert chain.predicted_speedup == plan.savings["speedup_estimate"]

    def test_text(self, chain):
        assert chain.title.startswith("relu_chain(x: float32[64,96], b: float32[96]) on ")
        text = str(chain)
        assert "by bytes" in text
        assert "passes" not in text
        assert "kfusion.plan" in text
        assert max(len(line) for line in text.splitlines() if " on " not in line) <= 80
        assert json.loads(json.dumps(chain.to_dict()))["arguments"] == {"x": "float32[64,96]", "b": "float32[96]"}

    def test_a_function_made_by_fuse_keeps_its_options(self):
        made = kf.fuse(forbid=[("softmax", "multiply")])(lambda x: kf.softmax(x) * 2)
        c = kf.compare(made, random((8, 8)), cache="hot", **QUICK)
        assert (c.row("fused").launches, c.row("unfused").launches) == (2, 2)

    def test_several_results_scalars_and_keywords(self):
        def f(x, *, scale, norm=True):
            return {"y": (kf.softmax(x) if norm else x) * scale, "sum": x.sum()}, 3

        c = kf.compare(f, random((5, 7), "float64"), scale=2.0, norm=True, cache="hot", repeats=1, peers=["numpy"])
        assert c.arguments == {"x": "float64[5,7]", "scale": "2.0", "norm": "True"}
        assert [row.name for row in c.rows if row.is_peer] == ["numpy"]

    def test_torch_functions_of_torch_tensors(self):
        torch = pytest.importorskip("torch")

        def f(x):
            return torch.nn.functional.gelu(x, approximate="tanh").sum(-1)

        c = kf.compare(f, torch.from_numpy(random((6, 5))), cache="hot", repeats=1, peers=["torch", "numpy"])
        assert [row.name for row in c.rows if row.is_peer] == ["numpy", "torch"][::-1]

    @pytest.mark.parametrize(
        "f",
        [lambda x: kf.layernorm(x) * 2, lambda x: x / x.sum(), lambda x: (x + 1).sum(), lambda x: x.astype("int32")],
    )
    def test_large_arrays(self, f, monkeypatch):
        monkeypatch.setattr(oracle, "_CHECKED_ELEMENTS", 2000)
        monkeypatch.setattr(oracle, "_WHOLE_ELEMENTS", 4000)
        kf.compare(f, random((100, 60)), cache="hot", repeats=1, peers=["numpy"])
        kf.compare(f, random((7000,)), cache="hot", **QUICK)

    @pytest.mark.parametrize("limit", [10, 10**6])
    def test_a_wrong_result_stops(self, monkeypatch, limit):
        monkeypatch.setattr(oracle, "_CHECKED_ELEMENTS", limit)
        versions = _versions.versions_of(kf.fuse(lambda x: x * 2))

        def wrong(x, **options):
            y = versions.fused(x)
            y[-1, 3] += 0.01
            return y

        monkeypatch.setattr(_versions, "versions_of", lambda f: versions._replace(fused=wrong))
        with pytest.raises(AssertionError, match="float64 reference"):
            kf.compare(wrong, random((9, 8)), **QUICK)

    def test_a_wrong_peer_is_a_note(self, monkeypatch):
        right = peers.program
        monkeypatch.setattr(peers, "program", lambda *given: lambda *arrays: [y + 1 for y in right(*given)(*arrays)])
        c = kf.compare(relu_chain, random((4, 6)), random(6), cache="hot", repeats=1, peers=["numpy"])
        assert len(c.notes) == 1
        assert c.notes[0].startswith("numpy is left out: numpy and the float64 reference differ in 24 of 24")

    @pytest.mark.parametrize(
        ("args", "error", "message"),
        [
            ((random((0, 4)),), ValueError, r"x must not be empty.*\(0, 4\)"),
            ((kf.spec((3, 4)),), TypeError, "x must be an array, got spec"),
            ((), TypeError, "missing a required argument"),
            ((3.0,), TypeError, "must be an array, got float"),
        ],
    )
    def test_bad_arguments(self, args, error, message):
        with pytest.raises(error, match=message):
            kf.compare(lambda x: kf.exp(x) if hasattr(x, "shape") else x, *args, **QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch.compile"])
def test_compiled_peers(name):
    pytest.importorskip("torch")
    c = kf.compare(lambda x: kf.gelu(x) + 1, random((8, 64)), cache="hot", repeats=1, peers=[name])
    left_out = [note for note in c.notes if name in note]  # where there is no compiler, say
    assert left_out or c.row(name).max_abs_error < 1e-5


@pytest.mark.parametrize(
    ("speedups", "fastest", "verdict"),
    [
        ({"fused": 4.0, "numpy": 2.0}, "fused", "Fastest with hot cache: fused, 2.00x as fast as numpy."),
        ({"fused": 2.0, "numpy": 3.0}, "numpy", "numpy, 1.50x as fast as fused. Fusing does not pay here."),
        ({"fused": 2.0, "torch.compile": 3.0}, "torch.compile", "torch.compile, 1.50x as fast as fused. "),
        ({"fused": 0.5, "torch.compile": 1.0}, "unfused", "unfused, 2.00x as fast as fused. Fusing does not pay here."),
    ],
)
def test_the_fastest_is_named(comparison, speedups, fastest, verdict):
    one = comparison.row("fused", "hot")
    rows = tuple(
        dataclasses.replace(one, name=name, speedup=speedup, is_peer="fused" not in name)
        for name, speedup in ({"unfused": 1.0, "fused, again": 9.0, "copy": 20.0} | speedups).items()
    )
    shown = dataclasses.replace(comparison, rows=rows)
    assert shown.fastest("hot").name == fastest
    assert verdict in " ".join(str(shown).split())


def test_functions_that_write_to_an_argument_are_refused(rng):
    def doubled(x):
        x *= 2
        return x + 1

    x = rng.standard_normal((4, 4))
    before = x.copy()
    with pytest.raises(TypeError, match="doubled writes to x, which every timed call would do again"):
        kf.compare(doubled, x)
    np.testing.assert_array_equal(x, before)


def test_onnx_models(tmp_path, rng):
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    from onnx_models import info, saved

    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])]
    infos = [info(name, TensorProto.FLOAT, [5, 7]) for name in "xy"]
    file, x = saved(tmp_path, nodes, infos[:1], infos[1:]), rng.standard_normal((5, 7), np.float32)
    for model in (file, kf.fuse(file)):
        made = kf.compare(model, x, peers=[], repeats=2, cache="hot")
        assert {row.name for row in made.rows} >= {"fused", "unfused"}
