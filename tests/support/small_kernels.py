"""Texts in LLVM's language, and what their functions must do."""

from __future__ import annotations

import ctypes
import textwrap

import numpy as np

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


def add(number):
    """A small kernel of its own for each number: x[0] += number."""
    return textwrap.dedent(f"""
        define void @add(ptr %x) {{
          %a = load i64, ptr %x
          %b = add i64 %a, {number}
          store i64 %b, ptr %x
          ret void
        }}""")


def check_add(code, number):
    x = np.array([5])
    call(code, "add", x)
    assert x == 5 + number
