"""Kernels of the CPU as machine code: compiling LLVM's language, and loading the objects."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kfusion import _core, _llvm

pytestmark = pytest.mark.native

pytest.importorskip("llvmlite")

ARM = ("aarch64-unknown-linux-gnu", "generic", "")
# Constants in sections of their own, calls of the C library, a table of jumps: all that kernels' objects have.
TEXT = """
@table = private unnamed_addr constant [4 x double] [double 0.5, double 1.5, double 2.5, double 3.5]

define void @scale(ptr %x, ptr %y) {
  %a = load <8 x float>, ptr %x, align 4
  %b = fmul <8 x float> %a, splat (float 3.0)
  %c = fadd <8 x float> %b, <float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0, float 6.0, float 7.5>
  store <8 x float> %c, ptr %y, align 4
  ret void
}

define void @clear(ptr %x, ptr %count) {
  %n = load i64, ptr %count
  call void @llvm.memset.p0.i64(ptr %x, i8 0, i64 %n, i1 false)
  ret void
}

define void @remainder(ptr %x, ptr %y) {
  %a = load float, ptr %x
  %b = load float, ptr %y
  %c = frem float %a, %b
  store float %c, ptr %x
  ret void
}

define void @look_up(ptr %place, ptr %y) {
  %i = load i64, ptr %place
  %at = getelementptr double, ptr @table, i64 %i
  %v = load double, ptr %at
  store double %v, ptr %y
  ret void
}

define void @choose(ptr %which, ptr %y) {
  %i = load i64, ptr %which
  switch i64 %i, label %other [i64 0, label %a
                               i64 1, label %b
                               i64 2, label %c
                               i64 3, label %d
                               i64 4, label %e]
a: store i64 11, ptr %y
  ret void
b: store i64 7, ptr %which
  ret void
c: store i64 %i, ptr %y
  ret void
d: store i64 99, ptr %y
  ret void
e: store i64 -1, ptr %y
  ret void
other: ret void
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


def call(code, function, *arrays):
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))(code.address(function))(*pointers)


def check(run):
    """All functions of TEXT: `run(function, *arrays)` calls one."""
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    run("scale", x, y)
    np.testing.assert_array_equal(y, 3 * x + np.array([0, 1, 2, 3, 4, 5, 6, 7.5], np.float32))
    x = np.full(1000, 9, np.uint8)
    run("clear", x, np.array([997]))
    np.testing.assert_array_equal(x, [0] * 997 + [9] * 3)
    x = np.array([7.25], np.float32)
    run("remainder", x, np.array([2], np.float32))
    assert x == 1.25
    for i in range(4):
        y = np.zeros(1)
        run("look_up", np.array([i]), y)
        assert y == i + 0.5
    for i, want in enumerate([11, 0, 2, 99, -1, 0]):
        y = np.zeros(1, np.int64)
        run("choose", np.array([i]), y)
        assert y == want


def host_object():
    facts = _core.host_facts()
    return _llvm.compile_object(TEXT, facts["triple"], facts["cpu"], facts["features"])


class TestCompiling:
    def test_runs(self, isa):
        code = _core.machine_code(TEXT)
        check(lambda *a: call(code, *a))
        assert code.text == TEXT

    @pytest.mark.skipif("aarch64" in _core.host_facts()["triple"], reason="has one level")
    def test_target(self, isa):
        facts = _core.host_facts()
        assert facts["vector_bytes"] == {"avx512": 64, "avx2": 32, "baseline": 16}[isa]

    def test_one_that_somebody_has_is_shared(self):
        first, second = (_core.machine_code(TEXT) for _ in range(2))
        assert first.address("scale") == second.address("scale")

    def test_wrong_text(self):
        wrong = TEXT.replace("fmul <8 x float>", "fmul <9 x float>")
        with pytest.raises(
            RuntimeError, match=r"LLVM refuses the text of a kernel(.|\n)*define void @scale(.|\n)*\.\.\.$"
        ):
            _core.machine_code(wrong)

    def test_text_that_only_parses(self):
        with pytest.raises(RuntimeError, match="LLVM refuses"):
            _core.machine_code(
                "define void @f(i32 %x) {\n  br label %a\na:\n  %y = add i32 %z, 1\n  %z = add i32 %y, 1\n  ret void\n}"
            )

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            ("declare void @other()\ndefine void @f() {\n  call void @other()\n  ret void\n}", "refers to other"),
            ("@n = global i64 3\ndefine void @f() {\n  store i64 4, ptr @n\n  ret void\n}", "data that is written"),
            ("@n = external global i64\ndefine void @f() {\n  store i64 4, ptr @n\n  ret void\n}", "refers to n"),
        ],
    )
    def test_what_kernels_have_not(self, text, why):
        with pytest.raises(RuntimeError, match=f"object code is refused: it (has )?{why}"):
            _core.machine_code(text)

    def test_no_such_function(self):
        with pytest.raises(IndexError, match="no function nothing"):
            _core.machine_code(TEXT).address("nothing")


class TestObjects:
    def test_loads(self):
        code = _core.load_object(host_object())
        check(lambda *a: call(code, *a))

    def test_of_another_processor(self):
        with pytest.raises(RuntimeError, match="another processor"):
            _core.load_object(_llvm.compile_object(TEXT, *ARM))

    def test_every_truncation(self):
        whole = host_object()
        for length in range(len(whole)):
            with pytest.raises(RuntimeError, match="refused"):
                _core.load_object(whole[:length])

    def test_mutations(self, rng):
        """Each is refused or loads; sanitizers see what is read or written outside of it."""
        whole = host_object()
        refused = 0
        for _ in range(20000):
            damaged = bytearray(whole)
            for _ in range(rng.integers(1, 4)):
                at = rng.integers(len(whole)) if rng.random() < 0.5 else rng.integers(64)
                damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.integers(256)])
            try:
                _core.load_object(bytes(damaged))
            except RuntimeError as error:
                assert "object code is refused" in str(error)  # noqa: PT017
                refused += 1
        assert refused > 1000
