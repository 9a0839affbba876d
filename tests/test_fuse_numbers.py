"""`kf.fuse`: arithmetic on numbers among the arguments is done in every call, with Python's results and errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kfusion as kf

X = np.array([-2.5, 0.0, 1.0, 3.0])


class Counted:
    """A function that counts how often it is traced, where no trace sees it."""

    __slots__ = ("_function", "traces")

    def __init__(self, function: Any) -> None:
        self.traces = 0
        self._function = function

    def __call__(self, *args: Any) -> Any:
        self.traces += 1
        return self._function(*args)


def fused(function: Any) -> tuple[Any, Counted]:
    counted = Counted(function)
    return kf.fuse(counted), counted


def assert_same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


ONE_TRACE = {
    "1 - a": lambda x, a, n: x * (1 - a),
    "a / n": lambda x, a, n: x * (a / n),
    "n / 7": lambda x, a, n: x + n / 7,
    "a ** n": lambda x, a, n: x / (1 - a**n),
    "n ** a": lambda x, a, n: x - n**a,
    "2 ** n": lambda x, a, n: x * 2**n,
    "a // 0.3": lambda x, a, n: x * (a // 0.3) + (-a) // 0.3,
    "a % 0.3": lambda x, a, n: x * (a % 0.3) + (-a) % 0.3 + a % -0.3,
    "-n // 4": lambda x, a, n: x * (-n // 4) + (n // -4),
    "-n % 4": lambda x, a, n: x * (-n % 4) + (n % -4),
    "abs": lambda x, a, n: x * abs(-a) - abs(+n),
    "n": lambda x, a, n: (x * n + n) / n - n,
    "reflected": lambda x, a, n: n / (x + 0.5) - (n - x),
    "inf": lambda x, a, n: x + 1e308 * 10 * a,
    "again": lambda x, a, n: (lambda y: x * y + y * y)(a * n),
    "numpy": lambda x, a, n: x * (np.sqrt(a) + np.power(a, 2.0)),
    "many": lambda x, a, n: x * sum([a * i for i in range(20)], 0.0),
    "a list": lambda x, a, n: x * math.prod([a, 2.0, n, a]),
}


@pytest.mark.parametrize("name", ONE_TRACE)
def test_other_values_are_not_traced_again(name):
    f, counted = fused(ONE_TRACE[name])
    for a, n in ((0.25, 1), (0.7, 3), (1e-3, 10), (0.999, 53), (123.0, 8)):
        assert_same(f(X, a, n), ONE_TRACE[name](X, a, n))
    assert counted.traces == 1


def test_an_optimizer_is_traced_once():
    def step(p, g, m, v, lr, t, *, beta=0.9, decay=0.01):
        m, v = beta * m + (1 - beta) * g, 0.999 * v + 0.001 * g * g
        rate = lr / (1 - beta**t) * (1 - 0.999**t) ** 0.5
        return p * (1 - lr * decay) - rate * m / (v**0.5 + 1e-8)

    f, counted = fused(step)
    arrays = [X, X + 1, X - 1, X * X]
    for t in range(1, 30):
        want = step(*arrays, 1e-3 / t, t)
        np.testing.assert_allclose(f(*arrays, 1e-3 / t, t), want, rtol=1e-14)
    assert counted.traces == 1


# ---- errors, and results of other types ----


def raised(f: Any, *args: Any) -> tuple[type, str]:
    with pytest.raises(ArithmeticError) as error:
        f(*args)
    return error.type, str(error.value)


ERRORS = {
    "1 / a": (lambda x, a: x * (1 / a), 0.0),
    "1 // a": (lambda x, a: x * (1 // a), 0.0),
    "1 % n": (lambda x, a: x + 1 % a, 0),
    "0 ** a": (lambda x, a: x * 0.0 ** (a - 2), 1.0),
    "overflow": (lambda x, a: x * (10.0**a) ** 10, 300),
    "an int too large": (lambda x, a: x * (10**a / 3), 400),
    "of no use": (lambda x, a: (1 / a, x + 1)[1], 0.0),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_python_s(name):
    f, wrong = ERRORS[name]
    good = type(wrong)(3)
    later, first = kf.fuse(f), kf.fuse(f)
    for _ in range(2):
        assert_same(later(X, good), f(X, good))
        assert raised(later, X, wrong) == raised(first, X, wrong) == raised(f, X, wrong)
    assert_same(first(X, good), f(X, good))


def test_an_error_that_the_function_handles():
    def f(x, a):
        try:
            return x * (1 / a)
        except ZeroDivisionError:
            return x - 1

    for values in ((2.0, 0.0, 4.0, -0.0), (0.0, 2.0, 0.0, 3.0)):
        g = kf.fuse(f)
        for a in values:
            assert_same(g(X, a), f(X, a))
            out = np.empty((4, 2))[::-1, 0]
            np.testing.assert_array_equal(g(X, a, out=out), f(X, a))


def test_a_complex_result():
    f = lambda x, a: x * abs(a**0.5)  # noqa: E731
    g = kf.fuse(f)
    for a in (4.0, -4.0, 9.0, -9.0, 4.0):
        np.testing.assert_allclose(g(X, a), f(X, a), rtol=1e-15)
    with pytest.raises(kf.TraceError, match="complex"):
        kf.fuse(lambda x, a: x * a**0.5)(X, -1.0)


def test_results_of_another_type():
    def f(x, n):
        power = 2**n
        return x * power + (1 if isinstance(power, int) else 100)

    g = kf.fuse(f)
    for n in (3, -3, 4, -4):
        assert_same(g(X, n), f(X, n))


@pytest.mark.parametrize("n", [2**53, 2**53 + 1, 2**62, -(2**63)])
def test_large_integers(n):
    x = X * 1e-3
    for f in (lambda x, n: x * n, lambda x, n: x + n // 3, lambda x, n: x * (n * n / 7)):
        g = kf.fuse(f)
        for value in (3, n):
            assert_same(g(x, value), f(x, value))


# ---- dtypes ----


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "bool"])
def test_integers_promote_as_integers(dtype):
    x = np.array([0, 1, 3, 5]).astype(dtype)
    for f in (
        lambda x, n: x * n + n,
        lambda x, n: x / n,
        lambda x, n: x // n,
        lambda x, n: (n - x * 1) % 7,
        lambda x, n: np.maximum(x * n, n),
        lambda x, n: np.where(x > n, n, x),
        lambda x, n: x * (n / 2),
    ):
        g = kf.fuse(f)
        for n in (2, 3, 5):
            assert_same(g(x, n), f(x, n))


def test_torch_integers_promote_as_integers():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64):
        x = torch.tensor([0, 1, 3, 5], dtype=dtype)
        for f in (
            lambda x, n: x * n + n,
            lambda x, n: x / n,
            lambda x, n: torch.add(x, x, alpha=n),
            lambda x, n: x.sub(n) // n,
            lambda x, n: torch.clamp(x, max=n) % n,
            lambda x, n: x * (n / 2),
            lambda x, n: x.reshape(n % 2 + 1, -1).sum(n % 2),
        ):
            g = kf.fuse(f)
            for n in (2, 3, 7):
                torch.testing.assert_close(g(x, n), f(x, n), rtol=0, atol=0)


def test_torch_integers_wrap():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1, -3], dtype=torch.int32)
    g = kf.fuse(lambda x, n: x * n)
    for n in (2, 2**31 + 5, 2**33):
        assert g(x, n).equal(x * n)


def test_torch_subtracts_other_floats_without_a_trace():
    torch = pytest.importorskip("torch")
    f, counted = fused(lambda x, a: x - a)
    for a in (1.0, 2.0, 3.0):
        assert f(torch.ones(3), a).equal(torch.ones(3) - a)
    assert counted.traces == 1


def test_floats_of_numpy():
    for kind in (np.float16, np.float32, np.float64):
        f, counted = fused(lambda x, a: x * (1 - a * 2) + np.sqrt(a))
        for a in (kind(0.1), kind(0.7)):
            for x in (X, X.astype(np.float32)):
                assert_same(f(x, a), counted._function(x, a))
        assert counted.traces == 2


def test_a_captured_array_keeps_its_dtype():
    w = np.ones(4, np.float32)
    for f in (lambda x, a: x + w * a, lambda x, a: x + a * w, lambda x, a: x + np.multiply(w, a)):
        g = kf.fuse(f)
        for a in (0.1, 0.7):
            assert_same(g(w, a), f(w, a))


# ---- uses that need the value ----

STATIC = {
    "an axis": lambda x, n: x.sum(n),
    "a shape": lambda x, n: x.reshape(n + 1, -1) * 2,
    "range": lambda x, n: sum([x * i for i in range(n)], x),
    "a slice": lambda x, n: x[:n] + x[n : 2 * n],
    "an index": lambda x, n: x[n] + x[..., n],
    "a comparison": lambda x, n: x if n > 0 else -x,
    "truth": lambda x, n: x * 2 if n else x * 3,
    "a table": lambda x, n: x * {0: 5.0, 1: 7.0}[n],
    "text": lambda x, n: x * float(f"{n}.5"),
    "bits": lambda x, n: x * (n << 2 | 1) * (~n & 3) * (1 ^ n),
    "int": lambda x, n: x * int(n) * float(n) * round(n),
    "divmod": lambda x, n: x * divmod(n + 5, 2)[1],
    "NumPy's arrays": lambda x, n: x * np.arange(n + 2)[n] + np.ones(n + 1).sum() + np.full(2, n) * np.array([n, 2]),
    "an exponent": lambda x, n: x**n,
    "math": lambda x, n: x * math.sqrt(n),
    "pow": lambda x, n: x * pow(3, n, 5),
    "its type": lambda x, n: x * 2 if type(n) is int else x * 3,
    "a default of it": lambda x, n: [x, x + 1][n],
}


@pytest.mark.parametrize("name", STATIC)
def test_values_that_the_trace_looks_at(name):
    f = STATIC[name]
    x = X.reshape(2, 2)
    g = kf.fuse(f)
    for n in (0, 1, 0, 1):
        assert_same(g(x, n), f(x, n))
    assert g._cached() == 2


# ---- many of them, and other ways to call ----


def test_many_numbers():
    def f(x, floats, *ints):
        y = x
        for a in floats:
            y = y + a * 2
        for n in ints:
            y = y + n / 3
        return y

    g = kf.fuse(f)
    for count in (10, 63, 64, 70):
        for shift in (0, 1):
            floats, ints = [i + shift + 0.5 for i in range(count)], [i + shift for i in range(20)]
            assert_same(g(X, floats, *ints), f(X, floats, *ints))


def test_long_programs():
    def f(x, a):
        for _ in range(400):
            a = a * 0.99 + 0.001
        return x * a

    g = kf.fuse(f)
    for a in (1.0, 2.0):
        assert_same(g(X, a), f(X, a))


def test_out_and_other_calls():
    f = lambda x, a, n=2: x * (a / n)  # noqa: E731
    g = kf.fuse(f)
    for a, n in ((1.0, 2), (3.0, 5), (3.0, 0)):
        into = X.copy()
        for out in (into, into[::-1]):  # the second is written through another array
            if n == 0:
                assert raised(lambda: g(into, a, n, out=out)) == raised(f, X, a, n)  # noqa: B023
                continue
            want = f(into, a, n)
            assert g(into, a, n=n, out=out) is out
            np.testing.assert_array_equal(out, want)
    assert_same(g.unfused(X, 1.0, 4), f(X, 1.0, 4))
    assert_same(kf.fuse(lambda x, a, n: g(x, a * 2, n) + 1)(X, 1.0, 4), f(X, 2.0, 4) + 1)


def test_a_number_that_is_returned():
    f, counted = fused(lambda x, a, n: (x * a, a * 2, n))
    for a, n in ((1.0, 2), (3.0, 2)):
        y, twice, m = f(X, a, n)
        assert (twice, m, type(twice), type(m)) == (a * 2, n, float, int)
        assert_same(y, X * a)
    assert counted.traces == 2


# ---- comparisons: of each answer, not of each value ----


def halvings(x, n):
    while n > 1:
        x, n = x * 0.5 + n, n // 2
    return x


COMPARISONS = {
    "one": (lambda x, n: x * n if n > 20 else x - n, 2),
    "reflected": (lambda x, n: x * n if 20 < n else x - n, 2),  # noqa: SIM300
    "equality": (lambda x, n: x + 1 if n == 17 else x * n, 2),
    "others": (lambda x, n: (x + n if n != 9 else x) * (2 if n <= 30 else n), 3),
    "truth": (lambda x, n: x * 2 if n % 3 else x / n, 2),
    "a chain": (lambda x, n: x + n if 10 <= n < 20 else x - n, 3),
    "and": (lambda x, n: x + n if n % 2 == 0 and n > 8 else x - n, 3),
    "computed": (lambda x, n: x * n if n * 0.5 + 1 > n / 3 + 4.5 else x, 2),
    "min": (lambda x, n: x * min(n, 11) + max(n - 7, 3), 3),
    "NumPy": (lambda x, n: x * n if np.greater(n, 20) else x - n, 2),
    "a loop": (halvings, 6),
}


@pytest.mark.parametrize("kind", [int, float, np.float32])
@pytest.mark.parametrize("name", COMPARISONS)
def test_answers_of_comparisons(name, kind, rng):
    f, most = COMPARISONS[name]
    g, counted = fused(f)
    for n in [*rng.permutation(np.arange(1, 40)), *range(1, 40)]:
        assert_same(g(X, kind(n)), f(X, kind(n)))
    assert counted.traces == g._cached() == most


def test_comparisons_of_nan():
    f = lambda x, a: x + 1 if a == a else x * 2 if a != 3 else x  # noqa: E731
    g = kf.fuse(f)
    for a in (1.0, math.nan, 3.0, math.nan):
        assert_same(g(X, a), f(X, a))
    assert g._cached() == 2


def test_an_answer_and_a_value():
    """What is compared may be looked at, too, before and behind that."""

    def f(x, n, m, k):
        y = x[:m] * k
        y = y + n if n > m else y - n
        return (y.sum(), n) if k < 3 else y[:m]

    g = kf.fuse(f)
    for n, m, k in np.ndindex(4, 3, 5):
        got, want = g(X, n, m, k), f(X, n, m, k)
        assert type(got) is type(want)
        for a, b in zip((got, want)[0:1], (want,), strict=True):
            np.testing.assert_array_equal(a[0] if k < 3 else a, b[0] if k < 3 else b)
        assert k >= 3 or got[1] == n


def test_answers_and_errors():
    """An error of Python's is behind one answer only; numbers are taken as they are where it is raised."""
    f = lambda x, n: x / (12 // (n - 5)) if n > 3 else x * n  # noqa: E731
    g = kf.fuse(f)
    for n in (1, 8, 5, 2, 9, 5, 7):
        if n == 5:
            assert raised(g, X, n) == raised(f, X, n)
        else:
            assert_same(g(X, n), f(X, n))


def test_more_answers_than_are_followed():
    def f(x, n):
        for i in range(100):
            x = x + 1 if n == i else x * 0.5
        return x

    g = kf.fuse(f)
    for n in [*range(0, 100, 3), *range(0, 100, 3)]:
        assert_same(g(X, n), f(X, n))


def test_answers_where_results_are_written_through_another_array():
    f = lambda x, n: x * n if n > 3 else x - n  # noqa: E731
    g = kf.fuse(f)
    for n in (1, 5, 2, 7, 3, 4, 1):
        into = X.copy()
        for out in (into, into[::-1]):
            want = f(into, n)
            assert g(into, n, out=out) is out
            np.testing.assert_array_equal(out, want)


def test_answers_for_arrays_of_other_sizes():
    f = lambda x, n: x.sum(0) * n if n > 3 else x.mean(0) - n  # noqa: E731
    g, counted = fused(f)
    for rows in (3, 5, 7, 11, 4):
        for n in (1, 5, 2, 7):
            x = np.arange(rows * 4.0).reshape(rows, 4)
            np.testing.assert_allclose(g(x, n), f(x, n), rtol=1e-15)
    assert counted.traces == 4


def test_a_counter_is_traced_for_each_answer():
    class State:
        def __init__(self):
            self.n = 0

    def f(x, state):
        state.n += 1
        return x * state.n if state.n > 2 else x - state.n

    g = kf.fuse(f)
    mine, theirs = State(), State()
    for _ in range(12):
        assert_same(g(X, mine), f(X, theirs))
        assert mine.n == theirs.n
    assert g._cached() == 3  # the first, before it is known that calls set an int, and one for each answer


def test_answers_draw_once():
    torch = pytest.importorskip("torch")
    x = torch.ones(6)

    def f(x, n):
        y = torch.nn.functional.dropout(x, 0.5)
        return y * n if n > 3 else y - n

    def states(*numbers):
        g = kf.fuse(f)
        torch.manual_seed(0)
        for n in numbers:
            g(x, n)
        out = torch.empty(12)[::2]
        g(x, numbers[-1], out=out)
        return torch.get_rng_state()

    assert states(1, 5, 2, 7).equal(states(1, 1, 1, 1))
