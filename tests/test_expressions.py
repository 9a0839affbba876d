"""`kfusion.elementwise`: functions from the text of an expression, against the same expression in Python."""

import itertools

import numpy as np
import pytest

import kfusion as kf
from differential import DTYPES, compared, outcome, specials
from sweeps import sweep

EXPRESSIONS = {
    "x: x": lambda x: x,
    "x: -x * 2 + 1.5": lambda x: -x * 2 + 1.5,
    "x: (x + 0) ** 2 / 3 - (x + 0) // 2 + (x + 0) % 3": lambda x: (x + 0) ** 2 / 3 - (x + 0) // 2 + (x + 0) % 3,
    "x: sqrt(2 / pi) * exp(-x)": lambda x: float(np.sqrt(2 / np.pi)) * np.exp(-x),
    "x: 0 < x <= 2": lambda x: (x > 0) & (x <= 2),
    "x: x if x > 1 or not x < 0 else inf": lambda x: np.where((x > 1) | ~(x < 0), x, np.inf),
    "x: x > 0 and x != 1": lambda x: (x > 0) & (x != 1),
    "x: max(min(x, 2), -1)": lambda x: np.maximum(np.minimum(x, 2), -1),
    "x: (x & 3) | (x << 2) ^ (x >> 1)": lambda x: (x & 3) | (x << 2) ^ (x >> 1),
    "x: clip(x, -1, 1) + where(isnan(x), 1, 0)": lambda x: np.clip(x, -1, 1) + np.where(np.isnan(x), 1, 0),
    "x: x * -(2 ** 3 % 5)": lambda x: x * -3,
    "x: floor(x)\n   + ceil(x)": lambda x: np.floor(x) + np.ceil(x),
}


def test_expressions_are_what_python_makes_of_them():
    def check(dtype, text):
        x = specials(dtype)[:16]
        f, expected = kf.elementwise(text), outcome(EXPRESSIONS[text], x)
        if isinstance(expected, Exception):
            assert isinstance(outcome(f, x), TypeError)
        elif dtype != "float16" or "exp" not in text:
            assert not compared(outcome(f, x), expected, signed=False)

    sweep(check, itertools.product(DTYPES, EXPRESSIONS))


def test_arguments_are_arrays_of_any_library_numbers_and_traced_values():
    x = np.array([1, 2, 3], np.float32)
    f = kf.elementwise("x, a, b: x * (a * b) + 1", "scaled")
    np.testing.assert_array_equal(f(x, 2.0, b=3), x * 6 + 1)
    assert f(x, 2.0, 3.0).dtype == np.float32
    assert f(x.astype(int), 2, True).dtype == np.int64
    assert f(x.astype(int), 2, 0.5).dtype == np.float64
    np.testing.assert_array_equal(f(x[:, None], x, 1), x[:, None] * x + 1)
    fused = kf.fuse(lambda x, y: kf.relu(f(x, y, 2.0) - 3))
    np.testing.assert_array_equal(fused(x, x), np.maximum(2 * x * x - 2, 0))
    np.testing.assert_array_equal(fused.unfused(x, x), np.maximum(2 * x * x - 2, 0))
    assert [g.label for g in fused.plan(x, x).groups] == ["scaled+subtract+relu"]
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        f(x, x)
    with pytest.raises(ValueError, match="broadcast"):
        f(x, x[:2], 1)


def test_expressions_on_torch():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1, 2, -3])
    f = kf.elementwise("x: x / 7 if x > 0 else gelu(x * 1.0, approximate='tanh')")
    expected = torch.where(x > 0, x / 7, torch.nn.functional.gelu(x * 1.0, approximate="tanh"))
    torch.testing.assert_close(f(x), expected)
    torch.testing.assert_close(kf.fuse(lambda v: f(v) + 1)(x), expected + 1)


WRONG = {
    "x": (2, "there must be parameters, a colon and an expression"),
    "x: ": (4, "there must be parameters"),
    "x: y * 2": (4, "y is no parameter, constant or function"),
    "width: widht + 1": (8, "widht is no parameter, constant or function; width?"),
    "x: 2 * expp(x)": (8, "expp is no elementwise function of kfusion; exp?"),
    "x: 1 + exp": (8, "exp is a function: write exp(...)"),
    "x: exp(x, x)": (4, "exp: too many positional arguments"),
    "x: max(x)": (4, "max: missing a required argument: 'y'"),
    "x: np.exp(x)": (4, "np.exp is no elementwise function"),
    "x: sum(x)": (4, "sum is no elementwise function"),
    "x: gelu(x, approximate=x)": (4, "keywords of gelu must be constants"),
    "x: x +": (4, "invalid syntax"),
    "x: (x": (4, "'(' was never closed"),
    "x: 2 * [x]": (8, "List has no place in an expression of elements"),
    "x: x[0]": (4, "Subscript has no place"),
    "x: x.T": (4, "Attribute has no place"),
    "x: x @ x": (4, "@ has no place"),
    "x: x is x": (4, "Is has no place"),
    "x: exp(*x)": (8, "* has no place"),
    "x: 'a'": (4, "constants must be numbers, got 'a'"),
    "x: x * (1 / 0)": (9, "division by zero"),
    "x, x: x": (4, "x is given twice"),
    "x, pi: x": (4, "pi is already a constant or a function"),
    "x, 2y: x": (4, "a parameter must be a name, got '2y'"),
    "ä: ö": (4, "ö is no parameter"),
}


def test_what_is_no_expression():
    def check(text):
        column, message = WRONG[text]
        with pytest.raises(ValueError, match=r"^kfusion\.elementwise: ") as caught:
            kf.elementwise(text)
        assert str(caught.value).startswith(f"kfusion.elementwise: {message}")
        assert f"(column {column} of {text!r})" in str(caught.value)

    sweep(check, [(text,) for text in WRONG])


def test_what_is_no_text():
    with pytest.raises(ValueError, match="the expression must have a parameter in it"):
        kf.elementwise("x: 3")
    with pytest.raises(TypeError, match="expression must be a string, got function"):
        kf.elementwise(lambda x: x)
