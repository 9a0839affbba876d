"""Which warnings are no errors; which cases a run takes, and that its seed repeats it; turns on a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import selection
from gpu_turns import turn
from sweeps import sweep


def warn() -> None:
    """Warns as torch does where a process's first product is in the thread of a backward pass."""
    text = "Attempting to run cuBLAS, but there was no current CUDA context! Attempting to set the primary context..."
    warnings.warn(text, stacklevel=2)


@pytest.mark.cuda  # and runs everywhere
def test_torch_s_first_product_on_a_gpu():
    warn()


def test_torch_s_first_product_elsewhere():
    with pytest.raises(UserWarning, match="cuBLAS"):
        warn()


NAMES = [f"tests/test_a.py::test_many[{i}]" for i in range(100)] + ["tests/test_a.py::test_one"]


def test_the_same_cases_are_chosen_whatever_else_there_is():
    kept = selection.chosen(NAMES, 0, 10)
    assert len(kept) == 11
    assert NAMES[-1] in kept
    other = "tests/test_b.py::test_other[1]"
    assert selection.chosen([*reversed(NAMES), other], 0, 10) - kept == {other}
    assert selection.chosen(NAMES, 1, 10) != kept
    assert len(selection.chosen(NAMES, 0, 3)) == 4
    assert selection.chosen(NAMES, 0, 0) == set(NAMES)
    names = [f"tests/test_a.py::test_{i}" for i in range(100)]  # each function is drawn by some seed
    drawn = [selection.chosen(names, seed, 1, 4) for seed in range(40)]
    assert all(10 < len(some) < 45 for some in drawn)
    assert set().union(*drawn) == set(names)
    assert selection.number_of(0, "test_a") == 274674886
    assert selection.number_of(1, "test_a") != selection.number_of(0, "test_a")


@pytest.mark.parametrize(
    ("markexpr", "text", "is_left_out"),
    [
        ("slow", "", True),
        ("slow and not cuda", "@pytest.mark.cuda", True),
        ("slow and not cuda", "@pytest.mark.slow", False),
        ("not slow", "", False),
        ("slow or native", "", False),
        ("", "", False),
    ],
)
def test_files_without_the_mark_that_is_asked_for_are_left_out(tmp_path, markexpr, text, is_left_out):
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert selection.lacks_mark(path, markexpr) == is_left_out


def test_every_failing_row_of_a_sweep_is_told():
    def check(k):
        assert k % 2, f"{k} is even"

    with pytest.raises(AssertionError, match=r"2 of 4 rows fail\n\(0,\): .* 0 is even(.|\n)*\(2,\): .* 2 is even"):
        sweep(check, [(k,) for k in range(4)])
    with pytest.raises(AssertionError):
        sweep(check, [])


def run_pytest(folder, *options):
    """What a run of pytest prints in which half the tests print what they draw."""
    support = Path(__file__).parent / "support"
    (folder / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    text = "import pytest\\n\\n@pytest.mark.parametrize('k', range(16))\\ndef test_drawn(k, seed, rng):\\n"
    text += "    assert not rng.integers(2), f'drew {seed}'\\n"
    (folder / "test_drawn.py").write_text(text.replace("\\n", "\n"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    path = os.pathsep.join([str(support), *sys.path])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout


@pytest.mark.slow
def test_a_run_is_repeated_by_its_seed(tmp_path):
    """What a fresh run prints suffices; a line for each file says how far it is."""
    pytest.importorskip("xdist")
    first = run_pytest(tmp_path, "-n2")
    assert "seed: 0, the same in every run" in first
    assert "] test_drawn.py: " in first
    fresh = run_pytest(tmp_path, "--fresh", "-n0")
    [seed] = set(re.findall(r"--seed (\d+) repeats it", fresh))
    again = run_pytest(tmp_path, "--seed", seed, "-n0")
    assert re.findall("drew .*", fresh) == re.findall("drew .*", again)
    assert "error" not in run_pytest(tmp_path, "--fresh", "-n2")  # both processes choose the same cases


def test_turns_on_a_gpu(tmp_path):
    """Two go together; who wants to be alone waits for them, and is let in before those who come later."""
    order, together, leave = [], threading.Barrier(3), threading.Event()

    def beside():
        with turn(tmp_path, alone=False):
            together.wait(60)
            leave.wait(60)
            order.append("beside")

    def entering(name, *, alone):
        def enter():
            with turn(tmp_path, alone=alone):
                order.append(name)

        return threading.Thread(target=enter)

    threads = [threading.Thread(target=beside) for _ in range(2)]
    for thread in threads:
        thread.start()
    together.wait(60)
    for thread in (entering("alone", alone=True), entering("later", alone=False)):
        thread.start()
        threads.append(thread)
        thread.join(0.3)
        assert thread.is_alive()
    leave.set()
    for thread in threads:
        thread.join(60)
    assert order == ["beside", "beside", "alone", "later"]
