"""`kf.fuse`: arithmetic on numbers among the arguments is done in every call, with Python's results and errors."""

from __future__ import annotations

import collections
import fractions
import functools
import math
import types
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._environment.reach import reached
from kfusion._graph.number import is_number
from kfusion._graph.sizes import is_size
from sweeps import sweep
from tracing import counting

X = np.array([-2.5, 0.0, 1.0, 3.0])


def assert_same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


ONE_TRACE = [
    lambda x, a, n: x * (1 - a),
    lambda x, a, n: x * (a / n),
    lambda x, a, n: x + n / 7,
    lambda x, a, n: x / (1 - a**n),
    lambda x, a, n: x - n**a,
    lambda x, a, n: x * 2**n,
    lambda x, a, n: x * (a // 0.3) + (-a) // 0.3,
    lambda x, a, n: x * (a % 0.3) + (-a) % 0.3 + a % -0.3,
    lambda x, a, n: x * (-n // 4) + (n // -4),
    lambda x, a, n: x * (-n % 4) + (n % -4),
    lambda x, a, n: x * abs(-a) - abs(+n),
    lambda x, a, n: (x * n + n) / n - n,
    lambda x, a, n: n / (x + 0.5) - (n - x),
    lambda x, a, n: x + 1e308 * 10 * a,
    lambda x, a, n: (lambda y: x * y + y * y)(a * n),
    lambda x, a, n: x * (np.sqrt(a) + np.power(a, 2.0)),
    lambda x, a, n: x * sum([n * i for i in range(20)], 0.0),
    lambda x, a, n: x * math.prod([a, 2.0, n, a]),
]


def test_other_values_are_not_traced_again():
    def check(f):
        fused = counting(f)
        for a, n in ((0.25, 1), (0.7, 3), (1e-3, 10), (0.999, 53), (123.0, 8)):
            assert_same(fused(X, a, n), f(X, a, n))
        assert len(fused.count) == 1

    sweep(check, [(f,) for f in ONE_TRACE])


# ---- errors, and results of other types ----


def outcome(f: Any, *args: Any, **keywords: Any) -> Any:
    """What a call gives, or the error of Python's that it raises."""
    try:
        return f(*args, **keywords)
    except ArithmeticError as error:
        return type(error), str(error)


def handled(x, a):
    try:
        return x * (1 / a)
    except ZeroDivisionError:
        return x - 1


def typed(x, n):
    power = 2**n
    return x * power + (1 if isinstance(power, int) else 100)


LARGE = 3, 2**53, 3, 2**53 + 1, 2**62, -(2**63)
# Functions, and the numbers that they are called with, one after the other and the other way round.
OUTCOMES: list[tuple[Any, ...]] = [
    (lambda x, a: x * (1 / a), 3.0, 0.0, 3.0, 0.0),
    (lambda x, a: x * (1 // a), 3.0, 0.0, 3.0, 0.0),
    (lambda x, a: x + 1 % a, 3, 0, 3, 0),
    (lambda x, a: x * 0.0 ** (a - 2), 3.0, 1.0, 3.0, 1.0),
    (lambda x, a: x * (10.0**a) ** 10, 3, 300, 3, 300),
    (lambda x, a: x * (10**a / 3), 3, 400, 3, 400),
    (lambda x, a: (1 / a, x + 1)[1], 3.0, 0.0, 3.0, 0.0),  # of no use
    (lambda x, n: x / (12 // (n - 5)) if n > 3 else x * n, 1, 8, 5, 2, 9, 5, 7),  # behind one answer only
    (handled, 2.0, 0.0, 4.0, -0.0),
    (typed, 3, -3, 4, -4),
    (lambda x, a: x * abs(a**0.5), 4.0, -4.0, 9.0, -9.0, 4.0),  # of complex numbers
    (lambda x, z: x * math.copysign(2.0, z.real) + math.copysign(1.0, z.imag), 0j, -0j, -(0j), complex(-0.0, 0.0)),
    (lambda x, a: x + 1 if a == a else x * 2 if a != 3 else x, 1.0, math.nan, 3.0, math.nan),
    *((f, *LARGE) for f in (lambda x, n: x * n, lambda x, n: x + n // 3, lambda x, n: x * (n * n / 7))),
]


def test_outcomes_are_python_s():
    def check(f, *values):
        for given in (values, values[::-1]):
            g = kf.fuse(f)
            for value in given:
                got, want = outcome(g, X, value), outcome(f, X, value)
                assert type(got) is type(want)
                if isinstance(want, tuple):
                    assert got == want
                else:
                    assert got.dtype == want.dtype
                    np.testing.assert_allclose(got, want, rtol=1e-15 if "abs" in f.__code__.co_names else 0)

    sweep(check, OUTCOMES)
    with pytest.raises(kf.TraceError, match="complex"):
        kf.fuse(lambda x, a: x * a**0.5)(X, -1.0)


# ---- dtypes ----


def test_integers_promote_as_integers(some):
    def check(dtype):
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

    sweep(check, some([(dtype,) for dtype in ("float16", "float32", "float64", "int32", "int64", "bool")], 3))


def test_numbers_meet_torchs_tensors(some):
    torch = pytest.importorskip("torch")

    def check(dtype):
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

    dtypes = "float16", "bfloat16", "float32", "int32", "int64"
    sweep(check, some([(getattr(torch, dtype),) for dtype in dtypes], 2))
    x, g = torch.tensor([1, -3], dtype=torch.int32), kf.fuse(lambda x, n: x * n)
    for n in (2, 2**31 + 5, 2**33):
        assert g(x, n).equal(x * n)
    g = counting(lambda x, a: x - a)
    for a in (1.0, 2.0, 3.0):
        assert g(torch.ones(3), a).equal(torch.ones(3) - a)
    assert len(g.count) == 1


def test_floats_keep_their_dtypes():
    """NumPy's floats, and captured arrays that a float meets."""
    f = lambda x, a: x * (1 - a * 2) + np.sqrt(a)  # noqa: E731
    for kind in (np.float16, np.float32, np.float64):
        g = counting(f)
        for a in (kind(0.1), kind(0.7)):
            for x in (X, X.astype(np.float32)):
                assert_same(g(x, a), f(x, a))
        assert len(g.count) == 2
    w = np.ones(4, np.float32)
    for f in (lambda x, a: x + w * a, lambda x, a: x + a * w, lambda x, a: x + np.multiply(w, a)):
        g = kf.fuse(f)
        for a in (0.1, 0.7):
            assert_same(g(w, a), f(w, a))


# ---- uses that need the value ----

STATIC = [
    lambda x, n: x.sum(n),
    lambda x, n: x.reshape(n + 1, -1) * 2,
    lambda x, n: sum([x * i for i in range(n)], x),
    lambda x, n: x[:n] + x[n : 2 * n],
    lambda x, n: x[n] + x[..., n],
    lambda x, n: x if n > 0 else -x,
    lambda x, n: x * 2 if n else x * 3,
    lambda x, n: x * {0: 5.0, 1: 7.0}[n],
    lambda x, n: x * float(f"{n}.5"),
    lambda x, n: x * (n << 2 | 1) * (~n & 3) * (1 ^ n),
    lambda x, n: x * int(n) * float(n) * round(n),
    lambda x, n: x * divmod(n + 5, 2)[1],
    lambda x, n: x * np.arange(n + 2)[n] + np.ones(n + 1).sum() + np.full(2, n) * np.array([n, 2]),
    lambda x, n: x**n,
    lambda x, n: x * math.sqrt(n),
    lambda x, n: x * pow(3, n, 5),
    lambda x, n: x * 2 if type(n) is int else x * 3,
    lambda x, n: [x, x + 1][n],
]


def test_values_that_the_trace_looks_at():
    def check(f):
        x, g = X.reshape(2, 2), kf.fuse(f)
        for n in (0, 1, 0, 1):
            assert_same(g(x, n), f(x, n))
        assert g._cached() == 2

    sweep(check, [(f,) for f in STATIC])


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

    def long(x, a):
        for _ in range(400):
            a = a * 0.99 + 0.001
        return x * a

    g = kf.fuse(long)
    for a in (1.0, 2.0):
        assert_same(g(X, a), long(X, a))


def test_out_and_other_calls():
    f = lambda x, a, n=2: x * (a / n) if n < 7 else x - n  # noqa: E731
    g = kf.fuse(f)
    for a, n in ((1.0, 2), (3.0, 5), (2.0, 8), (3.0, 0), (1.0, 9)):
        into = X.copy()
        for out in (into, into[::-1]):  # the second is written through another array
            if n == 0:
                assert outcome(g, into, a, n, out=out) == outcome(f, X, a, n)
                continue
            want = f(into, a, n)
            assert g(into, a, n=n, out=out) is out
            np.testing.assert_array_equal(out, want)
    assert_same(g.unfused(X, 1.0, 4), f(X, 1.0, 4))
    assert_same(kf.fuse(lambda x, a, n: g(x, a * 2, n) + 1)(X, 1.0, 4), f(X, 2.0, 4) + 1)


# ---- comparisons: of each answer, not of each value ----


def halvings(x, n):
    while n > 1:
        x, n = x * 0.5 + n, n // 2
    return x


# With the number of traces.
COMPARISONS = [
    (lambda x, n: x * n if n > 20 else x - n, 2),
    (lambda x, n: x * n if 20 < n else x - n, 2),  # noqa: SIM300
    (lambda x, n: x + 1 if n == 17 else x * n, 2),
    (lambda x, n: (x + n if n != 9 else x) * (2 if n <= 30 else n), 3),
    (lambda x, n: x * 2 if n % 3 else x / n, 2),
    (lambda x, n: x + n if 10 <= n < 20 else x - n, 3),
    (lambda x, n: x + n if n % 2 == 0 and n > 8 else x - n, 3),
    (lambda x, n: x * n if n * 0.5 + 1 > n / 3 + 4.5 else x, 2),
    (lambda x, n: x * min(n, 11) + max(n - 7, 3), 3),
    (lambda x, n: x * n if np.greater(n, 20) else x - n, 2),
    (halvings, 6),
]


@pytest.mark.parametrize("kind", [int, float, np.float32])
def test_answers_of_comparisons(kind, rng):
    def check(f, most):
        g = counting(f)
        for n in [*rng.permutation(np.arange(1, 40)), *range(1, 40)]:
            assert_same(g(X, kind(n)), f(X, kind(n)))
        assert len(g.count) == g._cached() == most

    sweep(check, COMPARISONS)


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


def test_more_answers_than_are_followed():
    def f(x, n):
        for i in range(100):
            x = x + 1 if n == i else x * 0.5
        return x

    g = kf.fuse(f)
    for n in [*range(0, 100, 3), *range(0, 100, 3)]:
        assert_same(g(X, n), f(X, n))


def test_answers_for_arrays_of_other_sizes():
    f = lambda x, n: x.sum(0) * n if n > 3 else x.mean(0) - n  # noqa: E731
    g = counting(f)
    for rows in (3, 5, 7, 11, 4):
        for n in (1, 5, 2, 7):
            x = np.arange(rows * 4.0).reshape(rows, 4)
            np.testing.assert_allclose(g(x, n), f(x, n), rtol=1e-15)
    assert len(g.count) == 4


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


# ---- numbers within results ----


class Held:
    """Its text is what it holds."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __repr__(self) -> str:
        return repr(vars(self))


HOLDING = """
n | [n, (n, {"n": n})] | {n, n + 1} | frozenset({n}) | {n: 1} | {(n, 1): {"k": {n}}} | Held(n=n) | Held(l=[n, {n}]) | Held(d={n: Held(n=n)})
slice(n) | np.index_exp[:n] | partial(print, n) | deque([n]) | Counter({"n": n}) | ChainMap({"n": n}) | SimpleNamespace(n=n)
Counter([n]) | defaultdict(partial(max, n)) | MappingProxyType({"n": n}) | {"n": n}.items() | {Held(n=n): 1} | np.array([n, None])
ValueError(n) | range(n) | Fraction(n, 3) | [lambda m=n: m][0].__defaults__ | Held(n=n).__repr__
"""  # noqa: E501


def test_results_hold_plain_numbers():
    names = "deque Counter ChainMap defaultdict"
    scope = {"Held": Held, "np": np, **{name: getattr(collections, name) for name in names.split()}}
    scope |= {"SimpleNamespace": types.SimpleNamespace, "MappingProxyType": types.MappingProxyType}
    scope |= {"partial": functools.partial, "Fraction": fractions.Fraction}

    def check(text: str, of_size: bool) -> None:
        n = "x.shape[0]" if of_size else "n"
        f = eval(f"lambda x, n: (x * 2, (lambda n: {text})({n} * 2 + 1))", scope)
        fused = kf.fuse(f)
        for n in (3, 4, 5, 3):
            got, want = (g(np.ones(n), n)[1] for g in (fused, f))
            assert type(got) is type(want)
            assert repr(got).split(" at 0x")[0] == repr(want).split(" at 0x")[0]
            assert not [v for v in reached([got])[0] if is_number(v) or is_size(v)]

    texts = [text.strip() for line in HOLDING.strip().splitlines() for text in line.split(" | ")]
    sweep(check, [(text, of_size) for text in texts for of_size in (False, True)])
