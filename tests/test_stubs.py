"""The types of the public names: the stub is what its script writes, and mypy finds typos in names and parameters."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import kfusion as kf
from tools import stubs

pytestmark = pytest.mark.slow

NAMES = [name for name in kf.__all__ if not name.startswith("_")]
USES = (
    "kf.relu(x)",
    "kf.clip(x, max=1)",
    "kf.sum(x, axis=(0, 1), keepdims=True)",
    "kf.fused_softmax(x, axis=0, out=x, stream=None)",
    "kf.unfused_add_layernorm(x, x)[0]",
    "kf.fused_gelu.unfused(x), kf.fused_gelu.plan(x).predicted_speedup",
    "kf.fuse(lambda x: kf.exp(x))(x, out=x)",
    "kf.fuse(forbid=[('mul', 'add')])(kf.tanh)",
)


def test_the_stub_is_what_its_script_writes():
    assert stubs.STUB.read_text() == stubs.text(), "run `python -m tools.stubs`"


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy says of each line of a program that has all names, and typos of all."""
    pytest.importorskip("mypy", reason="needs mypy, of the group lint")
    folder = tmp_path_factory.mktemp("typos")
    lines = [line for name in NAMES for line in (f"reveal_type(kf.{name})", f"kf.{name}_x", f"kf.{name}(axsi=1)")]
    program = folder / "program.py"
    program.write_text("\n".join(["import kfusion as kf, numpy as np; x = np.ones(1)", *lines, *USES]))
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), "--config-file", "", str(program)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    messages: dict[str, list[str]] = {line: [] for line in (*lines, *USES)}
    for number, message in re.findall(r"program\.py:(\d+): (.*)$", ran.stdout, re.M):
        messages[[None, *messages][int(number) - 1]].append(message)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return messages


def test_types_know_names_and_parameters(said):
    known = r'note: Revealed type is "(?!Any).*"'
    assert not [name for name in NAMES if not re.fullmatch(known, *said[f"reveal_type(kf.{name})"])]
    assert not [name for name in NAMES if "[attr-defined]" not in " ".join(said[f"kf.{name}_x"])]
    assert not [line for line in USES if said[line]]
    found = re.compile("Unexpected keyword argument|No overload variant")
    functions = [name for name in NAMES if not inspect.isclass(getattr(kf, name))]
    accepted = {name for name in functions if not found.search(" ".join(said[f"kf.{name}(axsi=1)"]))}
    # They pass keywords on. mypy says of plan that no overload takes a call without the function.
    assert accepted == {"compare", "kept_for_backward", "sweep", "trace", "tune"}
