"""Kernels of the CPU for other processors than this: compiled, loaded by the product's loader, and run by qemu."""

import pathlib
import shutil
import subprocess
from importlib.util import find_spec

import numpy as np
import pytest

import kernel_loops
import kfusion as kf
import vector_maps
from graph_runs import graph_of
from kernel_graphs import normalized, softmax
from kfusion import _core, _llvm
from kinds import np_dtype
from small_kernels import ARM, TEXT, check
from test_cpu_codegen_ops import COMPUTED, assert_same_bits, dtypes_of
from test_vector_math import arguments

LANES = 8
# These are of doubles and of large floats: each system has another libm.
LIBM = {
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "cos",
    "cosh",
    "erf",
    "hypot",
    "power",
}
LIBM |= {"sin", "sinh", "tan"}
ROOT = pathlib.Path(__file__).parent.parent
TARGETS = {
    "baseline": ("x86_64-unknown-linux-gnu", "x86-64", ""),
    "avx2": ("x86_64-unknown-linux-gnu", "x86-64-v3", ""),
    "avx512": ("x86_64-unknown-linux-gnu", "x86-64-v4", ""),
    "arm": ARM,
    "macos": (ARM[0], ARM[1], "+reserve-x18"),
}
pytestmark = pytest.mark.skipif(find_spec("llvmlite") is None, reason="needs llvmlite")


class Arm:
    """Runs functions on an emulated processor; they may write to the arrays."""

    def __init__(self, program):
        self.program = program

    def run(self, code, function, *arrays, how=("plain",)):
        folder = self.program.parent
        (folder / "object").write_bytes(code)
        files = [folder / f"array{i}" for i in range(len(arrays))]
        for file, array in zip(files, arrays, strict=True):
            file.write_bytes(array.tobytes())
        command = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", self.program, folder / "object", function]
        done = subprocess.run([*command, *map(str, how), *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for file, array in zip(files, arrays, strict=True):
            array[...] = np.frombuffer(file.read_bytes(), array.dtype).reshape(array.shape)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None or shutil.which("qemu-aarch64") is None:
        pytest.skip("needs qemu-user and g++-aarch64-linux-gnu")
    program = tmp_path_factory.mktemp("arm") / "run_object"
    sources = [ROOT / "tests/support/run_object.cpp"]
    sources += [ROOT / f"cpp/cpu/{name}.cpp" for name in ("platform", "control_group")]
    machine_code = ("elf", "libm_table", "platform", "relocation", "vector_libm")
    sources += [ROOT / f"cpp/cpu/machine_code/{name}.cpp" for name in machine_code]
    flags = ["-std=c++20", "-O1", f"-I{ROOT}/cpp", "-pthread"]
    subprocess.run([compiler, *flags, *sources, "-o", program, "-ldl"], check=True)
    return Arm(program)


@pytest.mark.parametrize("target", TARGETS)
def test_compiles(target):
    code = _llvm.compile_object(TEXT, *TARGETS[target])
    assert code.startswith(b"\x7fELF")
    if TARGETS[target][0] != _core.testing.host_facts()["triple"]:
        with pytest.raises(RuntimeError, match="it is for another processor"):
            _core.testing.load_object(code)


@pytest.mark.parametrize("target", ["arm", "macos"])
def test_runs_on_arm(arm, target):
    code = _llvm.compile_object(TEXT, *TARGETS[target])
    check(lambda function, *arrays: arm.run(code, function, *arrays))


@pytest.mark.skipif("avx2" not in _core.available_isas(), reason="compares with a processor that rounds as that does")
@pytest.mark.parametrize(("name", "dtype"), COMPUTED)
def test_steps_on_arm(arm, name, dtype, rng):
    """They give what AVX2 gives, to the bit; functions of libm to some units in the last place."""
    dtypes = dtypes_of(name, dtype)
    arrays = [x.astype(np_dtype(t)) for x, t in zip(arguments(name, dtype, rng), dtypes, strict=True)]
    before = _core.isa()
    _core.testing.set_isa("avx2")
    try:
        want = vector_maps.kernel(name, *dtypes, size=arrays[0].size)(*arrays)
    finally:
        _core.testing.set_isa(before)
    registers = -(-want.size // LANES)
    whole = [np.resize(x, registers * LANES) for x in arrays]
    got = np.empty(registers * LANES, want.dtype)
    code = _llvm.compile_object(_core.testing.cpu_step_text(name, dtypes, "aarch64", LANES, str(want.dtype)), *ARM)
    arm.run(code, "kernel", *whole, got, how=("step", registers))
    got = got[: want.size]
    if name in LIBM and want.dtype in (np.float32, np.float64):
        np.testing.assert_allclose(got, want, rtol=4 * np.finfo(want.dtype).eps)
    else:
        assert_same_bits(got, want, arrays)


def exact_softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def exact_normalized(x):
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


KERNELS = {
    "map": (lambda g, x: g.map("add", [g.map("exp", [x]), x]), lambda x: np.exp(x) + x),
    "sum": (lambda g, x: g.reduce("sum", g.map("square", [x]), [1]), lambda x: (x * x).sum(1)),
    "max": (lambda g, x: g.reduce("max", x, [1]), lambda x: x.max(1)),
    "softmax": (softmax, exact_softmax),
    "normalized": (normalized, exact_normalized),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
# The last two go by in pieces: few rows, and long ones.
@pytest.mark.parametrize("shape", [(17, 64), (20, 65), (33, 301), (18, 1023), (3, 40_001), (2, 70_001)], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_on_arm(arm, name, shape, dtype, rng):
    build, oracle = KERNELS[name]
    x = (0.5 * rng.standard_normal(shape)).astype(np_dtype(dtype))  # whose squares' sums float16 has
    graph, device = graph_of(build, x), kf.device("cpu").to_dict()
    calls, in_pieces = iter(_core.testing.cpu_kernel_texts(graph, device, "aarch64")), []

    def compute(kernel, memory):
        call = next(calls)
        assert "why" not in call
        arrays = [memory[o["node"]].elements for o in kernel["loads"]]
        arrays += [memory[s["to"]["node"]].elements for s in kernel["stores"]]
        arrays += [np.array(call["integers"], np.int64), np.array(call["numbers"], np.float64)]
        code, functions = _llvm.compile_object(call["text"], *ARM), call["functions"]
        numbers = len(kernel["loads"]), call["scratch_bytes"], call["rows"]
        if functions == ["kernel"]:
            arm.run(code, "kernel", *arrays, how=("kernel", *numbers, call["cols"]))
        else:
            arm.run(code, str(len(functions) // 2), *arrays, how=("pieces", *numbers, call["pieces"]))
        in_pieces.append(functions != ["kernel"])

    (got,) = kernel_loops.run(_core.testing.lower(graph, device), [x], compute=compute)
    assert any(in_pieces) == (shape[1] > 40_000 and name != "map")
    want = oracle(x.astype(float))
    tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(got.astype(float), want, rtol=tolerance, atol=tolerance)
