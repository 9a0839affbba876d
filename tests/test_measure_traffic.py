"""`kfusion.measure_traffic` and `kfusion traffic`, with a stand-in for ncu that prints what it is given."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import kfusion as kf
from benchmarks import readme, traffic_suite
from kfusion._cli.main import main
from kfusion._devices import hardware, running
from kfusion._traffic import ncu as _ncu
from kfusion._traffic import profiled as profiled_process
from kfusion._traffic import traffic
from kinds import HAVE_GPU
from sweeps import sweep

H200 = kf.device("H200")
BIG = kf.spec((65536, 16384))  # 4.3 GB
NCU = """\
#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
(here / "arguments.json").write_text(json.dumps(sys.argv[1:]))
answer = json.loads((here / "answer.json").read_text())
if answer["log"] is not None:
    pathlib.Path(sys.argv[sys.argv.index("--log-file") + 1]).write_text(answer["log"])
print(answer["stdout"])
print(answer["stderr"], file=sys.stderr)
sys.exit(answer["status"])
"""


class FakeNcu:
    """An executable named ncu; its folder is the only one on PATH."""

    def __init__(self, folder):
        self.folder = folder
        path = folder / "ncu"
        path.write_text(NCU.format(python=sys.executable))
        path.chmod(0o755)
        self.answers("")

    def answers(self, log, stdout="", stderr="", status=0):
        answer = {"log": log, "stdout": stdout, "stderr": stderr, "status": status}
        (self.folder / "answer.json").write_text(json.dumps(answer))

    @property
    def arguments(self):
        return json.loads((self.folder / "arguments.json").read_text())


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Stands for a machine with an H200 and ncu."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(running, "device", lambda place: H200)
    return FakeNcu(folder)


def table(rows, units=None):
    """What `ncu --csv --page raw` prints of (kernel, DRAM read, DRAM written, sectors read, sectors written)."""
    metrics = {m: "byte" if "bytes" in m else "sector" for m in _ncu.METRICS} | (units or {})
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Process ID", "Kernel Name", "Grid Size", *metrics])
    writer.writerow(["", "", "", "", *metrics.values()])
    for i, (kernel, *values) in enumerate(rows):
        writer.writerow([i, 42, f"{kernel}(Parameters)", "(132, 1, 1)", *values])
    return "==PROF== Connected to process 42 (/usr/bin/python3)\n" + text.getvalue() + "==PROF== Disconnected\n"


def ideal(plan, read=1.0, left=0):
    """Rows of a GPU that reads `read` times what it must, and leaves up to `left` bytes of results in its cache."""
    for group in (*plan.unfused_groups, *plan.groups):
        moved, issued = group.compulsory, group.issued
        dram = int(moved.read * read), max(moved.written - left, 0)
        yield "kf_" + group.label, *dram, issued.read // 32, issued.written // 32


def test_predicted_beside_measured(ncu):
    plan = kf.fused_softmax.plan(BIG, device=H200)
    ncu.answers(table(ideal(plan, read=1.01, left=40_000_000)))
    t = kf.measure_traffic(kf.fused_softmax, BIG)
    assert [(k.version, k.label) for k in t.kernels] == [
        *(("unfused", g.label) for g in plan.unfused_groups),
        *(("fused", g.label) for g in plan.groups),
    ]
    (fused,) = (k for k in t.kernels if k.version == "fused")
    nbytes = 65536 * 16384 * 4
    assert (fused.compulsory.read, fused.compulsory.written) == (nbytes, nbytes)
    assert (fused.dram.read, fused.dram.written) == (int(1.01 * nbytes), nbytes - 40_000_000)
    assert (fused.l2.read, fused.l2.written) == (nbytes, nbytes)
    assert fused.function == "kf_max+subtract+exp+sum+divide"
    assert fused.ratio == pytest.approx((2.01 * nbytes - 40e6) / (2 * nbytes))
    assert t.total("fused").dram == fused.dram
    assert t.total("unfused").compulsory.read == plan.unfused.compulsory.read
    assert t.saved == pytest.approx(4.0, rel=0.01)
    assert t.is_within(fused)


def test_what_ncu_is_asked(ncu):
    ncu.answers(table(ideal(kf.fused_gelu.plan(BIG, device=H200))))
    kf.measure_traffic(kf.unfused_gelu, BIG, device=1)
    *options, python, m, module, asked = ncu.arguments
    assert (python, m, module) == (sys.executable, "-m", "kfusion._traffic.profiled")
    assert json.loads(asked) == {
        "device": 1,
        "requests": [["kfusion:unfused_gelu", [[[65536, 16384], "float32"]]]],
    }
    assert options[options.index("--profile-from-start") + 1] == "off"
    assert options[options.index("--clock-control") + 1] == "none"
    assert options[options.index("--metrics") + 1] == ",".join(_ncu.METRICS)


def test_the_verdict(ncu):
    for read, verdict in ((0.93, "no"), (1.0, "yes"), (1.05, "yes"), (1.07, "no")):
        ncu.answers(table(ideal(kf.fused_gelu.plan(BIG, device=H200), read=read)))
        *_, total, _, _ = str(kf.measure_traffic(kf.fused_gelu, BIG)).splitlines()
        assert (total.split()[0], total.split()[-1]) == ("fused", verdict)
        assert f"{(1 + read) / 2:.3f}" in total
    small = kf.spec((4096, 1024))
    ncu.answers(table(ideal(kf.fused_gelu.plan(small, device=H200), left=2**40)))
    t = kf.measure_traffic(kf.fused_gelu, small)
    assert {t.is_within(k) for k in t.kernels} == {None}
    assert "judged from 2.097 GB on" in str(t).replace("\n", " ")
    assert "judged" not in str(kf.Traffic(t.subject, t.device, 0, t.kernels))


def test_the_report(ncu):
    plan = kf.fused_layernorm.plan(BIG, kf.spec(16384), device=H200)
    ncu.answers(table(ideal(plan)))
    t = kf.measure_traffic(kf.fused_layernorm, BIG, np.ones(16384, np.float32))
    text = str(t)
    assert "layernorm(x: float32[65536,16384], weight: float32[16384]) on H200" in text.splitlines()[0]
    assert "layernorm.centre" in text
    assert "3.00x; predicted: 3.00x" in text
    assert kf.Traffic.from_dict(json.loads(json.dumps(t.to_dict()))) == t
    assert "1.000" in repr(t)
    assert "<table>" in t._repr_html_()
    with pytest.raises(ValueError, match=r"kfusion\.Traffic must have the field 'kernels'"):
        kf.Traffic.from_dict({"subject": "f", "device": "H200", "cache_bytes": 1})


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_failures_of_the_profiler(ncu):
    ours = "The application returned an error code (2)."

    def check(error, message, log, stdout="", stderr="", status=0):
        ncu.answers(log, stdout, stderr, status)
        with pytest.raises(error, match=message) as info:
            kf.measure_traffic(kf.fused_gelu, BIG)
        assert str(info.value).startswith("kfusion")

    one = [("k", 1, 1, 1, 1)]
    sweep(check, [
        (PermissionError, "run as root.*NVreg_RestrictProfilingToAdminUsers=0",
         "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "", "", 1),
        (PermissionError, "ERR_NVGPUCTRPERM", None, "==ERROR== ERR_NVGPUCTRPERM - "),
        (RuntimeError, "ncu failed: Failed to initialize the profiler: LibraryNotLoaded",
         "==ERROR== Failed to initialize the profiler: LibraryNotLoaded", "", "", 9),
        (RuntimeError, "ended with 137", "", "", "", 137),
        (RuntimeError, "^kfusion: no memory$", f"==ERROR== {ours}", "", "x\nkfusion: no memory", 2),
        (RuntimeError, "under ncu: Bus error", "", "", "Bus error", 135),
        (RuntimeError, "have 6 kernels, but ncu saw 0: none", "==WARNING== No kernels were profiled."),
        (RuntimeError, "ncu saw 0", None),
        (RuntimeError, "ncu saw 1: kf_other", table([("kf_other", 1, 1, 1, 1)])),
        (RuntimeError, "does not count dram__bytes_read.sum: .*'n/a'", table([("k", "n/a", 1, 1, 1)])),
        (RuntimeError, "does not count", table([("k", "nan", 1, 1, 1)])),
        (RuntimeError, "dram__bytes_write.sum in bytes, gave '1' in 'Gbyte'", table(one, {_ncu.DRAM_WRITTEN: "Gbyte"})),
        (RuntimeError, "dram__bytes_read.sum in bytes, gave None", '"ID","Kernel Name"\n"",""\n"0","k"\n'),
    ])  # fmt: skip


def test_numbers_with_separators():
    log = table([("k", "4,294,967,296", "1.0", "0", "134217728")])
    assert _ncu.parse(log, "f") == [
        _ncu.Launch("k", dict(zip(_ncu.METRICS, (2**32, 1, 0, 2**27), strict=True))),
    ]


def test_where_ncu_is(ncu, monkeypatch, tmp_path):
    toolkit = tmp_path / "toolkit"
    toolkit.mkdir()
    ncu.folder.rename(toolkit / "bin")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    assert _ncu.find("f") == str(toolkit / "bin" / "ncu")
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setattr(_ncu, "_PLACES", ())
    with pytest.raises(FileNotFoundError, match="measure_traffic: the profiler ncu was not found on PATH"):
        kf.measure_traffic(kf.fused_gelu, BIG)


@pytest.mark.skipif(HAVE_GPU, reason="there is a GPU")
def test_without_a_gpu(tmp_path, monkeypatch):
    FakeNcu(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kf.DeviceError, match="kfusion"):
        kf.measure_traffic(kf.fused_gelu, BIG)


def test_what_another_process_can_import(ncu, tmp_path):
    for f in (lambda x: x, np.add.reduce, 3, kf.fuse(lambda x: x + 1)):
        with pytest.raises(ValueError, match="f must be at the top level of a module or script"):
            kf.measure_traffic(f, BIG)
    with pytest.raises(TypeError, match=r"argument 1 must be a kfusion\.spec or an array, got str"):
        kf.measure_traffic(kf.fused_softmax, BIG, "float32")
    assert traffic.target_of(kf.fused_softmax) == "kfusion:fused_softmax"
    assert traffic.target_of(kf.unfused_softmax) == "kfusion:unfused_softmax"
    assert traffic.target_of(doubled) == f"{__name__}:doubled"
    assert traffic.target_of(kf.fused_relu_layernorm).endswith(":fused_relu_layernorm")
    script = tmp_path / "script.py"
    script.write_text(
        "import kfusion as kf\nfrom kfusion._traffic import traffic\n\n@kf.fuse\ndef f(x):\n    return x + 1\n\n"
        "if __name__ == '__main__':\n    print(traffic.target_of(f), traffic.target_of(f.unfused))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{script}:f", f"{script}:f.unfused"]


def doubled(x):
    return x * 2


# ---- the process under the profiler ---------------------------------------------------------------------------------


@pytest.fixture
def profiled(monkeypatch):
    """The calls that are profiled, on NumPy arrays."""
    calls = []
    monkeypatch.setattr(profiled_process._core, "to_device", lambda x, device: x)
    monkeypatch.setattr(profiled_process._core, "cuda_profile", lambda call, device: calls.append((call(), device)))
    return calls


def test_the_process_runs_both_versions(profiled, monkeypatch):
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    asked = {"device": 3, "requests": [["kfusion:fused_softmax", [[[4, 8], "float32"]]]]}
    assert profiled_process.main(json.dumps(asked)) == 0
    (unfused, device), (fused, _) = profiled
    assert device == 3
    assert fused.shape == unfused.shape == (4, 8)
    np.testing.assert_allclose(fused.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(fused, unfused, rtol=1e-5)


def test_the_process_says_what_went_wrong(profiled, capsys):
    asked = {"device": 0, "requests": [["kfusion:fused_softmax", [[[4, 8], "int32"], [[4], "float32"]]]]}
    assert profiled_process.main(json.dumps(asked)) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("kfusion")
    assert not profiled


# ---- from a shell ---------------------------------------------------------------------------------------------------


def run(*arguments):
    return main(["traffic", *arguments])


def test_functions_by_name_and_of_a_file(ncu, capsys, tmp_path):
    ncu.answers(table(ideal(kf.fused_layernorm.plan(BIG, kf.spec(16384), device=H200))))
    assert run("layernorm", "--shape", "65536x16384", "--shape", "16384") == 0
    out = capsys.readouterr().out
    assert "weight: float32[16384]" in out
    assert "predicted: 3.00x" in out
    ncu.answers(table(ideal(kf.fused_softmax.plan(kf.spec((8, 16), "bfloat16"), device=H200))))
    assert run("softmax", "--shape", "8x16", "--dtype", "bfloat16", "--json") == 0
    t = kf.Traffic.from_dict(json.loads(capsys.readouterr().out))
    assert t.total("fused").compulsory.read == 8 * 16 * 2
    (tmp_path / "own.py").write_text("def f(x, y):\n    return x * 2 + y\n")
    spec = kf.spec((64, 64))
    ncu.answers(table(ideal(kf.plan(lambda x, y: x * 2 + y, spec, spec, device=H200))))
    assert run(f"{tmp_path}/own.py:f", "--shape", "64x64", "--shape", "64x64") == 0
    assert ncu.arguments[-1].count(f"{tmp_path}/own.py:f") == 1
    assert "f(x: float32[64,64], y: float32[64,64]) on H200" in capsys.readouterr().out


def test_errors_are_one_line(ncu, capsys):
    ncu.answers("==ERROR== ERR_NVGPUCTRPERM - no\n", status=1)

    def check(arguments, message):
        assert run(*arguments) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.startswith("kfusion")
        assert err.count("\n") == 1

    sweep(check, [
        ([], "kfusion traffic: give a function, or --suite and none"),
        (["softmax", "--suite"], "give a function, or --suite and none"),
        (["sofmax", "--shape", "4x4"], "got 'sofmax'; did you mean softmax or log_softmax?"),
        (["nowhere.py:f"], "there is no file nowhere.py"),
        (["softmax"], "x"),
        (["softmax", "--shape", "4x4"], "ERR_NVGPUCTRPERM"),
    ])  # fmt: skip
    for text in ("0", "-1", "1.5", "many", "1001"):
        with pytest.raises(SystemExit):
            run("--suite", "--gigabytes", text)
        assert "whole number from 1 to 1000" in capsys.readouterr().err


# ---- the suite ------------------------------------------------------------------------------------------------------


def suite_plans():
    for case, cols, dtype in traffic_suite.cases():
        yield traffic._plan_of(case.request(cols, dtype, 4 * 10**9), "cuda:0")


def suite_rows(**how):
    for plan in suite_plans():
        yield from ideal(plan, **how)


def test_the_suite(ncu, capsys, monkeypatch):
    for plan in suite_plans():
        assert 4e9 <= plan.fused.compulsory.total < 4.1e9, plan.title
    monkeypatch.setattr(hardware, "gpu", lambda index: {})
    ncu.answers(table(suite_rows(left=62_000_000)))
    assert run("--suite") == 0
    out = capsys.readouterr().out
    total = len(list(traffic_suite.cases()))
    assert out.splitlines()[-1] == f"{total} of {total} are within 3 %."
    assert "0.985" in out
    assert "softmax" in out


def test_the_suites_json(ncu, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "gpu", lambda index: {"name": "H200"})
    ncu.answers(table(suite_rows(read=1.2)))
    assert run("--suite", "--json", "--commit", "abc") == 0
    path = tmp_path / "results.json"
    path.write_text(capsys.readouterr().out)
    results = traffic_suite.Results.load(path)
    assert (results.commit, results.hardware["gpu"]) == ("abc", {"name": "H200"})
    assert results.command == "kfusion traffic --suite --gigabytes 4"
    assert len(results.outside) == len(results.cases)
    assert ("softmax", "1.100", "1.100", "4.000", "4.400", "16.00") in [row[:6] for row in results.saved().rows]
    (tmp_path / "results").mkdir()
    path.rename(tmp_path / "results" / "traffic_h200.json")
    for region, row in (("traffic", "| bfloat16 | 1.100 |"), ("traffic_saved", "| 1.100 | 1.100 | 4.000 | 4.400 |")):
        text = readme.rewritten(f"<!-- bench:{region} -->\n<!-- /bench -->\n", {}, tmp_path)
        assert f"| softmax {row}" in text
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not what"):
        traffic_suite.Results.load(path)


@pytest.mark.cuda
def test_on_a_gpu():
    try:
        t = kf.measure_traffic(kf.fused_softmax, kf.spec((131072, 4096)))
    except (FileNotFoundError, PermissionError) as error:
        pytest.skip(str(error))
    assert t.is_within(t.total("fused")), t
