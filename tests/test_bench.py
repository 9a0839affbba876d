"""`kfusion bench`: its suites on tiny arrays, its files, and what is made of them. Nothing here asserts a time."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import types
from pathlib import Path

import numpy as np
import pytest

import benchmarks as bench
from benchmarks import changes, cli, compiling, drawn, functions, models, options, plots, readme, runner, show, suites
from benchmarks import targets as goals
from benchmarks import warm as warm_peers
from benchmarks.results import Measured, Results, Row, row_of
from benchmarks.runs import SCHEMA
from kfusion import _core, _timing
from kfusion._cli.main import main
from kfusion._compare.problem import problem_of
from kfusion._compare.versions import versions_of
from sweeps import sweep

ROOT = Path(__file__).parents[1]
TINY = bench.Options(device="cpu", quick=True, peers=("numpy",), nbytes=33000, repeats=1, processes=1, calls=2)
SHORT = ["--device", "cpu", "--quick", "--bytes", "4000", "--repeats", "1", "--peers", "none"]
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
ROW_SUITES = ("relu_layernorm", "norms", "softmax")


@pytest.fixture(autouse=True, scope="module")
def no_flush():
    """Nothing here is about caches, and some are large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "flush_cpu_cache", lambda: None)
        yield


SOME = (*ROW_SUITES, "chains", "reductions", "cpu", "host", "cold_start")


@pytest.fixture(scope="module")
def tiny(no_flush):
    return bench.run(SOME, TINY, commit="abc")


def row(version, of_copy=None, state="cold", us=10.0, spread=0.01):
    return Row(version, state, us, us * (1 - spread), us * (1 + spread), 5, 4000.0, of_copy, 1e-6)


def measured(suite, name, shape, *rows, dtype="float32", layout="dense", nbytes=2**29, notes=()):
    return Measured(suite, name, tuple(shape), dtype, layout, nbytes, rows, notes)


def results(*cases, device="cuda", complete=True, isa=None):
    hardware = {"cpu": {"name": "a CPU", "threads": 2} | ({"isa": isa} if isa else {}), "gpu": {"name": "a GPU"}}
    return Results(
        schema=SCHEMA, date="2026-01-01", command="kfusion bench", commit="abc", hardware=hardware,
        versions={"numpy": "2"}, device=device, complete=complete, cases=cases,
    )  # fmt: skip


def row_cases(**fused):
    """A case of every suite of rows, by length."""
    lengths = fused or {"1024": 0.99, "1023": 0.98, "8192": 0.97, "131072": 0.93}
    return [
        measured(suite, suite, (2**26 // int(n), int(n)), row("unfused", 0.2), row("fused", r), row("torch", 0.5),
                 row("copy", 1.0))
        for suite, (n, r) in itertools.product(ROW_SUITES, lengths.items())
    ]  # fmt: skip


@pytest.mark.slow
def test_every_suite_measures_its_cases(no_flush):
    pytest.importorskip("torch")  # which some suites measure
    found = bench.run(tuple(s for s in suites.SUITES if s != "compile"), TINY, commit="abc")  # which takes minutes
    missing = {"attention", "compile", "convolutions"} | (set() if models.available() else {"models"})
    assert found.suites == tuple(s for s in suites.SUITES if s not in missing)  # two are of GPUs alone
    assert found.complete
    for case in found.cases:
        assert case.rows, f"{show.title(case)}: {case.notes}"
        assert all(0 < r.p20_us <= r.median_us <= r.p80_us and r.samples >= 1 for r in case.rows)


def test_suites_and_files(tiny, tmp_path):
    for case in tiny.of_suite(*ROW_SUITES, "chains", "reductions", "cpu"):
        ours = {"unfused", "fused", "fused, again", "fused, fresh", "copy", "numpy"}
        if case.name in ("sum of all", "max of all"):
            ours -= {"fused, fresh"}  # a scalar has no out=
        assert {r.version for r in case.rows} == ours
        assert case.nbytes >= np.prod(case.shape) * suites.ITEM_BYTES[case.dtype]
        for r in case.rows:
            assert r.of_copy > 0
            bytes_moved = case.nbytes + 7 if r.version == "copy" else case.nbytes
            assert r.gbps == pytest.approx(bytes_moved / r.median_us / 1e3, rel=0.01)
            assert (r.error is None) == (r.version == "copy")
    cases = tiny.of_suite(*ROW_SUITES)
    assert {case.layout for case in cases} == {"dense", "strided", "transposed"}
    assert {s for case in cases for s in case.states} == {"cold", "hot"}
    (first_calls,) = tiny.of_suite("cold_start")
    assert first_calls.states == bench.cold_start.STATES
    tables = str(show.Tables(tiny))
    assert all(show.title(case) in tables for case in tiny.cases)
    tiny.save(tmp_path / "r.json")
    assert Results.load(tmp_path / "r.json") == tiny
    plain = json.loads((tmp_path / "r.json").read_text())
    assert (plain["schema"], plain["commit"], plain["versions"]["numpy"]) == (SCHEMA, "abc", np.__version__)
    assert plain["hardware"]["cpu"]["name"]
    for text in ("[]", "{", '{"schema": 99}', f'{{"schema": {SCHEMA}}}'):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(ValueError, match="is not what `kfusion bench --out` writes"):
            Results.load(tmp_path / "r.json")


def test_first_calls(tmp_path, monkeypatch):
    """Those that fail say why, and each has caches of its own."""
    with pytest.raises(RuntimeError, match=r"(?s)the timed process failed.*no_such_function"):
        bench.cold_start.times_ms(["fused", "no_such_function", "4x4", "cpu"], str(tmp_path))
    seen = []

    def run(command, env, **more):
        seen.append(env)
        return subprocess.CompletedProcess(command, 0, "noise\n[1.0, 0.5]\n", "")

    monkeypatch.setattr(bench.cold_start.subprocess, "run", run)
    assert bench.cold_start.times_ms(["fused"], str(tmp_path)) == [1.0, 0.5]
    assert all(seen[0][name].startswith(str(tmp_path)) for name in bench.cold_start._CACHES)


def test_a_wrong_peer_is_reported_not_timed(monkeypatch):
    liar = {"liar": lambda problem: lambda: [problem.arrays[0]]}
    monkeypatch.setattr(bench.rivals, "of", lambda name: liar)
    case = next(suites._reductions("reductions", TINY))
    found = case.measure(bench.inputs.Inputs("cpu"), TINY, lambda done, what: None)
    assert {"fused", "copy"} <= {r.version for r in found.rows}
    assert "liar" not in {r.version for r in found.rows}
    assert any(note.startswith("liar is left out") for note in found.notes)


def test_runs_that_fail_or_end_early(monkeypatch, tmp_path):
    """What fails is noted, and the rest goes on; what was measured is kept case by case."""

    @dataclasses.dataclass(frozen=True)
    class Job:
        title: str

        def measure(self, inputs, options, report):
            if self.title == "stopped":
                raise KeyboardInterrupt
            if self.title == "fails":
                raise MemoryError("no room")
            return measured("compile", self.title, (2, 3), row("kfusion"))

        name = property(lambda self: self.title)
        suite, shape, dtype, layout, library, nbytes = "compile", (2, 3), "float32", "torch", "torch", 0

    def run(*titles, **more):
        monkeypatch.setattr(suites, "jobs", lambda chosen, options: [Job(t) for t in titles])
        return bench.run(["compile"], dataclasses.replace(TINY, **more), commit="abc", keep=kept.append)

    kept = []
    found = run("first", "second")
    assert [[c.name for c in r.cases] for r in kept] == [["first"], ["first", "second"]]
    assert not any(r.complete for r in kept)
    assert found.complete
    out = tmp_path / "r.json"
    monkeypatch.setattr(suites, "jobs", lambda chosen, options: [Job(t) for t in ("first", "stopped", "never")])
    main(["bench", "compile", "--device", "cpu", "--peers", "none", "--out", str(out), "--commit", "abc"])
    assert [c.name for c in Results.load(out).cases] == ["first"]
    assert not Results.load(out).complete
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(now))
    found = run("first", "second", seconds=15)
    assert [c.notes for c in found.cases] == [(), ("not measured: 15 s were over",)]
    found = run("fails", "second", seconds=1e9)
    assert [c.notes for c in found.cases] == [("not measured: no room",), ()]
    assert found.complete


def test_suites_that_there_are():
    jobs = suites.jobs(["softmax"], bench.Options(device="cuda"))
    assert set(suites.LENGTHS) <= {job.shape[-1] for job in jobs if job.layout == "dense"}
    large = [j for j in jobs if j.layout == "dense" and j.shape[0] > 100 and j.shape != suites.EXPERIMENT_SHAPE]
    assert all(0.99 * 2**28 <= np.prod(j.shape) * suites.ITEM_BYTES[j.dtype] <= 2**28 for j in large)
    assert {job.dtype for job in jobs} == {"float32", "bfloat16"}
    assert suites.chosen((), "cpu") == ["cpu", "host", "cold_start"]
    named = {"attention", "compile", "convolutions", "cpu", "gradients", "layers", "losses", "models", "optimizers"}
    assert set(suites.chosen((), "cuda")) == {*suites.SUITES} - named - {"drawn", "products", "training"}
    assert suites.chosen(["host", "chains"], "cpu") == ["chains", "host"]


def test_drawn_functions():
    """They are the same ones each time; a loss is an error with the formula; the better of two measurements counts."""
    texts = [text for _, text in drawn.texts()]
    assert len(set(texts)) == drawn.COUNT
    assert texts == [text for _, text in drawn.texts()]
    won = measured("drawn", "x + row", (9,), row("fused", us=11), row("unfused", us=20), row("numpy", us=10))
    lost = measured("drawn", "x * exp(row)", (9,), row("fused", us=18), row("unfused", us=10), row("numpy", us=90))
    wrong = measured("drawn", "gelu(x)", (9,))
    drawn.require_no_loss(results(won))
    assert won.slowdown == pytest.approx(1.1)
    with pytest.raises(AssertionError, match=r"of 3 drawn functions 2 .*\n  1.80  x \* exp\(row\)\n  inf  gelu"):
        drawn.require_no_loss(results(won, lost, wrong))
    rows = row("fused", us=20), row("fused, again", us=9), row("unfused", us=10), row("copy", us=1)
    assert measured("drawn", "x", (9,), *rows).slowdown == 0.9


def test_what_numba_has_no_loop_for():
    with pytest.raises(TypeError, match="on the CPU only"):
        warm_peers.results(types.SimpleNamespace(cuda=True))
    pytest.importorskip("numba")
    (rival,) = bench.rivals.of("numba").values()
    row, matrix = np.ones(8, np.float32), np.ones((2, 8), np.float32)
    for function, arrays, message in (
        (functions.gelu, [row], "no Numba loop of gelu"),
        (functions.light, [row[::2]] * 2, "contiguous"),
        (functions.light, [matrix, row], "of one shape"),
        (functions.sum_rows, [np.ones((2, 2, 8), np.float32)], "rows of a matrix"),
    ):
        with pytest.raises(TypeError, match=message):
            rival(problem_of(versions_of(function), tuple(arrays), {}))
    (first,) = rival(problem_of(versions_of(functions.light), (row, 2 * row), {}))()
    assert np.asarray(first).tolist() == [8.0] * 8


def test_bad_choices_are_refused_before_anything_runs(capsys, monkeypatch):
    monkeypatch.setattr(bench.runner, "run", lambda *a, **k: pytest.fail("it ran"))

    def check(arguments, message):
        device = [] if "--device" in arguments else ["--device", "cpu"]
        assert main(["bench", *arguments, *device]) == 2
        assert message in capsys.readouterr().err

    nosuch = "no case has 'nosuch' in its title; there are\n  softmax, 4096x1024 float32\n"
    sweep(check, [
        (["nothing"], "a suite must be one of"),
        (["chains", "--peers", "nobody"], "a peer must be one of"),
        (["chains", "--peers", "triton", "--device", "cpu"], "does not run on cpu"),
        (["chains", "--dtype", "int8"], "a dtype must be one of"),
        (["chains", "--out", "/nowhere/at/all.json"], "does not exist"),
        (["--compare", "/nowhere.json", "/nowhere.json"], "No such file"),
        (["--targets", __file__], "is not what `kfusion bench --out` writes"),
        (["softmax", "--only", "nosuch", "--list"], nosuch),
    ])  # fmt: skip
    monkeypatch.undo()
    check(["softmax", "--only", "nosuch", "--quick"], nosuch)


def test_peers(monkeypatch):
    with monkeypatch.context() as m:
        m.setattr(options.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match="needs numexpr, which is not installed"):
            options.checked_peers(["numexpr"], "cpu")
        assert options.installed("cpu") == ()
        m.setattr(options.importlib.util, "find_spec", lambda name: None if name == "numba" else object())
        assert set(options._ON["cpu"]) - set(options.installed("cpu")) == {"numba"}
    peers = {"torch.compile.warm": "torch", "numba": "numba", "torch.compile": "torch", "experiment": "cupy"}
    assert {peer: options.module_of(peer) for peer in peers} == peers
    monkeypatch.setattr(_core, "available_isas", lambda: ["baseline", "avx2", "avx512"])
    for isa, held in (("avx2", True), ("avx512", False)):  # peers that compile are held to AVX2 as kfusion is
        monkeypatch.setattr(_core, "isa", lambda isa=isa: isa)
        monkeypatch.setattr(options.os, "environ", {"XLA_FLAGS": "--mine"})
        options.prepare_environment()
        assert (options.os.environ.get("ATEN_CPU_CAPABILITY") == "avx2") == held
        assert options.os.environ["XLA_FLAGS"] == "--mine"


def test_merging():
    half = row("fused", 0.5)
    old = results(measured("chains", "a", (1,), half), measured("chains", "b", (1,), half))
    new = results(measured("chains", "b", (1,), row("fused", 0.9)), measured("host", "c", (1,), row("fused")))
    merged = old.merged(new)
    assert [case.name for case in merged.cases] == ["a", "b", "c"]
    assert merged.cases[1].find("fused").of_copy == 0.9
    narrow, wide = (results(device="cpu", isa=isa) for isa in ("avx2", "avx512"))
    assert (narrow.device_name, wide.device_name) == ("a CPU, 2 threads, AVX2", "a CPU, 2 threads, AVX-512")
    for one, other in ((old, results(device="cpu")), (wide, narrow)):
        with pytest.raises(ValueError, match="cannot be added"):
            one.merged(other)


def test_the_instruction_set_is_recorded(isa, monkeypatch):
    monkeypatch.setenv("KFUSION_ISA", isa)
    found = bench.run(["host"], TINY, command=cli._command(cli._parser().parse_args(["host"])))
    assert (found.isa, found.command) == (isa, f"KFUSION_ISA={isa} kfusion bench host")


class TestFromAShell:
    def test_running_and_adding(self, tmp_path, capsys, monkeypatch):
        monkeypatch.delenv("KFUSION_ISA", raising=False)
        out = tmp_path / "r.json"
        assert main(["bench", "reductions", *SHORT, "--out", str(out), "--plots", str(tmp_path)]) == 0
        command = "kfusion bench reductions --device cpu --quick --peers none --bytes 4000 --repeats 1"
        assert Results.load(out).command == command
        assert "sum over axis 0" in capsys.readouterr().out
        assert (tmp_path / "r_speedups.png").exists()
        assert main(["bench", "softmax", *SHORT, "--out", str(out), "--add"]) == 0
        found = Results.load(out)
        assert set(found.suites) == {"softmax", "reductions"}
        assert found.command.count(" && ") == 1

    def test_files_that_there_are(self, tmp_path, capsys):
        for name in ("a", "b"):
            results(*row_cases()).save(tmp_path / f"{name}.json")
        for arguments, said in (
            (["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")],
             "0 changes beyond noise among 12 cases"),
            (["--targets", str(tmp_path / "a.json")], r"rows of 131072(.|\n)*\d+ of \d+ targets hold"),
            (["--plot", str(tmp_path / "a.json"), "--plots", str(tmp_path)], "a_limit.png"),
        ):  # fmt: skip
            assert main(["bench", *arguments]) == 0
            assert re.search(said, capsys.readouterr().out)
        assert (tmp_path / "a_limit.png").read_bytes().startswith(b"\x89PNG")
        assert plots.draw(results()) == {}

    def test_lists(self, capsys):
        assert main(["bench", "--list", "--device", "cpu"]) == 0
        out = capsys.readouterr().out
        assert all(f"{name}: " in out for name in suites.SUITES)
        assert main(["bench", "softmax", "--list", "--only", "x262144 ", "--device", "cpu"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == ["  softmax, 64x262144 float32"]


def test_changes_beyond_noise():
    """Noise is what two runs of one version differ by."""

    def rows_of(case, *both):
        return changes.Changes(*(results(measured(*case, *rows)) for rows in both))

    found = rows_of(("chains", "f", (8,)), (row("fused", 0.5), row("torch", 0.5)),
                    (row("fused", 0.9), row("torch", 0.501)))  # fmt: skip
    ((_, _, version, was, now, speed, _),) = found.rows()
    assert (version, was, now, speed) == ("fused", "0.50", "0.90", "1.80x")
    assert "1 changes beyond noise among 1 cases" in str(found)
    noisy = row("fused", 0.5), row("fused, again", 0.5, us=20.0)
    assert rows_of(("chains", "f", (8,)), *((*noisy, row("torch", r)) for r in (0.5, 0.6))).rows() == []
    without_copy = rows_of(("host", "f", (8,)), *([row("fused", None, "call", us)] for us in (4.0, 2.0)))
    ((*_, speed, _),) = without_copy.rows()
    assert speed == "2.00x"


def test_targets():
    def found(*cases, **more):
        return {f.target.text: f for f in goals.found(results(*cases, **{"device": "cuda"} | more))}

    rows = found(*row_cases(**{"1024": 0.99, "8192": 0.5}))["rows of 1024 to 32768, of the copy's rate"]
    assert (rows.cases, rows.met, rows.worst) == (6, 3, 0.5)
    assert "8192" in rows.worst_case
    case = measured("norms", "layernorm", (65536, 1024), row("fused", 0.9), row("torch.compile", 0.6))
    assert found(case)["rows of 1024 to 32768, times as fast as torch.compile"].worst == pytest.approx(1.5)
    odd = found(*row_cases(**{"1023": 0.45, "1024": 0.9, "8192": 0.1}))
    assert odd["odd widths, of the neighbouring multiple of 8"].worst == pytest.approx(0.5)
    calls = [measured("host", "f", (n, 256), row("fused, fresh", None, "call", us), layout="torch", nbytes=0)
             for n, us in ((16, 3.0), (17, 5.0))]  # fmt: skip
    upper = found(*calls)["a call with a torch tensor on the GPU, us"]
    assert (upper.met, upper.cases, upper.worst) == (1, 2, 5.0)
    cases = [measured("cpu", name, (9,), row("fused", r), nbytes=2**30) for name, r in
             (("layernorm", 0.8), ("2x + 3y", 0.5), ("sum over axis 0", 0.5), ("tanh(x) y", 0.6))]  # fmt: skip
    of = {isa: found(*cases, device="cpu", isa=isa) for isa in ("avx2", "avx512", "baseline")}
    norms = of["avx2"]["AVX2, from memory, layernorm and relu_layernorm, in times of the copy"]
    assert (norms.cases, norms.met, norms.worst, goals.cells(norms)[1]) == (1, 1, 1.25, "<= 1.35")
    light = of["avx512"]["AVX-512, from memory, light maps, exp and twenty operations, in times of the copy"]
    assert (light.cases, light.met, light.worst) == (1, 0, 2.0)
    read = measured("cpu", "sum over axis -1", (9,), row("fused", 0.5), row("read", 0.6))
    rows = found(read, device="cpu", isa="avx2")["AVX2, from memory, sum of rows, in times of reading"]
    assert (rows.cases, rows.worst) == (1, pytest.approx(1.2))
    assert [[t for t in of[isa] if t.startswith("AVX-512")] for isa in ("avx2", "baseline")] == [[], []]
    ours = (row("fused", 0.1, us=10, state="hot"), row("fused, fresh", us=20, state="hot"))
    peers = (row("torch.compile, warm", 0.5, us=9, state="hot"), row("torch", us=24, state="hot"))
    into_warm = found(measured("cpu", "2x + 3y", (9,), *ours, *peers), device="cpu")
    for text in ("as the best peer", "as torch.compile into a warm result"):
        assert into_warm[f"CPU, within the caches, times as fast {text}"].worst == 0.9
    assert found() == {}


@pytest.mark.parametrize("n", [0, 1, 8191, 8192, 8193, 1_000_001])
def test_the_yardstick_reads_every_word(n):
    x = np.random.default_rng(n).standard_normal(n, np.float32)
    assert _core.read(x) == np.bitwise_xor.reduce(x[: n // 2 * 2].view(np.uint64))
    with pytest.raises(ValueError, match="C-contiguous"):
        _core.read(np.ones((n + 2, 2), np.float32).T)


class TestReadme:
    def runs(self, tiny):
        few = measured("softmax", "softmax", (1, 8192), row("fused", 0.8), row("copy", 1.0))
        first = measured("relu_layernorm", "relu_layernorm", (4096, 1024), row("unfused", 0.25), row("fused", 1.0))
        return {"h200": results(*row_cases(), few, first, *tiny.of_suite("chains", "reductions")), "cpu": tiny}

    def test_regions(self, tiny):
        """They are rewritten and nothing else is, have text, and stand in some page."""
        text = "a\n<!-- bench:rows -->\nold\n<!-- /bench -->\nb\n<!-- bench:cpu -->\n<!-- /bench -->\n"
        once = readme.rewritten(text, self.runs(tiny))
        assert "old" not in once
        assert once.startswith("a\n<!-- bench:rows -->\n| function | dtype | 1023 | 1024 |")
        assert "| softmax | float32 | 0.98 | 0.99 | 0.97 | 0.93 |" in once
        assert readme.rewritten(once, self.runs(tiny)) == once
        with pytest.raises(ValueError, match="a region must be one of"):
            readme.rewritten("<!-- bench:nothing -->\n<!-- /bench -->\n", self.runs(tiny))
        assert [name for name in readme.REGIONS if not readme.REGIONS[name](self.runs(tiny)).strip()] == []
        pages = "".join((ROOT / page).read_text() for page in ("README.md", *readme.PAGES))
        assert set(readme.REGIONS) <= set(re.findall(r"<!-- bench:(\w+) -->", pages))

    def test_what_is_committed_is_what_the_results_say(self):
        """If not: kfusion bench --readme README.md."""
        for page in ("README.md", *readme.PAGES):
            text = (ROOT / page).read_text()
            assert text == readme.rewritten(text, readme.load(ROOT), ROOT), page
            for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
                assert (ROOT / page).parent.joinpath(picture).exists()

    def test_from_a_shell(self, tiny, tmp_path, capsys):
        """Results with AVX2 are optional."""
        (tmp_path / "results").mkdir()
        for name, run in self.runs(tiny).items():
            run.save(tmp_path / "results" / f"{name}.json")
        assert set(readme.load(tmp_path)) == {"h200", "cpu"}
        results(device="cpu", isa="avx2").save(tmp_path / "results" / "cpu_avx2.json")
        text = readme.REGIONS["machines"](readme.load(tmp_path))
        assert "| CPU, AVX2 | a CPU, 2 threads, AVX2 | `results/cpu_avx2.json` |" in text
        (tmp_path / "README.md").write_text("<!-- bench:first -->\n<!-- /bench -->\n")
        page = tmp_path / "docs" / "performance.md"
        page.parent.mkdir()
        page.write_text("<!-- bench:pictures -->\n<!-- /bench -->\n")
        assert main(["bench", "--readme", str(tmp_path / "README.md")]) == 0
        assert "| fused |" in (tmp_path / "README.md").read_text()
        pictures = re.findall(r"\]\((.*?)\)", page.read_text())
        assert "../results/h200_rows.png" in pictures
        assert all((page.parent / path).exists() for path in pictures)


def test_rows_of_samples() -> None:
    taken = _timing.Samples([4.0, 2.0, 3.0], [0.5, 0.25, 1.0])
    fused = row_of("fused", "hot", taken, moved=6000, copied=3000, error=1.23456789, launches=2)
    assert (fused.median_us, fused.samples, fused.gbps, fused.of_copy) == (3.0, 3, 2.0, 1.0)
    assert (fused.error, fused.launches, fused.tflops) == (1.2346, 2, None)
    copy = row_of("copy", "hot", taken, moved=6000, copied=3000)
    assert (copy.gbps, copy.of_copy) == (1.0, 1.0)
    unrated = [row_of(v, "hot", taken, moved=0, copied=3000, held_bytes=7) for v in ("fused", "copy")]
    assert [(r.gbps, r.of_copy, r.held_bytes) for r in unrated] == [(None, None, 7), (1.0, None, 7)]
    product = row_of("fused", "cold", taken, flops=6e9)
    assert (product.gbps, product.of_copy, product.tflops) == (None, 0.5, 2000.0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_tiny_model_is_compiled_and_measured():
    pytest.importorskip("torch")
    quick = bench.Options(device="cpu", quick=True, peers=("torch",), repeats=2, only="diffusion block")
    (case,) = bench.run(["compile"], quick, commit="abc").cases
    assert not case.notes
    states = (compiling.CALL, compiling.CALL_CPU, compiling.FIRST, compiling.FIRST_CPU)
    assert {(r.version, r.state) for r in case.rows} == set(itertools.product(("kfusion", "torch"), states))
    ours = case.find("kfusion", compiling.CALL)
    assert (ours.samples, ours.breaks) == (2, 0)
    assert ours.error < 1e-5
    assert np.isfinite([r.median_us for r in case.rows]).all()
