"""`kfusion plan` and `kfusion savings`: what they print, write and return."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap

import matplotlib
import pytest

import kfusion as kf
import reference
from kfusion import _user_code
from kfusion._cli.main import main
from sweeps import sweep

matplotlib.use("Agg")

MODEL = """
    import numpy as np
    import kfusion as kf
    from sizes import EPS

    def f(x, w=None):
        return kf.layernorm(kf.relu(x), w, eps=EPS)

    def g(x, y):
        return kf.relu(x + y) / x.sum()

    def branches(x):
        return x if x.sum() > 0 else -x

    def fails(x):
        return x.missing

    def divides(x):
        return 1 // 0

    def gives_up(x):
        raise RuntimeError("no")

    def pretends(x):
        raise ValueError("kfusion is not to blame")

    class Block:
        @staticmethod
        def forward(x):
            return np.tanh(x)

    number = 3
"""
OPS = [
    {"name": "norm", "input_size": 1000, "output_size": 1000},
    {"name": "gelu", "input_size": 1000, "output_size": 4},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module that imports its neighbour, and nothing of it left in this process."""
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    (tmp_path / "sizes.py").write_text("EPS = 1e-5\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "inner.py").write_text("import kfusion as kf\ndef f(x):\n    return kf.exp(x)\n")
    (tmp_path / "broken.py").write_text("import kfusion\nvalue = unknown_name\n")
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "ops.json").write_text(json.dumps(OPS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name in {"model", "sizes", "broken", "syntax", "pack", "pack.inner"}:
            del sys.modules[name]


def run(*arguments):
    return main([*arguments])


def planned(capsys, *arguments):
    assert run("plan", *arguments, "--json") == 0, capsys.readouterr().err
    return kf.Plan.from_json(capsys.readouterr().out)


def test_plan_end_to_end(folder, capsys):
    arguments = ["model.py:f", "--shape", "64x96", "--device", "H200", "--html", "r.html", "--plot", "p.png"]
    assert run("plan", *arguments) == 0
    out = capsys.readouterr().out
    for word in ("f(x: float32[64,96]) on H200", "relu+layernorm", "Fusing saves", "Page: r.html", "Picture: p.png"):
        assert word in out
    assert (folder / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_all_of_stdout(folder, capsys):
    assert run("plan", "model.py:f", "--shape", "64x96", "--device", "A100", "--html", "r.html", "--json") == 0
    captured = capsys.readouterr()
    assert kf.Plan.from_json(captured.out).function == "f"
    assert captured.err == "Page: r.html\n"


@pytest.mark.usefixtures("folder")
def test_options(capsys):
    """Shapes, dtypes and libraries, what reaches the planner, and functions of modules by path and by name."""
    p = planned(capsys, "model.py:f", "--shape", "8x6:float16", "--shape", "6", "--device", "T4")
    inputs = {n["name"]: (n["dtype"], n["shape"]) for n in p.graph.to_dict()["nodes"] if n["op"] == "input"}
    assert inputs == {"x": ("float16", [8, 6]), "w": ("float32", [6])}
    assert p.device == kf.device("T4")
    g = ["model.py:g", "--shape", "8x6", "--shape", "8x6", "--device", "H200"]
    q = planned(capsys, *g, "--dtype", "int32", "--like", "torch")
    assert {(n["library"], n["dtype"]) for n in q._nodes if n["op"] == "input"} == {("torch", "int32")}
    assert len(planned(capsys, *g).groups) < len(planned(capsys, *g, "--no-fuse").groups)
    forbidden = planned(capsys, *g, "--forbid", "add,relu", "--forbid", "relu,divide")
    assert kf.Reason.FORBIDDEN in {r.reason for r in forbidden.refusals}
    allowed = planned(capsys, *g, "--allow", "add,relu", "--executors", "available")
    assert kf.Reason.FORBIDDEN in {r.reason for r in allowed.refusals}
    for target, stage in (("pack/inner.py:f", "exp"), ("pack.inner:f", "exp"), ("model.py:Block.forward", "tanh")):
        assert planned(capsys, target, "--shape", "5x7", "--device", "H200").stages == (stage,)
    _user_code.require_arguments(max, [1, 2, 3], "test")  # without a signature: left to the call


def test_graphs_and_plans_as_json(folder, capsys):
    p = planned(capsys, "model.py:g", "--shape", "8x6", "--shape", "8x6", "--device", "H200")
    (folder / "plan.json").write_text(p.to_json())
    (folder / "graph.json").write_text(p.unfused_graph.to_json())
    for name in ("plan.json", "graph.json"):
        q = planned(capsys, name, "--device", "H200")
        assert (q.groups, q.unfused_groups, q.graph) == (p.groups, p.unfused_groups, p.graph)


def test_a_module_named_like_an_imported_one(folder, capsys):
    (folder / "json.py").write_text("import kfusion as kf\ndef f(x):\n    return kf.exp(x)\n")
    assert planned(capsys, "json.py:f", "--shape", "5", "--device", "H200").stages == ("exp",)
    assert sys.modules["json"] is json


ERRORS = [
    (["model.py"], "must be module.py:function or package.module:function, or a named kernel, got 'model.py'"),
    ([":f"], "must be module.py:function"),
    (["nowhere.py:f"], "there is no file nowhere.py"),
    (["nowhere:f"], "nowhere cannot be imported: ModuleNotFoundError"),
    (["model.py:h"], "model.py has no h; it has f, g, branches"),
    (["model.py:Block.backward"], "model.py has no Block.backward"),
    (["model.py:number"], "number in model.py must be a function, got int"),
    (["broken.py:f"], "broken.py cannot be imported: NameError: name 'unknown_name' is not defined"),
    (["syntax.py:f"], "syntax.py cannot be imported: SyntaxError"),
    (["model.py:g", "--shape", "4"], "--shape is needed for each array of (x, y): missing a required argument"),
    (["model.py:f"], "--shape is needed for each array of (x, w=None)"),
    (["model.py:f", *["--shape", "4"] * 3], "f takes 2 arrays, got 3 --shape"),
    (["softmax", *["--shape", "4"] * 2], "softmax takes 1 array, got 2 --shape"),
    (
        ["model.py:branch"],
        "it has f, g, branches, fails, divides, gives_up, pretends, Block; did you mean branches?",
    ),
    (["model.py:Block"], "Block is a class: write `model = Block(...)` in model.py and name model.py:model"),
    (["softmax", "--device", "H100,A100"], "repeat --device for several devices: --device H100 --device A100"),
    (["softmax", "--top", "1", "--modules"], "--top or --modules, not both"),
    (["softmax", "--top", "1", "--device", "L4", "--device", "T4"], "--top and --modules are for one plan"),
    (["softmax", "--modules", "--shape", "Nx4", "--sweep", "N=1..4"], "--top and --modules are for one plan"),
    (["softmax", "--modules", "--against", "gelu"], "--top and --modules are for one plan"),
    (["softmax", "--against", "--html x.html"], "--html is about what is printed"),
    (["softmax", "--against", "--top 2"], "--top is about what is printed"),
    (["softmax", "--against", "--sweep N=1,2"], "--against compares one plan with another"),
    (["softmax", "--shape", "Nx4", "--size", "N=4", "--sweep", "N=1..4"], "the size N is given twice"),
    (["model.onnx"], "there is no file model.onnx"),
    (["model.py:f", "--shape", "4", "--device", "H2000"], "H2000"),
    (["model.py:f", "--shape", "4", "--forbid", "relu,sinus"], "sinus"),
    (["model.py:f", "--shape", "4", "--html", "no/r.html"], "does not exist"),
    (["model.py:f", "--shape", "4", "--plot", "p.nonsense"], "must end in one of"),
    (["graph.json"], "there is no file graph.json"),
    (["ops.json"], "graph"),
    (["ops.json", "--shape", "4"], "--shape is for functions"),
]


@pytest.mark.usefixtures("folder")
def test_errors_are_one_sentence(capsys):
    before = sorted(os.listdir())

    def check(arguments, message):
        assert run("plan", *arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.startswith("kfusion")
        assert error.count("\n") == 1, error
        assert [name for name in sorted(os.listdir()) if name != "__pycache__"] == before

    sweep(check, ERRORS)


@pytest.mark.usefixtures("folder")
def test_errors_of_tracing_show_the_line(capsys):
    def check(name, shapes, message, line):
        assert run("plan", f"model.py:{name}", *(word for s in shapes for word in ("--shape", s))) == 2
        error = capsys.readouterr().err
        assert error.startswith("kfusion")
        assert message in error
        assert f"model.py:{line}" in error
        assert "Traceback" not in error

    sweep(check, [
        ("branches", "4", "kfusion", "13: return x if x.sum() > 0 else -x"),
        ("fails", "4", "kfusion.trace: x.missing", "16: return x.missing"),
        ("divides", "4", "divides cannot be traced: ZeroDivisionError", "19: return 1 //"),
        ("gives_up", "4", "gives_up cannot be traced: RuntimeError: no", "22: raise"),
        ("pretends", "4", "pretends cannot be traced: ValueError: kfusion is", "25: raise"),
        ("g", "45", "could not be broadcast", "10: return kf.relu(x + y)"),
    ])  # fmt: skip


def test_usage_errors(capsys):
    def check(command, arguments, message):
        with pytest.raises(SystemExit) as info:
            run(command, *arguments)
        assert info.value.code == (0 if arguments == ["--help"] else 2)
        assert message in " ".join("".join(capsys.readouterr()).split())

    of_plan = {"4x": "such as 4096x1024", "4:int8": "the dtype must be one of bool, int32", "4:": "the dtype must be"}
    sweep(check, [
        *(("plan", ["model.py:f", "--shape", shape], message) for shape, message in of_plan.items()),
        ("plan", ["model.py:f", "--like", "jax"], "jax"),
        ("plan", ["model.py:f", "--sweep", "B=64..1"], "must go from less to more"),
        ("plan", ["model.py:f", "--forbid", "relu"], "two names joined by a comma"),
        ("plan", ["model.py:f", "--allow", "relu,,exp"], "two names joined by a comma"),
        ("savings", ["ops.json", "--dtype-bytes", "0"], "at least 1"),
        ("plan", ["--help"], "is executed"),
        ("traffic", ["--help"], "is executed"),
    ])  # fmt: skip


def test_a_failing_page_leaves_no_file(folder, monkeypatch, capsys):
    def fail(self):
        raise RuntimeError("no page")

    monkeypatch.setattr(kf.Plan, "to_html", fail)
    before = sorted(os.listdir(folder))
    assert run("plan", "model.py:f", "--shape", "4x6", "--device", "H200", "--html", "r.html") == 2
    assert "no page" in capsys.readouterr().err
    assert [name for name in sorted(os.listdir(folder)) if name != "__pycache__"] == before


@pytest.mark.usefixtures("folder")
def test_a_class_of_modules_without_arguments_is_planned(capsys):
    pytest.importorskip("torch")
    with open("model.py", "a") as file:
        file.write(
            "import torch\n"
            "class Tiny(torch.nn.Module):\n"
            "    def __init__(self, n=4):\n"
            "        super().__init__()\n"
            "    def forward(self, x):\n"
            "        return torch.tanh(x)\n"
            "class Sized(torch.nn.Module):\n"
            "    def __init__(self, n):\n"
            "        super().__init__()\n"
            "tiny = Tiny()\n"
        )
    p = planned(capsys, "model.py:Tiny", "--shape", "8x4", "--like", "torch", "--device", "H200")
    assert p.stages == ("tanh",)
    assert run("plan", "model.py:Sized") == 2
    assert "Sized is a class: write" in capsys.readouterr().err
    assert run("plan", "model.py:tine") == 2
    assert capsys.readouterr().err.endswith("Block, Tiny, Sized, tiny; did you mean tiny?\n")


def test_no_line_of_the_command_itself_is_the_users():
    command = [sys.executable, "-m", "kfusion", "plan", "cross_entropy", "--device", "H200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert "Kept apart" in done.stdout, done.stderr
    assert ".py:" not in done.stdout


# kfusion savings


def test_savings(folder, monkeypatch, capsys):
    assert run("savings", "ops.json", "--dtype-bytes", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out) == kf.savings(OPS, dtype_bytes=4) == reference.savings(OPS, 4)
    assert run("savings", str(folder / "ops.json")) == 0
    text = capsys.readouterr().out
    result = kf.savings(OPS)
    for word in ("norm", "gelu", "operation", f"({result['savings_pct']:g}%)", f"{result['speedup_estimate']:g}x"):
        assert word in text
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(OPS)))
    assert run("savings", "-", "--json") == 0
    assert json.loads(capsys.readouterr().out) == result
    monkeypatch.setattr(sys, "stdin", io.StringIO("[]"))
    assert run("savings", "-") == 0
    assert "nothing is moved" in capsys.readouterr().out
    (folder / "many.json").write_text(json.dumps([{"input_size": 1, "output_size": 1}] * 99))
    assert run("savings", "many.json") == 0
    out = capsys.readouterr().out
    assert "the first 40 of 99" in out
    assert len(out.splitlines()) < 50


def test_bad_operations(tmp_path, capsys):
    def check(content, message):
        (tmp_path / "ops.json").write_bytes(content.encode() if isinstance(content, str) else content)
        assert run("savings", str(tmp_path / "ops.json")) == 2
        error = capsys.readouterr().err
        assert any(part in error for part in message.split("|"))
        assert error.startswith("kfusion")
        assert error.count("\n") == 1

    sweep(check, [
        ('[\n  {"input_size": 1,}\n]', "ops.json: no valid JSON at line 2, column 20"),
        ("", "no valid JSON at line 1, column 1"),
        ('{"input_size": 1}', "must hold a list of operations, got dict"),
        ('[{"input_size": 1}]', 'ops[0] must have the key "output_size"'),
        ('[{"name": "relu", "input_size": -1, "output_size": 1}]', "('relu'): input_size must be >= 0"),
        ('[{"input_size": 1.5, "output_size": 1}]', "must be an integer, got 1.5"),
        ('[{"input_size": 9223372036854775807, "output_size": 1}]', "more than 2^63 - 1 bytes"),
        ("[3]", "ops[0] must be a mapping"),
        ("[" * 100_000, "no valid JSON|nested too deeply"),
        (b"\xff\xfe", "utf-8"),
    ])  # fmt: skip
    assert run("savings", str(tmp_path / "none.json")) == 2
    assert "there is no file" in capsys.readouterr().err
