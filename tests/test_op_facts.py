"""The facts in the op table's rows, each held to what NumPy computes: every row that has one, and no others."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np

import kfusion as kf
import reference_ops
from kfusion import _core

ROOT = Path(__file__).parent.parent
MAPS = {row["name"]: row for row in _core.op_table() if row["kind"] == "map"}
# Rows that give numbers, of floats.
OF_OTHERS = ("A_B", "AA_B", "BB_B", "II_I", "ZZ_Z", "LLL_L", "BNN_N")
OF_FLOATS = {name: row for name, row in MAPS.items() if row["signature"] not in OF_OTHERS}
UNARY = [name for name, row in OF_FLOATS.items() if row["arity"] == 1]


def having(fact):
    return {name for name, row in MAPS.items() if fact in row["facts"]}


def points():
    """Numbers in order, but NaN: ordinary ones, zeros of both signs, tiny and large ones."""
    x = np.random.default_rng(1).standard_normal(2000)
    special = [0.0, 0.5, 1.0, 1.5, 1e-300, 1e300, np.inf]
    return np.sort(np.concatenate([x, 20 * x, special, np.negative(special)]))


def value(name, *arrays):
    with np.errstate(all="ignore"):
        return np.asarray(reference_ops.MAPS[name](*arrays))


def increases(name, x):
    y = value(name, x)
    return bool(np.all(y[1:] >= y[:-1]))  # not where one is NaN


def test_what_increases():
    assert having("increases") == {name for name in UNARY if increases(name, points())}
    from_zero = {name for name in UNARY if increases(name, np.abs(points()[points() >= 0]))}
    assert having("increases from 0") == from_zero - having("increases")


def test_what_is_never_negative():
    x = np.random.default_rng(2).permutation(points())
    arrays = (x, np.roll(x, 1), np.roll(x, 2))
    found = {name for name, row in OF_FLOATS.items() if not np.any(value(name, *arrays[: row["arity"]]) < 0)}
    assert having("non-negative") == found


def test_what_commutes():
    special = np.array([*itertools.product([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf], repeat=2)]).T
    x, y = np.concatenate([np.random.default_rng(3).standard_normal((2, 1000)) * 3, special], axis=1)
    for name, row in MAPS.items():
        integers = row["signature"] in ("II_I", "ZZ_Z")
        if row["arity"] != 2:
            assert "commutes" not in row["facts"]
            continue
        a, b = ((np.where(np.isfinite(v), v, 7).astype(np.int64) if integers else v) for v in (x, y))
        one, other = value(name, a, b), value(name, b, a)
        same = np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        numbers = ~np.isnan(one)
        same = same and np.array_equal(np.signbit(one[numbers]), np.signbit(other[numbers]))
        assert ("commutes" in row["facts"]) == same, name


def test_what_commutes_in_vectors(isa):
    """Sweeps of one kernel may take the arguments in either order, and compare what they give."""
    for name, dtype in itertools.product(("add", "multiply", "hypot", "logaddexp"), ("float32", "float64")):
        f = kf.fuse(lambda x, y, name=name: getattr(np, name)(x, y))
        x, y = (np.random.default_rng(5).standard_normal((2, 3000)) * 3).astype(dtype)
        for other in (y, y[:1]):
            assert np.asarray(f(x, other)).tobytes() == np.asarray(f(other, x)).tobytes(), name


def test_what_is_affine():
    a, b, y, z = np.random.default_rng(4).standard_normal((4, 1000)) * 3
    for name, row in OF_FLOATS.items():
        others = (y, z)[: row["arity"] - 1]
        middle = value(name, (a + b) / 2, *others)
        straight = (value(name, a, *others) + value(name, b, *others)) / 2
        assert ("affine" in row["facts"]) == np.allclose(middle, straight, rtol=1e-9, atol=1e-9), name


def test_what_is_quick_has_a_function_on_cuda():
    text = (ROOT / "cuda/device/quick.cuh").read_text()
    for name in sorted(having("quick") | having("quick per row")):
        assert re.search(rf"KF_DEVICE float quick_{name}\(float|KF_APPROXIMATION\(quick_{name},", text), name


def test_what_ieee_defines_is_cheap_but_for_remainders_and_random_bits():
    long = {"remainder", "floor_divide", "philox"}
    assert {MAPS[name]["cost"] for name in having("exact") - long} == {"simple", "division"}
    assert not {name for name, row in MAPS.items() if row["cost"] == "simple"} - having("exact")


def test_readers_leave_room_for_more_columns():
    """So that a row can have an adjoint before any reader knows of it."""
    lines = [
        line
        for folder in ("cpp", "cuda")
        for path in sorted((ROOT / folder).rglob("*.?pp"))
        for line in path.read_text().splitlines()
        if re.match(r"#define KF_(MAP|REDUCE)\(", line)
    ]
    assert len(lines) >= 10
    assert [line for line in lines if not re.match(r"#define KF_\w+\([\w, ]*\.\.\.\)", line)] == []
