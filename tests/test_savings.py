"""kfusion.savings against the calculator's contract, computed by `reference.savings` in plain Python."""

from __future__ import annotations

from collections import ChainMap, OrderedDict, UserDict
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kfusion as kf
import reference

pytestmark = pytest.mark.native

KEYS = ["unfused_bytes", "fused_bytes", "savings_bytes", "savings_pct", "speedup_estimate"]
INT64_MAX = 2**63 - 1


def op(input_size, output_size, name="op"):
    return {"name": name, "input_size": input_size, "output_size": output_size}


def chain(*sizes):
    return [op(i, o, f"op{k}") for k, (i, o) in enumerate(sizes)]


def sizes_up_to(largest):
    return st.lists(st.tuples(st.integers(0, largest), st.integers(0, largest)), max_size=6)


def test_no_operations_give_four_zeros():
    result = kf.savings([])
    assert result == {"unfused_bytes": 0, "fused_bytes": 0, "savings_bytes": 0, "savings_pct": 0.0}
    assert list(result) == KEYS[:4]
    assert [type(v) for v in result.values()] == [int, int, int, float]


def test_keys_order_and_types():
    result = kf.savings(chain((8, 8), (8, 8)))
    assert list(result) == KEYS
    assert [type(v) for v in result.values()] == [int, int, int, float, float]


def test_hand_computed_layernorm_linear_gelu():
    # 3 operations over 1000, 4000 and 4000 elements, 2 bytes each.
    result = kf.savings(chain((1000, 1000), (1000, 4000), (4000, 4000)))
    assert result == {
        "unfused_bytes": 30_000,  # (1000 + 1000 + 1000 + 4000 + 4000 + 4000) * 2
        "fused_bytes": 10_000,  # (1000 + 4000) * 2
        "savings_bytes": 20_000,
        "savings_pct": 66.67,
        "speedup_estimate": 3.0,
    }


def test_one_operation_has_nothing_to_fuse():
    assert kf.savings(chain((3, 5)), dtype_bytes=4) == {
        "unfused_bytes": 32,
        "fused_bytes": 32,
        "savings_bytes": 0,
        "savings_pct": 0.0,
        "speedup_estimate": 1.0,
    }


def test_log_of_relu_of_a_sum_moves_seven_arrays_unfused_and_three_fused():
    # x + b reads two arrays, so the first operation's input is 2 N.
    n = 1_000_000
    result = kf.savings(chain((2 * n, n), (n, n), (n, n)), dtype_bytes=4)
    assert (result["unfused_bytes"], result["fused_bytes"]) == (7 * 4 * n, 3 * 4 * n)
    assert result["speedup_estimate"] == 2.33


def test_speedup_is_the_integer_zero_when_nothing_is_moved_fused():
    inner = kf.savings(chain((0, 7), (7, 0)))
    assert inner["fused_bytes"] == 0
    assert inner["savings_pct"] == 100.0
    assert inner["speedup_estimate"] == 0
    assert type(inner["speedup_estimate"]) is int
    empty = kf.savings(chain((0, 0)))
    assert empty == dict.fromkeys(KEYS, 0)
    assert type(empty["savings_pct"]) is float


@given(sizes_up_to(10**6), st.integers(1, 16))
def test_agrees_with_plain_python(sizes, dtype_bytes):
    ops = chain(*sizes)
    result = kf.savings(ops, dtype_bytes=dtype_bytes)
    expected = reference.savings(ops, dtype_bytes)
    assert result == expected
    assert {k: type(v) for k, v in result.items()} == {k: type(v) for k, v in expected.items()}


@given(sizes_up_to(2**64), st.integers(1, 16))
@example([(2**62, 0), (0, 2**62 - 1)], 1)
@example([(2**62, 0), (0, 2**62)], 1)
@example([(2**53 + 1, 2**53 - 1), (1, 2**54 + 1)], 1)
def test_huge_sizes_are_exact_or_an_overflow_error(sizes, dtype_bytes):
    ops = chain(*sizes)
    expected = reference.savings(ops, dtype_bytes)
    if expected["unfused_bytes"] > INT64_MAX:
        with pytest.raises(OverflowError):
            kf.savings(ops, dtype_bytes=dtype_bytes)
    else:
        assert kf.savings(ops, dtype_bytes=dtype_bytes) == expected


@given(st.integers(1, 2**40), st.integers(1, 2**40))
@example(1, 199)  # 0.005 and the like: ties of the decimal, not of the double
@example(5, 995)
@example(1, 7999)
def test_percentages_round_as_python_rounds(fused, saved):
    result = kf.savings([op(fused, 0), op(saved, 0)], dtype_bytes=1)
    assert result["savings_pct"] == round(saved / (fused + saved) * 100, 2)
    assert result["speedup_estimate"] == round((fused + saved) / fused, 2)


@given(st.integers(1, 2**50), st.integers(0, 2**50))
def test_rounding_is_within_half_a_cent_of_the_fraction(fused, saved):
    result = kf.savings([op(fused, 0), op(saved, 0)], dtype_bytes=1)
    exact = Fraction(fused + saved, fused)
    assert abs(Fraction(result["speedup_estimate"]) - exact) <= Fraction(1, 200) + exact / 2**51


def test_default_is_two_bytes_and_bytes_scale():
    ops = chain((10, 10), (10, 10))
    assert kf.savings(ops) == kf.savings(ops, 2)
    assert kf.savings(ops, 4)["unfused_bytes"] == 2 * kf.savings(ops)["unfused_bytes"]


@pytest.mark.parametrize(
    "wrap",
    [list, tuple, iter, lambda ops: (o for o in ops), lambda ops: dict(enumerate(ops)).values()],
    ids=["list", "tuple", "iterator", "generator", "view"],
)
def test_any_iterable(wrap):
    ops = chain((4, 4), (4, 2))
    assert kf.savings(wrap(ops)) == reference.savings(ops)


@pytest.mark.parametrize("wrap", [dict, OrderedDict, UserDict, MappingProxyType, ChainMap])
def test_any_mapping(wrap):
    ops = chain((4, 4), (4, 2))
    assert kf.savings([wrap(o) for o in ops]) == reference.savings(ops)


def test_name_is_optional_and_other_keys_are_ignored():
    assert kf.savings([{"input_size": 1, "output_size": 2, "flops": "many"}])["unfused_bytes"] == 6


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8, np.uint64])
def test_numpy_integers(integer):
    result = kf.savings([op(integer(3), integer(4))], dtype_bytes=integer(2))
    assert result["unfused_bytes"] == 14
    assert type(result["unfused_bytes"]) is int


def test_numpy_integers_do_not_wrap_in_their_own_type():
    assert kf.savings([op(np.uint8(200), np.uint8(200))], dtype_bytes=np.uint8(200))["unfused_bytes"] == 80_000


@pytest.mark.parametrize("key", ["input_size", "output_size"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        (True, TypeError),
        (2.0, TypeError),
        ("8", TypeError),
        (None, TypeError),
        (2**63, OverflowError),
    ],
)
def test_a_bad_size_is_named_by_index_name_and_key(key, value, error):
    bad = op(1, 1, "gelu") | {key: value}
    with pytest.raises(error) as info:
        kf.savings([op(1, 1), op(1, 1), bad])
    for part in ("kfusion.savings", "[2]", "gelu", key):
        assert part in str(info.value)


@pytest.mark.parametrize("key", ["input_size", "output_size"])
def test_a_missing_key_is_named(key):
    bad = op(1, 1, "gelu")
    del bad[key]
    with pytest.raises(ValueError, match=rf"kfusion\.savings.*\[1\].*gelu.*{key}"):
        kf.savings([op(1, 1), bad])


def test_negative_beyond_64_bits_is_still_a_value_error():
    with pytest.raises(ValueError, match="input_size"):
        kf.savings([op(-(2**70), 1)])


@pytest.mark.parametrize("bad", [7, "relu", [("input_size", 1)], None])
def test_an_operation_that_is_no_mapping(bad):
    with pytest.raises(TypeError, match=r"kfusion\.savings.*\[1\]"):
        kf.savings([op(1, 1), bad])


@pytest.mark.parametrize("bad", [7, None, 1.5])
def test_operations_that_are_not_iterable(bad):
    with pytest.raises(TypeError):
        kf.savings(bad)


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-2, ValueError), (2.0, TypeError), (True, TypeError), ("2", TypeError)]
)
@pytest.mark.parametrize("ops", [[], chain((1, 1))], ids=["no ops", "one op"])
def test_bad_dtype_bytes(ops, value, error):
    with pytest.raises(error, match="dtype_bytes"):
        kf.savings(ops, dtype_bytes=value)


def test_the_iterable_s_own_error_comes_through():
    def ops():
        yield op(1, 1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        kf.savings(ops())


def test_a_mapping_s_own_error_comes_through():
    class Broken(UserDict):
        def __getitem__(self, key):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        kf.savings([Broken(op(1, 1))])
