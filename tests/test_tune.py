"""`kfusion.tune`: what it measures, keeps and has plans choose; with executors of the CPU."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys

import numpy as np
import pytest

import kfusion as kf
from cpu_products import require_blas
from kfusion import _core, _times
from kfusion._cli.main import main
from tracing import Traces

pytestmark = pytest.mark.native
require_blas()

DEVICE = "a device"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Nothing is known at the beginning, and in the end."""
    monkeypatch.setenv("KFUSION_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("KFUSION_TUNE", raising=False)
    monkeypatch.setattr(_times, "_seen", ())
    _times.refresh()
    yield tmp_path / "kfusion"
    monkeypatch.setenv("KFUSION_TUNE", "off")
    _times.refresh()
    _core.set_measured({})


def gelu_of_product(x, w):
    return kf.gelu(x @ w)


@pytest.fixture
def arrays(rng):
    return rng.standard_normal((96, 64)).astype(np.float32), rng.standard_normal((64, 160)).astype(np.float32)


def executors(f, *arrays):
    return [g.executor for g in f.plan(*arrays).groups]


def change(folder, edit):
    """The file as `edit` makes it of the kernels of each device."""
    plain = json.loads((folder / _times.FILE).read_text())
    for kernels in plain["devices"].values():
        edit(kernels)
    (folder / _times.FILE).write_text(json.dumps(plain))
    return plain["devices"]


def pretend(folder, **us):
    """That executors took so long."""

    def edit(kernels):
        for record in kernels.values():
            record["times_us"] = {name: us.get(name, 1.0) for name in record["times_us"]}

    change(folder, edit)


@pytest.fixture
def slow_products(folder, arrays):
    """A product and what follows it were measured, and are said to take long in one kernel."""
    kf.tune(gelu_of_product, *arrays)
    pretend(folder, cpu_products=1e6)


TWO, ONE = ["array_library", "cpu"], ["cpu_products"]


def test_what_is_measured_and_kept(folder, arrays):
    steps = []
    tuned = kf.tune(gelu_of_product, *arrays, progress=lambda fraction, what: steps.append((fraction, what)))
    assert {k.label: set(k.measured_us) for k in tuned.kernels} == {
        "matmul+gelu": {"cpu_products"},
        "matmul": {"array_library"},
        "gelu": {"cpu"},
    }
    for k in tuned.kernels:
        assert set(k.predicted_us) == set(k.measured_us)
        assert k.winner in k.measured_us
        assert not k.problems
        assert all(us > 0 for us in (*k.measured_us.values(), *k.predicted_us.values()))
    assert steps[-1] == (1.0, "done")
    assert tuned.path == str(folder / _times.FILE)
    (kernels,) = change(folder, lambda kernels: None).values()
    assert {r["label"]: r["times_us"] for r in kernels.values()} == {k.label: k.measured_us for k in tuned.kernels}
    for record in kernels.values():
        assert record["versions"]["kfusion"] == kf.__version__
    text = str(tuned)
    assert "cpu_products" in text
    assert tuned.path.split("/")[-1] in text.replace("\n", "")
    assert json.dumps(tuned.to_dict())


def test_plans_choose_by_what_was_measured(folder, arrays):
    f = kf.fuse(gelu_of_product)
    before = f(*arrays)
    kf.tune(f, *arrays)
    for slow, chosen in (("cpu_products", TWO), ("array_library", ONE)):
        pretend(folder, **{slow: 1e6})
        plan = kf.fuse(gelu_of_product).plan(*arrays)
        assert [g.executor for g in plan.groups] == chosen
        assert all(g.measured for g in plan.groups)
        assert plan.fused.time_us == len(chosen)
        assert all(g.predicted_us > 1 for g in plan.groups)
        assert "was measured; predicted" in " ".join(str(plan).split())
        np.testing.assert_allclose(f(*arrays), before, rtol=1e-5, atol=1e-5)


def test_functions_plan_again(folder, arrays):
    """Those that have run, too."""
    traces = Traces()

    def f(x, w):
        traces()
        return gelu_of_product(x, w)

    fused = kf.fuse(f)
    fused(*arrays)
    fused(*arrays)
    assert len(traces) == 1
    kf.tune(f, *arrays)
    tuned = len(traces)
    for _ in range(3):
        fused(*arrays)
    assert len(traces) == tuned + 1


def test_a_folder_that_makes_no_sense(arrays, monkeypatch):
    """Keeps nobody from planning; only what would write there says so."""
    monkeypatch.setenv("KFUSION_CACHE_DIR", "here")
    assert executors(kf.fuse(gelu_of_product), *arrays) == ["cpu_products"]
    with pytest.raises(ValueError, match="KFUSION_CACHE_DIR must be the absolute path"):
        kf.tune(gelu_of_product, *arrays)


def test_what_is_as_before(folder, arrays, slow_products):
    """Other shapes, dtypes and devices; another function with the same kernels is not."""
    x, w = arrays
    f = kf.fuse(gelu_of_product)
    assert executors(f, *arrays) == TWO
    assert executors(kf.fuse(lambda a, b: kf.gelu(a @ b)), *arrays) == TWO
    assert executors(f, x[:90], w) == ONE
    assert not any(g.measured for g in f.plan(x[:90], w).groups)
    assert executors(f, x.astype(np.float64), w.astype(np.float64)) == ONE
    plan = kf.plan(gelu_of_product, *arrays, device="EPYC-9654", executors="available")
    assert [g.executor for g in plan.groups] == ONE


def test_times_that_do_not_count(folder, arrays, slow_products):
    """Those of other versions; and plans that are partly known are compared as predicted."""

    def forget(kernels):
        for key in [k for k, r in kernels.items() if r["label"] == "gelu"]:
            del kernels[key]

    def of_another_version(kernels):
        for record in kernels.values():
            record["versions"].update(numpy="1.0")

    for edit in (forget, of_another_version):
        kf.tune(gelu_of_product, *arrays)
        pretend(folder, cpu_products=1e6)
        assert executors(kf.fuse(gelu_of_product), *arrays) == TWO
        change(folder, edit)
        assert executors(kf.fuse(gelu_of_product), *arrays) == ONE


def test_half_types(folder, rng):
    torch = pytest.importorskip("torch")
    x, w = torch.randn(64, 64, dtype=torch.bfloat16), torch.randn(64, 64, dtype=torch.bfloat16)
    tuned = kf.tune(lambda x, w: torch.relu(x @ w), x, w)
    (alone,) = [k for k in tuned.kernels if k.label == "matmul"]
    assert set(alone.measured_us) == {"cpu_products", "array_library"}
    product = kf.fuse(lambda x, w: x @ w)
    assert executors(product, x, w) == [alone.winner]
    quickest = min(alone.predicted_us, key=alone.predicted_us.get)

    def keep_one(kernels):
        for record in kernels.values():
            record["times_us"] = {quickest: 1e6} if quickest in record["times_us"] else {}

    change(folder, keep_one)  # what was measured is not compared with what was not
    assert executors(product, x, w) == [quickest]


def test_layouts_and_indices(folder, rng):
    assert kf.tune(kf.relu, rng.standard_normal((96, 64))).kernels == ()
    assert not (folder / _times.FILE).exists()
    x = rng.standard_normal((64, 200)).astype(np.float32)[:, ::2]
    w, t = rng.standard_normal((300, 100)).astype(np.float32).T[::-1], rng.integers(0, 300, 64)
    tuned = kf.tune(lambda x, w, t: kf.tanh(x @ w) * (kf.take(x, t, axis=0) @ w), x, w, t // 5)
    assert tuned.kernels
    assert not any(k.problems for k in tuned.kernels)


def test_what_cannot_be_measured_is_said(folder, rng):
    """A pick, whose index is known to have a position only within its function."""
    x, w, t = rng.standard_normal((64, 20)), rng.standard_normal((20, 300)), rng.integers(0, 300, 64)
    tuned = kf.tune(lambda x, w, t: kf.cross_entropy(x @ w, t), x, w, t)
    (whole,) = [k for k in tuned.kernels if k.problems]
    assert "alone it would be computed otherwise" in whole.problems["cpu_products"]
    assert "cpu_products could not be measured" in str(tuned)


def test_off(folder, arrays, slow_products, monkeypatch):
    before = (folder / _times.FILE).read_bytes()
    monkeypatch.setenv("KFUSION_TUNE", "off")
    f = kf.fuse(gelu_of_product)
    assert executors(f, *arrays) == ONE
    tuned = kf.tune(f, *arrays)
    assert tuned.path == ""
    assert "Kept nowhere" in str(tuned)
    assert (folder / _times.FILE).read_bytes() == before
    monkeypatch.setenv("KFUSION_TUNE", "perhaps")
    with pytest.raises(ValueError, match="KFUSION_TUNE must be on or off, got 'perhaps'"):
        f.plan(*arrays)


SECOND = """
import sys
import numpy as np
import kfusion as kf
x, w = np.ones((96, 64), np.float32), np.ones((64, 160), np.float32)
f = kf.fuse(lambda x, w: kf.gelu(x @ w))
f(x, w)
print(*(g.executor for g in f.plan(x, w).groups), f.plan(x, w).fused.time_us)
"""


def test_a_second_process_uses_it(slow_products):
    said = subprocess.run([sys.executable, "-c", SECOND], check=True, capture_output=True, text=True)
    assert said.stdout.split() == [*TWO, "2.0"]


DAMAGED = (
    "", "{", "[]", "{}", '{"schema": 2, "devices": {}}', '{"schema": 1}', '{"schema": 1, "devices": [1]}', "\x00\xff",
    '{"schema": 1, "devices": {"d": {"k": {"versions": {}, "times_us": {"cpu": "soon"}}}}}',
    '{"schema": 1, "devices": {"d": {"k": {"versions": {}, "times_us": {"cpu": -1}}}}}',
)  # fmt: skip


def test_a_damaged_file_is_ignored(folder, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for text in DAMAGED:
        f = kf.fuse(gelu_of_product)  # which looks at the file for its first plan
        (folder / _times.FILE).write_bytes(text.encode("latin-1"))
        with pytest.warns(RuntimeWarning, match=r"times.json is ignored"):
            f(*arrays)
        assert executors(f, *arrays) == ONE
    with pytest.warns(RuntimeWarning, match="is ignored"):  # and replaced
        kf.tune(f, *arrays)
    assert change(folder, lambda kernels: None)


def _write(number):
    for i in range(8):
        key = f"{number} {i}"
        _times.add(DEVICE, {key: {"times_us": {"cpu": 1.0 + i}, "versions": _times.versions("numpy")}})


@pytest.mark.slow
def test_concurrent_writers(folder):
    """Lose nothing of each other, and nobody sees half a file."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(_write, range(3))
    kernels = change(folder, lambda kernels: None)[DEVICE]
    assert len(kernels) == 24
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


def test_interrupted(folder, arrays, slow_products):
    before = (folder / _times.FILE).read_bytes()

    def stop(fraction, what):
        if fraction > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kf.tune(lambda x, w: kf.tanh(x @ w), *arrays, progress=stop)
    assert (folder / _times.FILE).read_bytes() == before


def test_methods_and_the_command(folder, arrays, tmp_path, capsys):
    class Layer:
        def __init__(self, w):
            self.w = w

        @kf.fuse
        def apply(self, x):
            return kf.gelu(x @ self.w)

    labels = {"matmul+gelu", "matmul", "gelu"}
    x, w = arrays
    assert {k.label for k in kf.tune(Layer(w).apply, x).kernels} == labels
    (tmp_path / "mine.py").write_text("import kfusion as kf\ndef f(x, w):\n    return kf.gelu(x @ w)\n")
    command = ["tune", f"{tmp_path}/mine.py:f", "--shape", "96x64", "--shape", "64x160"]
    assert main([*command, "--json"]) == 0
    said = capsys.readouterr()
    assert {k["label"] for k in json.loads(said.out)["kernels"]} == labels
    assert "done" in said.err or "100%" in said.err
    assert main(command) == 0
    assert "cpu_products" in capsys.readouterr().out
