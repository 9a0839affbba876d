"""What steps of a kernel are together (kfusion/lower/idioms.hpp): found where it is, and not where it is almost."""

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from sweeps import sweep
from test_lower import DEVICE, only_kernel


def spec(*shape, dtype="bfloat16"):
    return kf.spec(shape, dtype)


X, FLOATS, ROWS, COLUMNS = spec(6, 35), spec(6, 35, dtype="float32"), spec(6, 1), spec(35)
PLACES = kf.spec((6,), "int64")


def found(kernel):
    """By op, which idioms its steps are; each op once."""
    return {s["op"]: s["idioms"] for s in kernel["steps"] if s["idioms"]}


def shifted(x, by):
    return kf.exp(x.astype("float32") - by)


STEPS = {
    "softmax": (lambda x: kf.softmax(x), [FLOATS], {"sum": ["divisor"], "divide": ["row quotient"]}),
    "softmax of a half type": (lambda x: kf.softmax(x), [X], {
        "exp": ["quick", "weight"], "sum": ["divisor", "quick divisor"], "divide": ["row quotient"]}),
    "its weights in float32": (lambda x: kf.softmax(x.astype("float32")), [X], {
        "exp": ["quick", "weight"], "sum": ["divisor", "quick divisor"], "divide": ["row quotient"]}),
    "weights by what was stored": (lambda x, m: shifted(x, m), [X, spec(6, 1, dtype="float32")], {
        "exp": ["quick", "weight"]}),
    "by another value for each element": (lambda x, m: shifted(x, m), [X, FLOATS], {}),
    "by a constant": (lambda x: shifted(x, 2.0), [X], {}),
    "a quotient that shows": (lambda x: x.astype("float32") / x.astype("float32").sum(-1, keepdims=True), [X], {
        "sum": ["divisor"], "divide": ["row quotient"]}),
    "a row's value by another's": (lambda x: x.max(-1) / x.min(-1), [FLOATS], {}),
    "elements by elements": (lambda x, p: (x / p).sum(-1), [FLOATS, COLUMNS], {}),
    "by a constant, once quick": (lambda x: kf.tanh(x / 3), [X], {
        "divide": ["quick quotient"], "tanh": ["quick"]}),
    "by a constant, shown": (lambda x: kf.floor(x / 3), [X], {}),
    "by a constant, stored": (lambda x: (q := x / 3, kf.tanh(q)), [X], {"tanh": ["quick"]}),
    "by a constant, in float32": (lambda x: kf.tanh(x / 3), [FLOATS], {}),
    "once a row": (lambda x: kf.rsqrt((x * x).sum(-1)), [FLOATS], {"rsqrt": ["quick"]}),
    "for each element": (lambda x: kf.rsqrt(x), [FLOATS], {}),
    "random words": (lambda x: kf.where(kf.philox(kf.iota(x.shape), 1, 7) < 9, x, 0), [FLOATS], {
        "philox": ["random block"]}),
    "random words by row": (lambda x, t: kf.where(kf.philox(kf.iota(x.shape), t[:, None], 7) < 9, x, 0).max(-1),
                            [FLOATS, PLACES], {"philox": ["random block"]}),
    "random words of many streams": (lambda x: kf.where(kf.philox(1, kf.iota(x.shape), 7) < 9, x, 0), [FLOATS], {}),
    "a product that is added": (lambda x, p: x * p + p, [X, COLUMNS], {"add": ["product"]}),
    "in float32": (lambda x, p: x * p + p, [FLOATS, spec(35, dtype="float32")], {}),
    "a product that is used again": (lambda x, p: (y := x * p) + kf.floor(y), [X, COLUMNS], {}),
    "gelu's tanh": (lambda x: 1 + kf.tanh(x), [X], {"tanh": ["quick"], "add": ["one plus tanh"]}),
    "2 + tanh": (lambda x: 2 + kf.tanh(x), [X], {"tanh": ["quick"]}),
    "a place": (lambda x, t: kf.where(kf.iota(x.shape) == t[:, None], x, 0).max(-1), [FLOATS, PLACES], {
        "equal": ["place"]}),
    "places of rows": (lambda x, t: kf.where(kf.iota(x.shape, 0) == t[:, None], x, 0).max(-1), [FLOATS, PLACES], {}),
}  # fmt: skip


def test_steps():
    def check(case):
        function, specs, idioms = STEPS[case]
        assert found(only_kernel(function, *specs)) == idioms

    sweep(check, [(case,) for case in STEPS])


def picked(otherwise):
    return lambda x, t: kf.where(kf.iota(x.shape) == t[:, None], x * 2, otherwise).sum(-1)


def test_sums_of_one_element_of_a_row():
    def check(_, function, picks):
        k = only_kernel(function, FLOATS, PLACES)
        assert len(k["picks"]) == picks
        for reduction, equal, _, otherwise in k["picks"]:
            assert [k["steps"][i]["op"] for i in (reduction, equal, otherwise)] == ["sum", "equal", "constant"]

    rows = [
        ("zeros", picked(0.0), 1),
        ("others", picked(3.0), 1),
        ("elements", lambda x, t: kf.where(kf.iota(x.shape) == t[:, None], x, x * x).sum(-1), 0),
        ("the largest", lambda x, t: kf.where(kf.iota(x.shape) == t[:, None], x, 0).max(-1), 0),
        ("several", lambda x, t: kf.where(kf.iota(x.shape) <= t[:, None], x, 0).sum(-1), 0),
    ]
    sweep(check, rows)


def searched(beyond, nan=True, dtype="int32"):
    def search(x):
        largest = x.max(-1, keepdims=True)
        hit = kf.logical_or(x == largest, kf.isnan(x)) if nan else x == largest
        return kf.where(hit, kf.iota(x.shape, -1, dtype), beyond).min(-1)

    return search


def test_searches():
    def check(_, function, searches):
        k = only_kernel(function, FLOATS)
        assert [nan for *_, nan in k["searches"]] == searches
        for reduction, _, number, place, _ in k["searches"]:
            assert (k["steps"][reduction]["op"], k["steps"][number]["row"]) == ("min", True)
            assert k["steps"][place]["kind"] == "iota"

    rows = [
        ("beyond the last", searched(35), [True]),
        ("without NaN", searched(35, nan=False, dtype="int64"), [False]),
        ("the last", searched(34), []),
        ("before the first", searched(-1), []),
        ("argmax", lambda x: kf.argmax(x, -1), [True]),
        ("argmin", lambda x: kf.argmin(x, 0), [True]),
        ("the last one", lambda x: kf.where(x == x.max(-1, keepdims=True), kf.iota(x.shape), 35).max(-1), []),
    ]
    sweep(check, rows)


def test_exponentials_that_can_be_kept():
    def check(_, function, divisors):
        k = only_kernel(function, FLOATS)
        assert [k["steps"][d]["op"] if d >= 0 else "" for *_, d in k["exponentials"]] == divisors

    of_logarithm = lambda x: kf.exp(x - x.max(-1, keepdims=True)) * kf.logsumexp(x, -1, keepdims=True)  # noqa: E731
    rows = [
        ("softmax", kf.softmax, ["sum"]),
        ("no divisor", of_logarithm, [""]),
        ("x is needed again", kf.log_softmax, []),
        ("x is stored", lambda x: (kf.softmax(x), x + 1), ["sum"]),
        ("x is a factor", lambda x: kf.softmax(x) * x, []),
        ("none", kf.layernorm, []),
    ]
    sweep(check, rows)


@pytest.mark.parametrize(("beyond", "merged"), [(32_000, True), (31_999, False), (-1, False), (10**6, True)])
def test_a_search_of_a_products_rows_gives_what_stands_for_no_place(beyond, merged):
    """The smallest of the positions and of that number: no kernel that finds the position alone."""

    def f(x, w):
        return searched(beyond)(x @ w.T)

    x, w = spec(4096, 1024), spec(32_000, 1024)
    kernels = _core.cuda_kernels(kf.trace(f, x, w), DEVICE)
    texts = [k.source for k in kernels if k is not None]
    assert any("Found<" in text for text in texts) == merged
    a, b = np.eye(4, dtype=np.float32), np.arange(36, dtype=np.float32).reshape(9, 4)  # the last one is the largest
    small = searched(beyond)
    np.testing.assert_array_equal(kf.fuse(lambda x, w: small(x @ w.T))(a, b), [min(8, beyond)] * 4)
