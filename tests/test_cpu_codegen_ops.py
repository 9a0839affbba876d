"""Steps of the CPU's kernels as LLVM's language: the bits of whole kernels, for any number of lanes, on every
instruction set."""

import ctypes
import itertools
import struct

import numpy as np
import pytest

import reference_ops
import vector_maps
from kfusion import _core, _llvm
from kinds import ALL_DTYPES, np_dtype
from sweeps import sweep
from test_reference_ops import HALF, TABLE, specials, takes
from test_vector_math import arguments, some_floats, some_values

pytestmark = pytest.mark.native

pytest.importorskip("llvmlite")

MAPS = [(name, dtype) for name in reference_ops.MAPS for dtype in ALL_DTYPES if dtype in takes(name)]
BYTES = {"avx512": 64, "avx2": 32, "baseline": 16}


def dtypes_of(name, dtype):
    """The dtypes of the arguments as they are computed: integers are floats to functions of floats, and so on."""
    signature = TABLE[name]["signature"]
    if signature == "LLL_L":
        return ["int64"] * 3
    if signature == "BNN_N":
        return ["bool", dtype, dtype]
    return [dtype] * TABLE[name]["arity"]


def is_computed(name, dtype):
    """Whether a kernel has the step for values of this dtype, with no cast before it."""
    signature = TABLE[name]["signature"]
    if signature in ("F_F", "FF_F") or name == "rint":  # NumPy's of integers gives float64
        return dtype not in ("bool", "int32", "int64")
    return {"BB_B": dtype == "bool", "LLL_L": dtype == "int64"}.get(signature, True)


COMPUTED = [(name, dtype) for name, dtype in MAPS if is_computed(name, dtype)]


class Generated:
    """A step for the instruction set in use."""

    def __init__(self, step, dtypes, lanes, to, numbers=0, together=1):
        self.lanes, self.to = lanes * together, np_dtype(to)
        self.table = _core.testing.cpu_libm_table(BYTES[_core.isa()])
        self.code = _core.testing.machine_code(
            _core.testing.cpu_step_text(step, dtypes, _core.isa(), lanes, to, numbers)
        )

    def __call__(self, *arrays):
        size = arrays[0].size
        registers = -(-size // self.lanes)
        whole = [np.resize(x, max(registers * self.lanes, 1)) for x in arrays]  # the last register repeats the first
        result = np.empty(registers * self.lanes, self.to)
        pointers = [x.ctypes.data for x in (*whole, result)] + [self.table]
        table = (ctypes.c_void_p * len(pointers))(*pointers)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self.code.address("kernel"))(table, registers)
        return result[:size]


def assert_same_bits(got, want, arrays):
    """But for what a NaN has beside being one."""
    bits = f"u{want.dtype.itemsize}"
    other = got.view(bits) != want.view(bits)
    if want.dtype.kind not in "bi":
        other &= ~(np.isnan(got.astype(float)) & np.isnan(want.astype(float)))
    first = other.argmax()
    assert not other.any(), (int(other.sum()), [x[first] for x in (*arrays, got, want)])


def some_lanes(rng):
    """The lanes of a register, and other numbers: one, half a register, several registers."""
    whole = BYTES[_core.isa()] // 4
    return [whole, int(rng.choice([1, whole // 2, 2 * whole, 4 * whole]))]


def test_maps(isa, some, rng):
    def check(name, dtype):
        dtypes = dtypes_of(name, dtype)
        arrays = [x.astype(np_dtype(t)) for x, t in zip(arguments(name, dtype, rng), dtypes, strict=True)]
        if dtype == "bfloat16" and name in vector_maps.QUICK:  # of which a kernel takes quick versions
            floats = vector_maps.kernel(name, "float32", size=arrays[0].size)(*(x.astype(np.float32) for x in arrays))
            want = floats.astype(arrays[0].dtype)
        else:
            want = vector_maps.kernel(name, *dtypes, size=arrays[0].size)(*arrays)
        for lanes in some_lanes(rng):
            got = Generated(name, dtypes, lanes, str(want.dtype))(*arrays)
            assert_same_bits(got, want, arrays)

    sweep(check, some(COMPUTED, 60))


def test_casts(isa, rng):
    def check(dtype, to):
        x = np.concatenate([some_values(rng, dtype), specials(dtype)]).astype(np_dtype(dtype))
        want = vector_maps.cast_kernel(to, dtype, x.size)(x)
        for lanes in some_lanes(rng):
            assert_same_bits(Generated("cast", [dtype], lanes, to)(x), want, [x])

    sweep(check, itertools.product(ALL_DTYPES, ALL_DTYPES))


@pytest.mark.parametrize("name", ["divide", "power", "where", "clip", "less", "philox", "left_shift"])
def test_numbers_of_a_row(name, isa, rng):
    """Arguments that are one number beside others that are registers, and all of them numbers."""
    dtype = next(t for t in ("float32", "int64", "bool") if (name, t) in COMPUTED)
    dtypes = dtypes_of(name, dtype)
    arrays = [x.astype(np_dtype(t)) for x, t in zip(arguments(name, dtype, rng), dtypes, strict=True)]
    for numbers in range(1, len(dtypes) + 1):
        taken = [x if k < len(dtypes) - numbers else np.full_like(x, x[0]) for k, x in enumerate(arrays)]
        want = vector_maps.kernel(name, *dtypes, size=arrays[0].size)(*taken)
        got = Generated(name, dtypes, BYTES[isa] // 4, str(want.dtype), numbers)(*taken)
        assert_same_bits(got, want, taken)


def test_bools_of_any_byte(isa):
    x = np.arange(256, dtype=np.uint8).view(bool)
    for to in ("bool", "int32", "float64"):
        got = Generated("cast", ["bool"], 16, to)(x)
        np.testing.assert_array_equal(got.view(np.uint8) if to == "bool" else got, np.arange(256) > 0)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_a_large_angle_changes_no_neighbour(name, isa, rng):
    """Beyond what the reduction takes, elements go through libm: theirs alone, whose bits the others keep."""
    x = rng.uniform(-100, 100, 4096).astype(np.float32)
    run = Generated(name, ["float32"], BYTES[isa] // 4, "float32")
    alone = run(x)
    large = x.copy()
    large[::7] *= np.float32(1e30)
    mixed, rest = run(large), np.arange(x.size) % 7 > 0
    assert_same_bits(mixed[rest], alone[rest], [x[rest]])
    exact = getattr(np, name)(large[::7].astype(float))
    assert vector_maps.ulp_errors(mixed[::7], exact).max() <= 2


@pytest.mark.parametrize("first", [0, 1, 4 * 2**40, -4, -7])
def test_random_words(first, isa, rng):
    """Words are each position's own: made a block at a time for positions in order, and for any positions."""
    dtypes, lanes = ["int64"] * 3, BYTES[isa] // 8
    x = first + np.arange(64 * lanes)
    for positions in (x, rng.permutation(x), x[::-1].copy(), np.where(rng.random(x.size) < 0.02, x + 1, x)):
        arrays = [positions, *(np.full_like(x, rng.integers(-(2**63), 2**63 - 1)) for _ in range(2))]
        want = vector_maps.kernel("philox", *dtypes, size=x.size)(*arrays)
        got = Generated("random_words", dtypes, lanes, "int64", numbers=2, together=4)(*arrays)
        assert_same_bits(got, want, arrays)


DIVISORS = [1.0, 3.0, -7.3, 1e-3, 2.0**29.5, 2.0**31, 2.0**-31, 1e38, 1e-38, 1e-45, 0.0, -0.0, np.inf, np.nan]


@pytest.mark.parametrize("by", DIVISORS)
def test_quotients_by_one_number(by, isa, rng):
    """Through its reciprocal where that gives the division's bits: all numbers that are safe together, then any."""
    safe = rng.uniform(-1, 1, 2**16).astype(np.float32) * np.float32(2) ** rng.integers(-80, 60, 2**16)
    safe = safe.astype(np.float32)
    zeros = np.where(rng.random(safe.size) < 0.5, safe, np.copysign(np.float32(0), safe))
    for x in (safe, zeros, some_floats(rng, "float32")):
        d = np.full(x.size, by, np.float32)
        got = Generated("quotient", ["float32", "float32"], BYTES[isa] // 4, "float32", numbers=1)(x, d)
        with np.errstate(all="ignore"):
            assert_same_bits(got, x / d, [x, d])


def undefined_symbols(elf):
    """The undefined symbols of an object of 64 bits."""
    [sections_at] = struct.unpack_from("<Q", elf, 40)
    size, count, _ = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, sections_at + i * size) for i in range(count)]
    names = []
    for s in sections:
        if s[1] != 2:  # a table of symbols
            continue
        strings = sections[s[6]][4]
        for at in range(s[4] + 24, s[4] + s[5], 24):  # behind the first, which is none
            name, _, _, section = struct.unpack_from("<IBBH", elf, at)
            if section == 0:
                names.append(elf[strings + name : elf.index(b"\0", strings + name)].decode())
    return names


TARGETS = {
    "avx512": ("x86_64-unknown-linux-gnu", "x86-64-v4", ""),
    "avx2": ("x86_64-unknown-linux-gnu", "x86-64-v3", ""),
    "baseline": ("x86_64-unknown-linux-gnu", "x86-64", ""),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", ""),
}


@pytest.mark.parametrize("target", TARGETS)
def test_objects_need_nothing(target, some):
    """Each target has code for every step, and calls no function by its name: what the loader is given is complete."""

    def check(name, dtype, *to):
        dtypes = [dtype] if to else dtypes_of(name, dtype)
        text = _core.testing.cpu_step_text(name, dtypes, target, 8, *to)
        assert undefined_symbols(_llvm.compile_object(text, *TARGETS[target])) == []

    casts = [("cast", dtype, to) for dtype in ALL_DTYPES for to in ALL_DTYPES]
    sweep(check, some([*((n, t) for n, t in COMPUTED if t not in HALF), *casts], 80))


def test_maps_refuse_other_types():
    with pytest.raises(RuntimeError, match="no kernel of sqrt takes int32"):
        _core.testing.cpu_step_text("sqrt", ["int32"], "baseline", 4)
