"""Kernels of the CPU for other processors than this: compiled, loaded by the product's loader, and run by qemu."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from importlib.util import find_spec

import numpy as np
import pytest

from kfusion import _core, _llvm
from small_kernels import ARM, TEXT, check

ROOT = pathlib.Path(__file__).parent.parent
TARGETS = {
    "baseline": ("x86_64-unknown-linux-gnu", "x86-64", ""),
    "avx2": ("x86_64-unknown-linux-gnu", "x86-64-v3", ""),
    "avx512": ("x86_64-unknown-linux-gnu", "x86-64-v4", ""),
    "arm": ARM,
    "macos": (ARM[0], ARM[1], "+reserve-x18"),
}
pytestmark = pytest.mark.skipif(find_spec("llvmlite") is None, reason="needs llvmlite")


@pytest.fixture(scope="module")
def run_on_arm(tmp_path_factory):
    """run_on_arm(object, function, *arrays) calls a function, which may write to the arrays."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("needs qemu-user and g++-aarch64-linux-gnu")
    folder = tmp_path_factory.mktemp("arm")
    program = folder / "run_object"
    sources = [ROOT / "tests/support/run_object.cpp"]
    sources += [ROOT / f"cpp/cpu/codegen/{name}.cpp" for name in ("elf", "relocation", "platform")]
    subprocess.run([compiler, "-std=c++20", "-O1", "-static", f"-I{ROOT}/cpp", *sources, "-o", program], check=True)

    def run(code: bytes, function: str, *arrays: np.ndarray) -> None:
        (folder / "object").write_bytes(code)
        files = [folder / f"array{i}" for i in range(len(arrays))]
        for file, array in zip(files, arrays, strict=True):
            file.write_bytes(array.tobytes())
        done = subprocess.run([emulator, program, folder / "object", function, *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for file, array in zip(files, arrays, strict=True):
            array[...] = np.frombuffer(file.read_bytes(), array.dtype).reshape(array.shape)

    return run


@pytest.mark.parametrize("target", TARGETS)
def test_compiles(target):
    code = _llvm.compile_object(TEXT, *TARGETS[target])
    assert code.startswith(b"\x7fELF")
    if TARGETS[target][0] != _core.host_facts()["triple"]:
        with pytest.raises(RuntimeError, match="it is for another processor"):
            _core.load_object(code)


@pytest.mark.parametrize("target", ["arm", "macos"])
def test_runs_on_arm(run_on_arm, target):
    code = _llvm.compile_object(TEXT, *TARGETS[target])
    check(lambda function, *arrays: run_on_arm(code, function, *arrays))
