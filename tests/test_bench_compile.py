"""`kfusion bench compile`: versions, order and what is kept of runs that end early."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest

import benchmarks as bench
from benchmarks import compiling, models, runner, suites
from benchmarks.results import Measured, Results, Row
from kfusion._cli.main import main

QUICK = bench.Options(device="cpu", quick=True, peers=("torch",), repeats=2)


@dataclasses.dataclass(frozen=True)
class Job:
    """A case that takes no time."""

    name: str
    suite: str = "compile"
    shape: tuple[int, ...] = (2, 3)
    dtype: str = "float32"
    library: str = "torch"

    @property
    def title(self):
        return self.name

    def measure(self, inputs, options, report):
        if self.name == "stopped":
            raise KeyboardInterrupt
        row = Row("kfusion", "call", 1.0, 1.0, 1.0, 1)
        return Measured(self.suite, self.name, self.shape, self.dtype, self.library, 0, (row,))


@pytest.fixture
def jobs(monkeypatch):
    """The names of jobs that are run in the place of suites'."""
    names = ["first", "second"]
    monkeypatch.setattr(suites, "jobs", lambda chosen, options: [Job(n) for n in names])
    return names


def test_results_are_kept_case_by_case(jobs):
    kept = []
    found = bench.run(["compile"], QUICK, commit="abc", keep=kept.append)
    assert [[c.name for c in r.cases] for r in kept] == [["first"], ["first", "second"]]
    assert not any(r.complete for r in kept)
    assert found.complete
    assert found.cases == kept[-1].cases


def test_a_run_that_is_stopped_keeps_what_there_is(jobs, tmp_path):
    jobs.append("stopped")
    jobs.append("never")
    out = tmp_path / "r.json"
    main(["bench", "compile", "--device", "cpu", "--peers", "none", "--out", str(out), "--commit", "abc"])
    found = Results.load(out)
    assert [c.name for c in found.cases] == ["first", "second"]
    assert not found.complete


def test_no_case_begins_when_the_seconds_are_over(jobs, monkeypatch):
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(now))
    found = bench.run(["compile"], dataclasses.replace(QUICK, seconds=15), commit="abc")
    assert [bool(c.rows) for c in found.cases] == [True, False]
    assert found.cases[1].notes == ("not measured: 15 s were over",)
    assert found.complete


def test_models_that_tell_most_come_first():
    pytest.importorskip("transformers")
    names = [job.name for job in suites.jobs(["compile"], bench.Options(device="cuda"))]
    assert names[:3] == ["BERT", "ResNet", "diffusion block"]
    assert len(set(names)) == len(names) == len(models.available())


class TestVersions:
    """Which are compiled, and how."""

    @pytest.fixture
    def firsts(self, monkeypatch):
        """The versions whose first calls are measured; those named in `wrong` are."""
        torch = pytest.importorskip("torch")
        seen, wrong = [], set()

        def first(call, exact, device):
            version = seen[-1][0]
            return compiling._First(1.0 if version in wrong else 1e-7, 1.0, 1.0, 0, None)

        def compiled(model, *, dynamic, mode, backend="inductor"):
            seen.append((None, mode, backend if type(backend) is str else "kfusion"))
            return model

        plain = compiling._version

        def version(model, name):
            run = plain(model, name)
            if name == "torch":
                seen.append((name, None, None))
            else:
                seen[-1] = (name, *seen[-1][1:])
            return run

        monkeypatch.setattr(compiling, "_warm_up", lambda: None)
        monkeypatch.setattr(compiling, "_cold", contextlib.nullcontext)
        monkeypatch.setattr(compiling, "_first", first)
        monkeypatch.setattr(compiling, "_version", version)
        monkeypatch.setattr(torch, "compile", compiled)
        return seen, wrong

    def compiled(self, **options):
        case = compiling.CompileCase("compile", "diffusion block", "float32", False)
        chosen = dataclasses.replace(QUICK, **options)
        return case._compiled(dict, {}, [], chosen, lambda done, what: None)

    def test_on_a_gpu(self, firsts):
        peers = ("torch.compile.max", "torch.compile.graphs", "torch.compile", "torch")
        self.compiled(device="cuda", peers=peers, all_peers=True)
        assert firsts[0][0] == ("torch", None, None)
        assert set(firsts[0][1:]) == {
            ("kfusion", None, "kfusion"),
            ("kfusion.graphs", "reduce-overhead", "kfusion"),
            ("torch.compile", None, "inductor"),
            ("torch.compile.graphs", "reduce-overhead", "inductor"),
            ("torch.compile.max", "max-autotune", "inductor"),
        }

    def test_on_the_cpu_without_what_compiles_slowly(self, firsts):
        runs, _, _ = self.compiled(peers=("torch", "torch.compile", "torch.compile.max"))
        assert list(runs) == ["torch", "kfusion", "torch.compile"]

    def test_a_wrong_result_is_an_error(self, firsts):
        firsts[1].add("kfusion.graphs")
        with pytest.raises(AssertionError, match=r"kfusion\.graphs is wrong by 1\.0e\+00"):
            self.compiled(device="cuda")
        self.compiled()


def test_what_calls_keep_of_a_gpu(monkeypatch):
    """The recording of CUDA graphs is in it, the temporary arrays of checks are not."""
    torch = pytest.importorskip("torch")
    free = iter([1000, 700])
    monkeypatch.setattr(compiling, "free_bytes", lambda: next(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (600, 5000))
    calls = []
    found = compiling._first(lambda: calls.append(1) or torch.ones(3), [torch.ones(3).double()], "cuda")
    assert found.held_bytes == 400
    assert found.error == 0
    assert len(calls) == 4
    assert next(free, None) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_tiny_model_is_measured():
    pytest.importorskip("torch")
    chosen = dataclasses.replace(QUICK, only="diffusion block")
    (case,) = bench.run(["compile"], chosen, commit="abc").cases
    assert not case.notes
    assert {(r.version, r.state) for r in case.rows} == {
        (version, state)
        for version in ("kfusion", "torch")
        for state in (compiling.CALL, compiling.CALL_CPU, compiling.FIRST, compiling.FIRST_CPU)
    }
    ours = case.find("kfusion", compiling.CALL)
    assert ours.samples == 2
    assert ours.error < 1e-5
    assert ours.breaks == 0
    assert np.isfinite([r.median_us for r in case.rows]).all()
