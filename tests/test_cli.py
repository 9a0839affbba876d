"""The console script: what it prints, writes and returns. Nothing here asserts a time."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

import kfusion as kf
from kfusion import _files
from kfusion._cli import demo, demo_text, options
from kfusion._cli import main as main_module
from kfusion._cli.main import main
from kfusion._compare import comparison, peers
from kfusion._devices import hardware
from sweeps import sweep

SMALL = ["demo", "--shape", "16x32", "--device", "cpu", "--repeats", "1", "--peers", "none"]


def kfusion(arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "kfusion", *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_demo_prints_tables_and_saves_the_picture(tmp_path):
    done = kfusion([*SMALL, "--shape", "8x4x16"], tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("float32[16,32]", "float32[8,4,16]", "unfused", "copy", "Why: ", "kfusion_demo.png", "Next:"):
        assert word in done.stdout
    assert "100%" in done.stderr
    assert (tmp_path / "kfusion_demo.png").read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path) == ["kfusion_demo.png"]


def row(name, us, *, is_peer=False, spread=0.0, launches=None, moved_bytes=None):
    return comparison.Row(
        name=name, cache="cold", median_us=us, p20_us=us * (1 - spread), p80_us=us * (1 + spread), samples=9,
        launches=launches, moved_bytes=moved_bytes, predicted_us=None, gbps=None, copy_pct=54.0, speedup=1.0,
        max_abs_error=1e-6, is_peer=is_peer,
    )  # fmt: skip


def measured(*rows):
    return comparison.Comparison(
        operation="f", subject="f(x)", shape=(2, 3), dtype="float32", array="numpy", device="cpu", arguments={},
        predicted={"speedup_estimate": 4.0}, max_difference=0.0, rows=rows, notes=(), hardware={"cpu": {}}, versions={},
    )  # fmt: skip


OURS = (row("unfused", 11540.0, launches=5, moved_bytes=134_300_000), row("fused", 1800.0, moved_bytes=33_550_000))
COPY = row("copy", 972.0, moved_bytes=33_550_000)


def test_the_first_line_is_the_result():
    c = measured(*OURS, COPY, row("numpy", 29700.0, is_peer=True))
    text = demo_text.text([c], "p.png", full=False)
    assert text.startswith("NumPy 29.7 ms, fused 1.80 ms: 16 x\n\n")
    for words in ("5 kernels", "134.3 MB", "33.55 MB", "copy of that many bytes takes 972 us", "54 %", "p.png"):
        assert words in " ".join(text.split())
    assert "times vary" not in text
    assert demo_text.headline(measured(*OURS, COPY)) == "one kernel for each step 11.5 ms, fused 1.80 ms: 6.4 x"
    slow = measured(OURS[0], row("fused", 4000.0, spread=0.5, moved_bytes=1), COPY, row("numpy", 1000.0, is_peer=True))
    assert demo_text.headline(slow) == "NumPy 1.00 ms, fused 4.00 ms: 0.25 x"
    assert "The times vary by +-50%" in " ".join(demo_text.text([slow], "p.png", full=False).split())
    lines = demo_text.text([measured(*OURS, COPY)] * 2, "p.png", full=True).splitlines()  # a line for each shape
    assert lines[0] == lines[1] == "float32[2, 3]: one kernel for each step 11.5 ms, fused 1.80 ms: 6.4 x"


def test_json_to_stdout_is_all_of_stdout(tmp_path):
    done = kfusion([*SMALL, "--json", "--dtype", "float16", "--peers", "numpy"], tmp_path)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["shape"], result["dtype"], result["device"]) == ([16, 32], "float16", "cpu")
    assert {"numpy", "fused", "unfused", "copy"} <= {row["name"] for row in result["rows"]}


def test_json_to_a_file_keeps_the_tables(tmp_path, capsys):
    target = tmp_path / "result.json"
    assert main([*SMALL, "--out", str(tmp_path / "p.svg"), "--json", str(target)]) == 0
    assert "[16,32]" in capsys.readouterr().out
    assert json.loads(target.read_text())[0]["predicted_speedup"] == pytest.approx(4.0, rel=0.03)
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


def test_bfloat16_needs_ml_dtypes(tmp_path, capsys, monkeypatch):
    pytest.importorskip("ml_dtypes")
    arguments = [*SMALL, "--dtype", "bfloat16", "--out", str(tmp_path / "p.png")]
    assert main(arguments) == 0
    assert "bfloat16" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert main(arguments) == 2
    assert "ml_dtypes" in capsys.readouterr().err


def test_usage(capsys):
    def check(arguments, message, code=2):
        with pytest.raises(SystemExit) as info:
            main(arguments)
        assert info.value.code == code
        assert message in "".join(capsys.readouterr())

    assert main([]) == 0
    assert "demo" in capsys.readouterr().out
    sweep(check, [
        (["--version"], "kfusion " + kf.__version__, 0),
        (["--help"], "--", 0),
        (["demo", "--help"], "--", 0),
        (["dem"], "there is no command 'dem'; did you mean demo?"),
        (["plna", "softmax"], "did you mean plan?"),
        (["xyz"], "the commands are demo, bench"),
        (["demo", "--shape", "0x4"], "4096x1024"),
        (["demo", "--shape", "4x-1"], "4096x1024"),
        (["demo", "--shape", "4x"], "4096x1024"),
        (["demo", "--dtype", "int8"], "int8"),
        (["demo", "--device", "tpu"], "tpu"),
        (["demo", "--repeats", "0"], "at least 1"),
        (["demo", "--repeats", "many"], "at least 1"),
        (["demo", "--peers", "numba"], "numba"),
    ])  # fmt: skip
    assert options.parse_shape("4096") == (4096,)
    assert options.parse_shape("2X3x4") == (2, 3, 4)
    for command, _ in demo_text._NEXT:
        program, *arguments = command.split()
        assert program == "kfusion"
        if "--help" not in arguments:
            main_module._parser().parse_args(arguments)


def test_errors_come_before_the_work_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "compare", lambda *a, **k: pytest.fail("measured before the paths were checked"))
    (tmp_path / "folder.png").mkdir()

    def check(arguments, message):
        assert main([*SMALL, *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.startswith("kfusion")
        assert error.count("\n") == 1
        assert os.listdir(tmp_path) == ["folder.png"]

    sweep(check, [
        (["--out", "nowhere/p.png"], "does not exist"),
        (["--out", "p.nonsense"], "must end in one of"),
        (["--out", "p"], "must end in one of"),
        (["--out", "folder.png"], "is a folder"),
        (["--json", "nowhere/r.json"], "does not exist"),
        (["--json", "folder.png"], "is a folder"),
        (["--shape", "1000000000x1000000"], "of memory"),
    ])  # fmt: skip


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c(tmp_path):
    arguments = [sys.executable, "-m", "kfusion", *SMALL, "--repeats", "1000000"]
    # Whoever runs the tests in the background of a shell has SIGINT ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert "%" in process.stderr.readline()  # it is measuring by now, or about to
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()  # nothing is left where it is over already
    assert process.returncode == 130
    assert err.endswith("kfusion: interrupted\n")
    assert "Traceback" not in out + err
    assert os.listdir(tmp_path) == []


def test_files_are_replaced_or_left(tmp_path):
    """By an interrupted write, and in a folder without permission."""
    target = tmp_path / "r.json"
    target.write_text("old")

    def write():
        with _files.replacing(target) as temporary, open(temporary, "w") as file:
            file.write("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]
    if os.name == "posix" and os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(PermissionError, match="cannot be written to"):
            _files.check_writable(tmp_path / "p.png")


def test_a_closed_pipe_is_no_error(tmp_path):
    arguments = [sys.executable, "-m", "kfusion", *SMALL]
    with subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_default_shapes_fit_the_memory(monkeypatch):
    assert demo._large_shape(4) == (32768, 4096)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: 2**28)
    rows, cols = demo._large_shape(4)
    assert rows * cols * 4 * demo._ARRAYS <= 2**27
    demo._require_memory((rows, cols), 4)
    monkeypatch.setattr(hardware, "available_memory_bytes", lambda: None)
    demo._require_memory((2**40, 2**40), 8)


def test_default_peers_are_those_installed(monkeypatch):
    found = {"numpy", "jax"}
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: object() if name in found else None)
    assert demo._default_peers(cuda=False, full=False) == ["numpy"]
    assert demo._default_peers(cuda=False, full=True) == ["numpy", "jax"]
    assert demo._default_peers(cuda=True, full=True) == []
    assert set(demo._default_peers(cuda=False, full=True)) <= set(peers.PEERS)
    found.add("torch")
    assert demo._default_peers(cuda=True, full=False) == ["torch"]


def test_benchmarks_need_a_checkout(tmp_path, monkeypatch, capsys):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    monkeypatch.chdir(tmp_path)
    for command in (["bench", "--quick"], ["bench", "--help"], ["bench", "norms"], ["traffic", "--suite"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"kfusion {command[0]}: the benchmarks are part of kfusion's source tree, not of")
        assert "run the command inside its folder" in error
