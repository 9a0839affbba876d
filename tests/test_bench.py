"""`kfusion bench`: its suites on tiny arrays, its files, and what is made of them. Nothing here asserts a time."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

import benchmarks as bench
from benchmarks import changes, cli, drawn, functions, models, options, plots, readme, show, suites, targets, warm
from benchmarks.results import Measured, Results, Row, row_of
from benchmarks.runs import SCHEMA
from kfusion import _core, _timing
from kfusion._cli.main import main
from kfusion._compare.problem import problem_of
from kfusion._compare.versions import versions_of

TINY = bench.Options(device="cpu", quick=True, peers=("numpy",), nbytes=33000, repeats=1, processes=1, calls=2)
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
ROW_SUITES = ("relu_layernorm", "norms", "softmax")


@pytest.fixture(autouse=True, scope="module")
def no_flush():
    """Nothing here is about caches, and some are large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_core, "flush_cpu_cache", lambda: None)
        yield


@pytest.fixture(scope="module")
def tiny(no_flush):
    return bench.run(tuple(s for s in suites.SUITES if s != "compile"), TINY, commit="abc")  # which takes minutes


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


class TestSuites:
    @pytest.mark.slow
    def test_every_suite_measures_its_cases(self, tiny):
        pytest.importorskip("torch")  # which some suites measure
        missing = {"attention", "compile", "convolutions"} | (
            set() if models.available() else {"models"}
        )  # two are of GPUs alone
        assert tiny.suites == tuple(s for s in suites.SUITES if s not in missing)
        assert tiny.complete
        for case in tiny.cases:
            assert case.rows, f"{show.title(case)}: {case.notes}"
            for r in case.rows:
                assert 0 < r.p20_us <= r.median_us <= r.p80_us
                assert r.samples >= 1

    @pytest.mark.parametrize("suite", [*ROW_SUITES, "chains", "reductions", "cpu"])
    def test_rates_are_of_what_must_move(self, tiny, suite):
        for case in tiny.of_suite(suite):
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

    def test_layouts_and_states(self, tiny):
        cases = tiny.of_suite(*ROW_SUITES)
        assert {case.layout for case in cases} == {"dense", "strided", "transposed"}
        assert {s for case in cases for s in case.states} == {"cold", "hot"}

    def test_first_calls_have_three_states(self, tiny):
        (case,) = tiny.of_suite("cold_start")
        assert case.states == bench.cold_start.STATES

    def test_first_calls_that_fail_say_why(self, tmp_path):
        with pytest.raises(RuntimeError, match=r"(?s)the timed process failed.*no_such_function"):
            bench.cold_start.times_ms(["fused", "no_such_function", "4x4", "cpu"], str(tmp_path))

    def test_first_calls_have_caches_of_their_own(self, tmp_path, monkeypatch):
        seen = []

        def run(command, env, **more):
            seen.append(env)
            return subprocess.CompletedProcess(command, 0, "noise\n[1.0, 0.5]\n", "")

        monkeypatch.setattr(bench.cold_start.subprocess, "run", run)
        assert bench.cold_start.times_ms(["fused"], str(tmp_path)) == [1.0, 0.5]
        assert all(seen[0][name].startswith(str(tmp_path)) for name in bench.cold_start._CACHES)

    def test_a_wrong_peer_is_reported_not_timed(self, monkeypatch):
        liar = {"liar": lambda problem: lambda: [problem.arrays[0]]}
        monkeypatch.setattr(bench.rivals, "of", lambda name: liar)
        case = next(suites._reductions("reductions", TINY))
        found = case.measure(bench.inputs.Inputs("cpu"), TINY, lambda done, what: None)
        assert {"fused", "copy"} <= {r.version for r in found.rows}
        assert "liar" not in {r.version for r in found.rows}
        assert any(note.startswith("liar is left out") for note in found.notes)

    def test_what_fails_is_noted_and_the_rest_goes_on(self, monkeypatch):
        def fail(*args):
            raise MemoryError("no room")

        monkeypatch.setattr(bench.inputs.Inputs, "random", fail)
        found = bench.run(["reductions"], TINY)
        assert found.complete
        assert {case.notes for case in found.cases} == {("not measured: no room",)}

    def test_interrupted_runs_keep_what_was_measured(self):
        def stop(case, seen=[]):  # noqa: B006
            seen.append(case)
            if len(seen) == 2:
                raise KeyboardInterrupt

        found = bench.run(["reductions"], TINY, show=stop)
        assert not found.complete
        assert len(found.cases) == 2

    def test_full_lists_have_the_shapes_that_they_promise(self):
        full = bench.Options(device="cuda")
        jobs = suites.jobs(["softmax"], full)
        lengths = {job.shape[-1] for job in jobs if job.layout == "dense"}
        assert set(suites.LENGTHS) <= lengths
        large = [j for j in jobs if j.layout == "dense" and j.shape[0] > 100 and j.shape != suites.EXPERIMENT_SHAPE]
        for job in large:
            nbytes = np.prod(job.shape) * suites.ITEM_BYTES[job.dtype]
            assert 0.99 * 2**28 <= nbytes <= 2**28
        assert {job.dtype for job in jobs} == {"float32", "bfloat16"}

    def test_suites_that_fit_the_device(self):
        assert suites.chosen((), "cpu") == ["cpu", "host", "cold_start"]
        named = {"attention", "compile", "convolutions", "cpu", "gradients", "layers", "losses", "models", "optimizers"}
        named |= {"drawn", "products", "training"}
        assert set(suites.chosen((), "cuda")) == {*suites.SUITES} - named
        assert suites.chosen(["host", "chains"], "cpu") == ["chains", "host"]


class TestDrawn:
    def test_they_are_the_same_each_time(self):
        functions = [text for _, text in drawn.texts()]
        assert len(set(functions)) == drawn.COUNT
        assert functions == [text for _, text in drawn.texts()]

    def test_a_loss_is_an_error_with_the_formula(self):
        won = measured("drawn", "x + row", (9,), row("fused", us=11), row("unfused", us=20), row("numpy", us=10))
        lost = measured("drawn", "x * exp(row)", (9,), row("fused", us=18), row("unfused", us=10), row("numpy", us=90))
        wrong = measured("drawn", "gelu(x)", (9,))
        drawn.require_no_loss(results(won))
        assert won.slowdown == pytest.approx(1.1)
        with pytest.raises(AssertionError, match=r"of 3 drawn functions 2 .*\n  1.80  x \* exp\(row\)\n  inf  gelu"):
            drawn.require_no_loss(results(won, lost, wrong))

    def test_the_better_of_two_measurements_counts(self):
        rows = row("fused", us=20), row("fused, again", us=9), row("unfused", us=10), row("copy", us=1)
        assert measured("drawn", "x", (9,), *rows).slowdown == 0.9


class TestWarm:
    """Peers that write into results that there are."""

    def measured(self, peer, **more):
        chosen = dataclasses.replace(TINY, peers=(peer,), quick=False, all_peers=True, **more)
        for job in suites.jobs(["cpu"], chosen):
            if job.states == ("cold",):
                yield job.measure(bench.inputs.Inputs("cpu"), chosen, lambda done, what: None)

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_numba_has_every_function_of_the_cpu(self, dtype):
        pytest.importorskip("numba")
        for case in self.measured("numba", dtypes=(dtype,)):
            found = case.find("numba, warm")
            assert found, case.notes
            assert found.error is not None

    @pytest.mark.slow
    @pytest.mark.parametrize("only", ["2x + 3y", "softmax", "sum over axis -1"])
    @needs_compiler
    def test_torch_compile(self, only):
        pytest.importorskip("torch")
        (case,) = self.measured("torch.compile.warm", only=only)
        assert case.find("torch.compile, warm"), case.notes

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("peer", "module"), [("numba", "numba"), pytest.param("torch.compile.warm", "torch", marks=needs_compiler)]
    )
    def test_calls_write_into_the_same_array(self, peer, module):
        pytest.importorskip(module)
        x, y = (np.full(1000, n, np.float32) for n in (1, 2))
        problem = problem_of(versions_of(functions.light), (x, y), {})
        (rival,) = bench.rivals.of(peer).values()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a compiler's remarks on itself
            run = rival(problem)
            (first,) = run()
        assert np.asarray(first).tolist() == [8.0] * 1000
        x[:] = 2
        (second,) = run()
        assert second is first
        assert np.asarray(first).tolist() == [10.0] * 1000

    @pytest.mark.parametrize(
        ("function", "arrays", "message"),
        [
            (functions.gelu, [np.ones(8, np.float32)], "no Numba loop of gelu"),
            (functions.light, [np.ones(8, np.float32)[::2]] * 2, "contiguous"),
            (functions.light, [np.ones((2, 8), np.float32), np.ones(8, np.float32)], "of one shape"),
            (functions.sum_rows, [np.ones((2, 2, 8), np.float32)], "rows of a matrix"),
        ],
    )
    def test_what_numba_has_no_loop_for(self, function, arrays, message):
        pytest.importorskip("numba")
        (rival,) = bench.rivals.of("numba").values()
        with pytest.raises(TypeError, match=message):
            rival(problem_of(versions_of(function), tuple(arrays), {}))

    def test_results_are_on_the_cpu(self):
        with pytest.raises(TypeError, match="on the CPU only"):
            warm.results(types.SimpleNamespace(cuda=True))


class TestChoices:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["nothing"], "a suite must be one of"),
            (["chains", "--peers", "nobody"], "a peer must be one of"),
            (["chains", "--peers", "triton", "--device", "cpu"], "does not run on cpu"),
            (["chains", "--dtype", "int8"], "a dtype must be one of"),
            (["chains", "--out", "/nowhere/at/all.json"], "does not exist"),
            (["--compare", "/nowhere.json", "/nowhere.json"], "No such file"),
            (["--targets", __file__], "is not what `kfusion bench --out` writes"),
        ],
    )
    def test_bad_choices_are_refused_before_anything_runs(self, arguments, message, capsys, monkeypatch):
        monkeypatch.setattr(bench.runner, "run", lambda *a, **k: pytest.fail("it ran"))
        device = [] if "--device" in arguments else ["--device", "cpu"]
        assert main(["bench", *arguments, *device]) == 2
        assert message in capsys.readouterr().err

    def test_a_peer_that_is_not_installed(self, monkeypatch):
        monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ImportError, match="needs numexpr, which is not installed"):
            options.checked_peers(["numexpr"], "cpu")
        assert options.installed("cpu") == ()

    def test_a_peer_that_is_missing_is_not_asked(self, monkeypatch):
        monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: None if name == "numba" else object())
        assert set(options._ON["cpu"]) - set(options.installed("cpu")) == {"numba"}

    @pytest.mark.parametrize(("isa", "held"), [("avx2", True), ("avx512", False)])
    def test_peers_that_compile_are_held_to_avx2_as_kfusion_is(self, isa, held, monkeypatch):
        monkeypatch.setattr(_core, "isa", lambda: isa)
        monkeypatch.setattr(_core, "available_isas", lambda: ["baseline", "avx2", "avx512"])
        monkeypatch.setattr(options.os, "environ", {"XLA_FLAGS": "--mine"})
        options.prepare_environment()
        assert (options.os.environ.get("ATEN_CPU_CAPABILITY") == "avx2") == held
        assert options.os.environ["XLA_FLAGS"] == "--mine"

    def test_modules_of_peers(self):
        assert options.module_of("torch.compile.warm") == "torch"
        assert options.module_of("numba") == "numba"
        assert options.module_of("torch.compile") == "torch"
        assert options.module_of("experiment") == "cupy"
        assert options.module_of("triton") == "triton"


class TestFiles:
    def test_json_there_and_back(self, tiny, tmp_path):
        tiny.save(tmp_path / "r.json")
        assert Results.load(tmp_path / "r.json") == tiny
        plain = json.loads((tmp_path / "r.json").read_text())
        assert plain["schema"] == SCHEMA
        assert plain["commit"] == "abc"
        assert plain["hardware"]["cpu"]["name"]
        assert plain["versions"]["numpy"] == np.__version__
        assert len((tmp_path / "r.json").read_text().splitlines()) > len(tiny.cases)

    @pytest.mark.parametrize("text", ["[]", "{", '{"schema": 99}', f'{{"schema": {SCHEMA}}}'])
    def test_what_is_no_result_is_refused(self, text, tmp_path):
        (tmp_path / "r.json").write_text(text)
        with pytest.raises(ValueError, match="is not what `kfusion bench --out` writes"):
            Results.load(tmp_path / "r.json")

    def test_merging_replaces_cases_and_keeps_others(self):
        old = results(
            measured("chains", "a", (1,), row("fused", 0.5)), measured("chains", "b", (1,), row("fused", 0.5))
        )
        new = results(measured("chains", "b", (1,), row("fused", 0.9)), measured("host", "c", (1,), row("fused")))
        merged = old.merged(new)
        assert [case.name for case in merged.cases] == ["a", "b", "c"]
        assert merged.cases[1].find("fused").of_copy == 0.9
        with pytest.raises(ValueError, match="cannot be added"):
            old.merged(results(device="cpu"))

    def test_runs_of_two_instruction_sets_are_not_mixed(self):
        narrow, wide = (results(device="cpu", isa=isa) for isa in ("avx2", "avx512"))
        assert (narrow.device_name, wide.device_name) == ("a CPU, 2 threads, AVX2", "a CPU, 2 threads, AVX-512")
        with pytest.raises(ValueError, match="cannot be added"):
            wide.merged(narrow)

    def test_the_instruction_set_is_recorded(self, isa, monkeypatch):
        monkeypatch.setenv("KFUSION_ISA", isa)
        found = bench.run(["host"], TINY, command=cli._command(cli._parser().parse_args(["host"])))
        assert found.isa == isa
        assert found.command == f"KFUSION_ISA={isa} kfusion bench host"

    def test_adding_from_a_shell(self, tmp_path, capsys):
        out = tmp_path / "r.json"
        common = [
            "--device",
            "cpu",
            "--quick",
            "--bytes",
            "4000",
            "--repeats",
            "1",
            "--peers",
            "none",
            "--out",
            str(out),
        ]
        assert main(["bench", "softmax", *common]) == 0
        assert main(["bench", "reductions", *common, "--add"]) == 0
        found = Results.load(out)
        assert found.suites == ("softmax", "reductions")
        assert found.command.count(" && ") == 1


class TestCompare:
    def change(self, old, new):
        return changes.Changes(results(*old), results(*new))

    def test_changes_beyond_noise(self):
        before = measured("chains", "f", (8,), row("fused", 0.5), row("torch", 0.5))
        after = measured("chains", "f", (8,), row("fused", 0.9), row("torch", 0.501))
        changes = self.change([before], [after])
        ((_, _, version, was, now, speed, _),) = changes.rows()
        assert (version, was, now, speed) == ("fused", "0.50", "0.90", "1.80x")
        assert "1 changes beyond noise among 1 cases" in str(changes)

    def test_noise_is_what_the_same_version_differs_by(self):
        rows = row("fused", 0.5), row("fused, again", 0.5, us=20.0)
        before, after = (measured("chains", "f", (8,), *rows, row("torch", r)) for r in (0.5, 0.6))
        assert self.change([before], [after]).rows() == []

    def test_times_where_there_is_no_copy(self):
        before, after = (measured("host", "f", (8,), row("fused", None, "call", us)) for us in (4.0, 2.0))
        ((*_, speed, _),) = self.change([before], [after]).rows()
        assert speed == "2.00x"

    def test_from_a_shell(self, tmp_path, capsys):
        for name in ("a", "b"):
            results(*row_cases()).save(tmp_path / f"{name}.json")
        assert main(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
        assert "0 changes beyond noise among 12 cases" in capsys.readouterr().out


class TestTargets:
    def found(self, *cases, device="cuda"):
        return {f.target.text: f for f in targets.found(results(*cases, device=device))}

    def test_the_worst_case_decides(self):
        found = self.found(*row_cases(**{"1024": 0.99, "8192": 0.5}))["rows of 1024 to 32768, of the copy's rate"]
        assert (found.cases, found.met, found.worst) == (6, 3, 0.5)
        assert "8192" in found.worst_case

    def test_peers(self):
        case = measured("norms", "layernorm", (65536, 1024), row("fused", 0.9), row("torch.compile", 0.6))
        found = self.found(case)["rows of 1024 to 32768, times as fast as torch.compile"]
        assert found.worst == pytest.approx(1.5)

    def test_odd_widths_beside_their_neighbours(self):
        found = self.found(*row_cases(**{"1023": 0.45, "1024": 0.9, "8192": 0.1}))
        assert found["odd widths, of the neighbouring multiple of 8"].worst == pytest.approx(0.5)

    def test_microseconds_are_upper_bounds(self):
        fast, slow = (
            measured("host", "f", (n, 256), row("fused, fresh", None, "call", us), layout="torch", nbytes=0)
            for n, us in ((16, 3.0), (17, 5.0))
        )
        found = self.found(fast, slow)["a call with a torch tensor on the GPU, us"]
        assert (found.met, found.cases, found.worst) == (1, 2, 5.0)

    def test_times_of_the_copy_are_upper_bounds_of_an_instruction_set(self):
        cases = [measured("cpu", name, (9,), row("fused", r), nbytes=2**30) for name, r in
                 (("layernorm", 0.8), ("2x + 3y", 0.5), ("sum over axis 0", 0.5), ("tanh(x) y", 0.6))]  # fmt: skip
        of = {isa: {f.target.text: f for f in targets.found(results(*cases, device="cpu", isa=isa))}
              for isa in ("avx2", "avx512", "baseline")}  # fmt: skip
        norms = of["avx2"]["AVX2, from memory, layernorm and relu_layernorm, in times of the copy"]
        assert (norms.cases, norms.met, norms.worst) == (1, 1, 1.25)
        assert targets.cells(norms)[1] == "<= 1.3"
        light = of["avx512"]["AVX-512, from memory, 2x + 3y, exp, rows and sums, in times of the copy"]
        assert (light.cases, light.met, light.worst) == (3, 0, 2.0)
        assert [[t for t in of[isa] if t.startswith("AVX-512")] for isa in ("avx2", "baseline")] == [[], []]

    def test_results_into_warm_arrays_are_compared_with_such(self):
        ours = (row("fused", 0.1, us=10, state="hot"), row("fused, fresh", us=20, state="hot"))
        peers = (row("torch.compile, warm", 0.5, us=9, state="hot"), row("torch", us=24, state="hot"))
        found = self.found(measured("cpu", "2x + 3y", (9,), *ours, *peers), device="cpu")
        for text in ("as the best peer", "as torch.compile into a warm result"):
            assert found[f"CPU, within the caches, times as fast {text}"].worst == 0.9

    def test_nothing_is_said_of_what_was_not_measured(self):
        assert self.found() == {}

    def test_from_a_shell(self, tmp_path, capsys):
        results(*row_cases()).save(tmp_path / "a.json")
        assert main(["bench", "--targets", str(tmp_path / "a.json")]) == 0
        out = capsys.readouterr().out
        assert "rows of 131072" in out
        assert re.search(r"\d+ of \d+ targets hold", out)


class TestShown:
    def test_tables_hold_every_case(self, tiny):
        pytest.importorskip("torch")
        text = str(show.Tables(tiny))
        for case in tiny.cases:
            assert show.title(case) in text

    def test_pictures(self, tmp_path):
        chain = measured("chains", "2x $ 3y", (512, 512), row("fused", 0.9), row("unfused", 0.3), row("copy", 1.0))
        found = results(*row_cases(), chain)
        paths = plots.save_all(found, tmp_path / "new", "run")
        assert {p.name for p in paths} == {"run_rows.png", "run_limit.png", "run_speedups.png"}
        assert all(p.read_bytes().startswith(b"\x89PNG") for p in paths)
        labels = {line.get_label() for line in plots.rows(found).axes[0].lines}
        assert {"fused", "unfused", "torch", "copy"} <= labels

    def test_nothing_to_draw(self):
        assert plots.draw(results()) == {}

    def test_pictures_of_a_file(self, tmp_path, capsys):
        results(*row_cases()).save(tmp_path / "a.json")
        assert main(["bench", "--plot", str(tmp_path / "a.json"), "--plots", str(tmp_path)]) == 0
        assert (tmp_path / "a_limit.png").exists()

    def test_from_a_shell(self, tmp_path, capsys, monkeypatch):
        monkeypatch.delenv("KFUSION_ISA", raising=False)
        out = tmp_path / "r.json"
        arguments = [
            "reductions",
            "--device",
            "cpu",
            "--quick",
            "--bytes",
            "20000",
            "--repeats",
            "1",
            "--peers",
            "none",
        ]
        assert main(["bench", *arguments, "--out", str(out), "--plots", str(tmp_path)]) == 0
        found = Results.load(out)
        assert found.command == "kfusion bench reductions --device cpu --quick --peers none --bytes 20000 --repeats 1"
        assert "sum over axis 0" in capsys.readouterr().out
        assert (tmp_path / "r_speedups.png").exists()

    def test_lists(self, capsys):
        assert main(["bench", "--list", "--device", "cpu"]) == 0
        out = capsys.readouterr().out
        for name in suites.SUITES:
            assert f"{name}: " in out
        assert main(["bench", "softmax", "--list", "--device", "cpu"]) == 0
        assert "softmax, 4096x1024 float32" in capsys.readouterr().out
        assert main(["bench", "softmax", "--list", "--only", "x262144 ", "--device", "cpu"]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == ["  softmax, 64x262144 float32"]

    @pytest.mark.parametrize("action", [["--list"], ["--quick"]])
    def test_text_that_no_case_has(self, capsys, action):
        assert main(["bench", "softmax", "--only", "nosuch", "--device", "cpu", *action]) == 2
        error = capsys.readouterr().err
        assert "no case has 'nosuch' in its title; there are\n  softmax, 4096x1024 float32\n" in error


class TestReadme:
    def runs(self, tiny):
        few = measured("softmax", "softmax", (1, 8192), row("fused", 0.8), row("copy", 1.0))
        first = measured("relu_layernorm", "relu_layernorm", (4096, 1024), row("unfused", 0.25), row("fused", 1.0))
        return {"h200": results(*row_cases(), few, first, *tiny.of_suite("chains", "reductions")), "cpu": tiny}

    def test_regions_are_rewritten_and_nothing_else(self, tiny):
        text = "a\n<!-- bench:rows -->\nold\n<!-- /bench -->\nb\n<!-- bench:cpu -->\n<!-- /bench -->\n"
        once = readme.rewritten(text, self.runs(tiny))
        assert "old" not in once
        assert once.startswith("a\n<!-- bench:rows -->\n| function | dtype | 1023 | 1024 |")
        assert "| softmax | float32 | 0.98 | 0.99 | 0.97 | 0.93 |" in once
        assert readme.rewritten(once, self.runs(tiny)) == once

    @pytest.mark.parametrize("page", ["README.md", *readme.PAGES])
    def test_what_is_committed_is_what_the_results_say(self, page):
        """If not: kfusion bench --readme README.md."""
        root = Path(__file__).parents[1]
        text = (root / page).read_text()
        assert text == readme.rewritten(text, readme.load(root), root)
        for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
            assert (root / page).parent.joinpath(picture).exists()

    def test_the_pages_have_every_region(self):
        root = Path(__file__).parents[1]
        text = "".join((root / page).read_text() for page in ("README.md", *readme.PAGES))
        assert set(readme.REGIONS) <= set(re.findall(r"<!-- bench:(\w+) -->", text))

    @pytest.mark.parametrize("name", readme.REGIONS)
    def test_every_region_has_text(self, tiny, name):
        assert readme.REGIONS[name](self.runs(tiny)).strip()

    def test_versions_stand_beside_the_fastest_peer(self):
        own, copy = (row("fused", 0.9, us=11), row("unfused", 0.3, us=33)), row("copy", 1.0)
        few = measured("softmax", "softmax", (1, 8192), *own, row("cupy", 0.2, us=50), row("torch", 0.5, us=20), copy)
        alone = measured("norms", "layernorm", (1, 8192), *own, copy)
        text = readme.REGIONS["shapes"]({"h200": results(few, alone)})
        header, _, line = text.splitlines()
        assert header == "| shape | softmax | layernorm |"
        assert line == "| 1 x 8192 | 0.90 / 0.30 (0.50) | 0.90 / 0.30 |"

    def test_cases_within_the_caches_stand_below_the_cache(self):
        def case(n, *us):
            rows = (row(v, state="hot", us=t) for v, t in zip(("fused", "unfused", "numpy"), us, strict=True))
            return measured("cpu", "2x + 3y", (n,), *rows, nbytes=12 * n)

        text = readme.REGIONS["cpu_in_cache"]({"cpu": results(case(1365, 4, 5, 7), case(43690, 18, 27, 23))})
        assert text.splitlines()[0] == "| function | a core's L1 | L2 |"
        assert text.splitlines()[2] == "| 2x + 3y | 4.00 us / 5.00 us (7.00 us) | 18.0 us / 27.0 us (23.0 us) |"

    def test_tables_of_the_cpu(self):
        versions = ("fused", "torch.compile", "torch.compile, warm", "jax.jit", "numexpr", "numba, warm", "copy")
        cases = []
        for n, state, times in ((89478485, "cold", [9] * 7), (1365, "hot", [10, 9e4, 8, 70, 60, 50, 7])):
            rows = (row(v, 0.9, state, us) for v, us in zip(versions, times, strict=True))
            cases.append(measured("cpu", "2x + 3y", (n,), *rows, nbytes=12 * n))
        runs = {"cpu": results(*cases, device="cpu", isa="avx512")}
        others = "| fused | torch.compile | torch.compile, warm | jax.jit | numexpr | numba, warm | copy |"
        short = readme.REGIONS["cpu"](runs).splitlines()
        assert short[0] == "| function | shape | dtype | fused | torch.compile, warm | jax.jit | copy |"
        cold, hot = (readme.REGIONS[f"cpu_{state}"](runs).splitlines() for state in ("cold", "hot"))
        assert cold[0] == f"| function | shape | dtype {others}"
        assert hot[0] == f"| function | shape | dtype | in {others}"
        assert hot[2].startswith("| 2x + 3y | 1365 | float32 | a core's L1 | **0.70** | 8e-05 | 0.88 |")
        assert (len(short), len(cold), len(hot)) == (3, 3, 3)
        narrow = runs | {"cpu_avx2": results(*cases, device="cpu", isa="avx2")}
        for state in ("cold", "hot"):
            assert readme.REGIONS[f"cpu_avx2_{state}"](runs) == "Not measured."
            assert readme.REGIONS[f"cpu_avx2_{state}"](narrow) == readme.REGIONS[f"cpu_{state}"](runs)

    def test_results_with_avx2_are_optional(self, tiny, tmp_path):
        (tmp_path / "results").mkdir()
        for name, run in self.runs(tiny).items():
            run.save(tmp_path / "results" / f"{name}.json")
        assert set(readme.load(tmp_path)) == {"h200", "cpu"}
        results(device="cpu", isa="avx2").save(tmp_path / "results" / "cpu_avx2.json")
        text = readme.REGIONS["machines"](readme.load(tmp_path))
        assert "| CPU, AVX2 | a CPU, 2 threads, AVX2 | `results/cpu_avx2.json` |" in text

    def test_an_unknown_region(self, tiny):
        with pytest.raises(ValueError, match="a region must be one of"):
            readme.rewritten("<!-- bench:nothing -->\n<!-- /bench -->\n", self.runs(tiny))

    def test_from_a_shell(self, tiny, tmp_path, capsys):
        (tmp_path / "results").mkdir()
        for name, run in self.runs(tiny).items():
            run.save(tmp_path / "results" / f"{name}.json")
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
