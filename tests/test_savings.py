"""kfusion.savings against the calculator's contract, computed by `reference.savings` in plain Python."""

from __future__ import annotations

import itertools
from collections import ChainMap, OrderedDict, UserDict
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kfusion as kf
import reference
from sweeps import sweep

pytestmark = pytest.mark.native

KEYS = ["unfused_bytes", "fused_bytes", "savings_bytes", "savings_pct", "speedup_estimate"]


def op(input_size, output_size, name="op"):
    return {"name": name, "input_size": input_size, "output_size": output_size}


def chain(*sizes):
    return [op(i, o, f"op{k}") for k, (i, o) in enumerate(sizes)]


def sizes_up_to(largest):
    return st.lists(st.tuples(st.integers(0, largest), st.integers(0, largest)), max_size=6)


def test_known_chains():
    n = 1_000_000

    def check(sizes, dtype_bytes, *values):
        result = kf.savings(chain(*sizes), dtype_bytes=dtype_bytes)
        assert result == dict(zip(KEYS, values, strict=False))
        assert list(result) == KEYS[: len(values)]
        assert [type(v) for v in result.values()] == [type(v) for v in values]

    sweep(check, [
        ([], 2, 0, 0, 0, 0.0),
        ([(1000, 1000), (1000, 4000), (4000, 4000)], 2, 30_000, 10_000, 20_000, 66.67, 3.0),  # layernorm, linear, gelu
        ([(3, 5)], 4, 32, 32, 0, 0.0, 1.0),
        ([(2 * n, n), (n, n), (n, n)], 4, 28 * n, 12 * n, 16 * n, 57.14, 2.33),  # log(relu(x + b)) reads two arrays
        ([(0, 7), (7, 0)], 1, 14, 0, 14, 100.0, 0),  # nothing is moved fused: the integer 0
        ([(0, 0)], 2, 0, 0, 0, 0.0, 0),
    ])  # fmt: skip


@given(sizes_up_to(2**64), st.integers(1, 16))
@example([(2**62, 0), (0, 2**62 - 1)], 1)
@example([(2**62, 0), (0, 2**62)], 1)
@example([(2**53 + 1, 2**53 - 1), (1, 2**54 + 1)], 1)
def test_huge_sizes_are_exact_or_an_overflow_error(sizes, dtype_bytes):
    ops = chain(*sizes)
    expected = reference.savings(ops, dtype_bytes)
    if expected["unfused_bytes"] > 2**63 - 1:
        with pytest.raises(OverflowError):
            kf.savings(ops, dtype_bytes=dtype_bytes)
    else:
        assert kf.savings(ops, dtype_bytes=dtype_bytes) == expected


@given(sizes_up_to(10**6), st.integers(1, 16))
def test_agrees_with_plain_python(sizes, dtype_bytes):
    result, expected = kf.savings(chain(*sizes), dtype_bytes), reference.savings(chain(*sizes), dtype_bytes)
    assert result == expected
    assert {k: type(v) for k, v in result.items()} == {k: type(v) for k, v in expected.items()}


@given(st.integers(1, 2**40), st.integers(0, 2**40))
@example(1, 199)  # 0.005 and the like: ties of the decimal, not of the double
@example(5, 995)
@example(1, 7999)
def test_rounding(fused, saved):
    """As Python's, and within half a cent of the fraction."""
    result = kf.savings([op(fused, 0), op(saved, 0)], dtype_bytes=1)
    assert result["savings_pct"] == round(saved / (fused + saved) * 100, 2)
    assert result["speedup_estimate"] == round((fused + saved) / fused, 2)
    exact = Fraction(fused + saved, fused)
    assert abs(Fraction(result["speedup_estimate"]) - exact) <= Fraction(1, 200) + exact / 2**51


def test_what_is_taken():
    """Any iterable of any mappings, NumPy's integers, which do not wrap in their own type; other keys are ignored."""
    ops = chain((4, 4), (4, 2))
    for wrap in (list, tuple, iter, lambda ops: (o for o in ops), lambda ops: dict(enumerate(ops)).values()):
        assert kf.savings(wrap(ops)) == reference.savings(ops)
    for wrap in (dict, OrderedDict, UserDict, MappingProxyType, ChainMap):
        assert kf.savings([wrap(o) for o in ops]) == reference.savings(ops)
    assert kf.savings(ops) == kf.savings(ops, 2)
    assert kf.savings([{"input_size": 1, "output_size": 2, "flops": "many"}])["unfused_bytes"] == 6
    for integer in (np.int64, np.int32, np.uint8, np.uint64):
        result = kf.savings([op(integer(3), integer(4))], dtype_bytes=integer(2))["unfused_bytes"]
        assert (result, type(result)) == (14, int)
    assert kf.savings([op(np.uint8(200), np.uint8(200))], dtype_bytes=np.uint8(200))["unfused_bytes"] == 80_000


def test_a_bad_size_is_named_by_index_name_and_key():
    def check(key, value, error):
        bad = op(1, 1, "gelu") | {key: value}
        if value is KEYS:
            del bad[key]
        with pytest.raises(error) as info:
            kf.savings([op(1, 1), op(1, 1), bad])
        assert all(part in str(info.value) for part in ("kfusion.savings", "[2]", "gelu", key))

    values = [(-1, ValueError), (True, TypeError), (2.0, TypeError), ("8", TypeError), (None, TypeError)]
    values += [(2**63, OverflowError), (-(2**70), ValueError), (KEYS, ValueError)]  # KEYS: no such key
    sweep(check, [(key, *row) for key, row in itertools.product(("input_size", "output_size"), values)])


def test_what_is_no_list_of_operations():
    for bad in (7, "relu", [("input_size", 1)], None):
        with pytest.raises(TypeError, match=r"kfusion\.savings.*\[1\]"):
            kf.savings([op(1, 1), bad])
    for bad in (7, None, 1.5):
        with pytest.raises(TypeError):
            kf.savings(bad)
    for value, error in ((0, ValueError), (-2, ValueError), (2.0, TypeError), (True, TypeError), ("2", TypeError)):
        for ops in ([], chain((1, 1))):
            with pytest.raises(error, match="dtype_bytes"):
                kf.savings(ops, dtype_bytes=value)


def test_errors_of_iterables_and_mappings_come_through():
    def ops():
        yield op(1, 1)
        raise LookupError("mine")

    class Broken(UserDict):
        def __getitem__(self, key):
            raise RuntimeError("mine")

    for bad, error in ((ops(), LookupError), ([Broken(op(1, 1))], RuntimeError)):
        with pytest.raises(error, match="mine"):
            kf.savings(bad)
