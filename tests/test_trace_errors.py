"""What a graph cannot hold, and arguments and results that are no arrays: each refusal says what was done, on which
line, and what to write instead."""

from __future__ import annotations

import collections
import dataclasses
import functools
import linecache
import math
import re
import sys
import types
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing.trace import trace
from sweeps import sweep

X = kf.spec((5, 7))
W = np.ones((5, 7), np.float32)
A = np.ones((3, 4), np.float32)
Pair = collections.namedtuple("Pair", "a b")


# The line, what the message says of it, and what it says to write.
REFUSED = {
    "if (x > 0).all(): pass": ("branching on a traced value", "kf.where"),
    "y = x if x.sum() else -x": ("branching on a traced value", "kf.where"),
    "y = 0 < x < 1": ("branching on a traced value", "& and |"),
    "y = max(x)": ("branching on a traced value", "kf.where"),
    "float(x.sum())": ("float() of a traced value", "the value itself"),
    "int(x.sum())": ("int() of a traced value", "astype('int64')"),
    "complex(x.sum())": ("complex() of a traced value", "real numbers"),
    "math.sqrt(x.sum())": ("float() of a traced value", "functions of kfusion and NumPy"),
    "range(x.sum())": ("a traced value as a Python integer", "a Python integer"),
    "x[: x.sum()]": ("a traced value as a Python integer", "a Python integer"),
    "y = x[::2]; y += 1": ("f changes its argument x through a view of it that may be a copy", "to x itself"),
    "del x[0]": ("deleting a part of a traced value", "a slice"),
    "x.shape = (7, 5)": ("setting .shape of a traced value", "y = ..."),
    "x.name = 'x'": ("setting .name of a traced value", "y = ..."),
    "W.copy()[0] = x[0]": ("making a NumPy array of traced values", "np.zeros(shape, like=x)"),
    "W.copy()[0, 0] = x": ("assigning to a part of an array", "np.zeros(shape, like=x)"),
    "w = W.copy(); w += x": ("numpy.add does not honour out=", "y = ..."),
    "np.add(x, 1, out=W.copy())": ("numpy.add does not honour out=", "y = ..."),
    "np.exp(x, where=x > 0)": ("numpy.exp does not honour where=", "kf.where(mask, x, y)"),
    "x.reshape(-1, order='A')": ("numpy.reshape with order='A'", 'order="F"'),
    "np.add.at(W.copy(), 0, x)": ("numpy.add.at is not traced", "functions of kfusion"),
    "np.asarray(x)": ("making a NumPy array of traced values", "kf.full_like"),
    "np.array([x, x])": ("making a NumPy array of traced values", "kf.stack((x, y))"),
    "np.full((3,), x.sum())": ("making a NumPy array of traced values", "kf.full_like"),
    "np.random.normal(x)": ("making a NumPy array of traced values", "the value itself"),
    "np.nonzero(x)": ("numpy.nonzero is not traced: the shape of its result depends on data", "a reduction"),
    "np.where(x > 0)": ("numpy.nonzero is not traced: the shape of its result depends on data", "a reduction"),
    "x[x > 0]": ("the shape of x[mask] depends on data", "kf.where(mask, x, 0) and a reduction"),
    "x[True]": ("the shape of x[mask] depends on data", "kf.where(mask, x, 0) and a reduction"),
    "np.allclose(x, x)": ("numpy.allclose is not traced: values are not known", "kf.where"),
    "x.item()": ("x.item is not traced: values are not known", "read it outside"),
    "np.linalg.eig(x)": ("numpy.linalg.eig is not traced", "call it outside"),
    "x.unsqueeze(0)": ("numpy arrays have no .unsqueeze, torch's have", 'like="torch"'),
    "1.0 in x": ("`in` with a traced value", "(x == value).any()"),
    "x + [1, 2]": ("an operand must be an array or a number, got list", "outside"),
    "x * 1j": ("an operand must be an array or a number, got complex", ""),
    "f'{x:.3f}'": ("formatting a traced value with '.3f'", "print it outside"),
}


def function_of(line: str, file: str = "user_model.py", **names: Any):
    """A function with the line in it, as if it stood in a file."""
    text = f"def f(x):\n    '''Has line 4.'''\n    y = x * 1\n    {line}\n    return y\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), f"/somewhere/{file}")
    scope = {"np": np, "kf": kf, "W": W, "math": math, **names}
    exec(compile(text, file, "exec"), scope)
    return scope["f"]


def test_refused():
    def check(line, what, instead):
        with pytest.raises(kf.TraceError) as caught:
            trace(function_of(line), X)
        first, second, *rest = str(caught.value).split("\n")
        assert first.startswith(f"kfusion.trace: {what}")
        assert second == f"  user_model.py:4: {line}"
        assert instead in "".join(rest)
        assert isinstance(caught.value, TypeError)

    sweep(check, [(line, *says) for line, says in REFUSED.items()])


def test_errors_that_a_function_makes_of_ours_are_its_own():
    """NumPy's of the same words, for w[0, 0] = x, is one that C code made."""

    def f(x):
        try:
            return float(x.sum())
        except kf.TraceError as error:
            raise ValueError("setting an array element with a sequence.") from error

    with pytest.raises(ValueError, match=r"^setting an array element with a sequence\.$"):
        trace(f, X)
    with pytest.raises(TypeError, match="my own") as caught:
        trace(function_of("raise TypeError('my own')"), X)
    assert not isinstance(caught.value, kf.TraceError)


def test_functions_of_jax():
    jax = pytest.importorskip("jax")

    def check(line):
        # Some releases of JAX ask for an array instead of refusing the class.
        says = r"takes no traced values was called|making a NumPy array of traced"
        with pytest.raises(kf.TraceError, match=says) as caught:
            trace(function_of(line, jax=jax, jnp=jax.numpy), X)
        assert f"\n  user_model.py:4: {line}\n  write " in str(caught.value)

    lines = ("jnp.sin(x)", "jnp.add(x, 1)", "jnp.where(x, x, 0)", "jax.nn.gelu(x)", "jnp.sum(x)")
    sweep(check, [(line,) for line in lines])


def test_errors_of_operations_name_the_line():
    def check(line, error, text):
        with pytest.raises(error, match=re.escape(text)) as caught:
            trace(function_of(line), X)
        assert error is IndexError or str(caught.value).endswith(f"\n  user_model.py:4: {line}")
        assert error is not TypeError or not isinstance(caught.value, kf.TraceError)

    rows = [
        ("x + np.ones((3, 4))", ValueError, "kfusion.add: operands could not be broadcast together"),
        ("x.sum(5)", ValueError, "kfusion.sum: axis 5 is out of bounds"),
        ("x.reshape(3)", ValueError, "kfusion.reshape: cannot reshape"),
        ("x @ np.ones(3)", ValueError, "kfusion.matmul: "),
        ("~x", TypeError, "kfusion.invert: x must be integers or bools, got float32"),
        ("x.astype('int32') + 2**40", OverflowError, "kfusion.add: Python integer 1099511627776 out of bounds"),
        ("x[9]", IndexError, "index 9 is out of bounds for axis 0 with size 5"),
        ("x[0, 0, 0]", IndexError, "too many indices"),
        ("x[..., ...]", IndexError, "a single ellipsis"),
    ]
    sweep(check, rows)


def test_a_line_within_a_called_function():
    def helper(v):
        if v.sum() > 0:
            return v
        return -v

    with pytest.raises(kf.TraceError, match=r"\n  test_trace_errors\.py:\d+: if v\.sum\(\) > 0:\n"):
        trace(lambda x: helper(x), X)


# ---- arguments that are no arrays -----------------------------------------------------------------------------------


class Lazy:
    """An array that is asked as dask's are."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return A

    def __add__(self, other: Any) -> Any:
        return self


class Table(Lazy):
    """A table that is asked as pandas and xarray are."""

    def to_numpy(self) -> np.ndarray:
        return A


@dataclasses.dataclass
class Both:
    a: Any
    b: Any = None


PASS = {
    "got the class ndarray; pass an instance of it": np.ndarray,
    "got list; convert it with numpy.asarray(x)": [1.0, 2.0],
    "got Table; convert it with x.to_numpy()": Table(),
    "got Lazy; convert it with numpy.asarray(x)": Lazy(),
    "got dict; pass its arrays one by one": {"a": 1.0},
    "got str": "a",
}


def test_what_to_pass_instead():
    """To functions of arrays, to functions that fail on it in their own ways, and beside a traced value."""

    def check(text, value):
        for f in (kf.fuse(lambda x: x + 1), kf.fuse(np.exp), kf.relu, kf.fused_softmax):
            with pytest.raises(TypeError, match=rf"x must be an array, {re.escape(text)}$"):
                f(value)
        got, _, instead = text.partition("; ")
        with pytest.raises(kf.TraceError, match=re.escape(got)) as caught:
            kf.fuse(lambda y, x: y + x)(A, value)
        assert instead.replace("convert it with", "write") in str(caught.value)

    sweep(check, PASS.items())


class Layer:
    def __call__(self, x):
        return x + 1


class Broken(list):
    def __iter__(self):
        raise ZeroDivisionError("no items today")


class Growing(list):
    def __iter__(self):
        self.append(A)
        return super().__iter__()


class NoPairs(dict):
    def items(self):
        return [1, 2]


def test_arguments_and_results():
    def check(f, given, error, message):
        with pytest.raises(error, match=message):
            kf.fuse(f)(given)

    def container(function, make):
        got = rf"x of kfusion\.{function.__name__} must be an array, got {type(make(0)).__name__}\n.*\n  call kfusion"
        return lambda x: function(make(x)), A, kf.TraceError, got

    def none(call, name):
        with pytest.raises(TypeError, match=(says := rf"kfusion\.\w+: {name} must be an array, got None")):
            call(A)
        return call, A, TypeError, says

    def returned(value, what):
        says = rf"f returns nothing made of its arrays, but {what}.*\n  return what it"
        return function_of("return value", value=value), A, kf.TraceError, says

    def f(make, beside):
        return lambda x: (x * 2, make(x)) if beside else make(x)

    objects = {
        "partial": lambda x: functools.partial(kf.relu, x + 1), "set": lambda x: {x + 1},
        "deque": lambda x: collections.deque([x + 1]), "generator": lambda x: (x + i for i in range(2)),
        "map": lambda x: map(kf.relu, [x]), "mappingproxy": lambda x: types.MappingProxyType({"y": x}),
    }  # fmt: skip
    within = r"returns what it computes within a value of type {}\n  return arrays"
    ufunc = np.frompyfunc(lambda x: x, 1, 1)
    rows = [
        (Layer, A, TypeError, "must be a function or an object, got the class Layer; pass an instance of it"),
        (lambda d: d.a.a + 1, Both(Both(A)), TypeError,
         r"d must be an array, got Both; the attributes of an object without arrays"),
        (lambda x: x[0] + 1, Broken([A]), ZeroDivisionError, "no items today"),
        (lambda x: x[0] + 1, Growing([A]), TypeError, "a container gave more arrays when it was read again"),
        (lambda d: 1, NoPairs(a=A), TypeError, r"kfusion\.<lambda>: the items of d must be pairs"),
        (lambda x: ufunc(x), A, kf.TraceError, r"kfusion\.trace: <lambda> \(vectorized\) gives object"),
        container(kf.relu, lambda x: [x, x]), container(kf.softmax, lambda x: (x,)),
        container(kf.sum, lambda x: Pair(x, x)), container(kf.layernorm, lambda x: {"a": x}),
        none(lambda x: kf.add(x, None), "y"), none(lambda x: kf.add(None, x), "x"),
        none(lambda x: kf.layernorm(None, x), "x"), none(lambda x: kf.where(None, x, x), "condition"),
        none(lambda x: kf.matmul(x, None), "y"), none(lambda x: kf.mse(x, None), "y"),
        returned(None, "None"), returned(3, "a value of type int"), returned(A, "a value of type ndarray"),
        *((f(make, b), A, kf.TraceError, within.format(kind)) for kind, make in objects.items() for b in (False, True)),
    ]  # fmt: skip
    sweep(check, rows)
    assert kf.fuse(Layer())(A) is not None
    both = Both(A)  # objects that have nothing traced are results
    y, got = kf.fuse(lambda x: (x + 1, both))(A)
    assert got is both
    np.testing.assert_array_equal(y, A + 1)
    moved = collections.OrderedDict(a=A, b=A * 2)
    moved.move_to_end("a")  # containers have an order of their own
    np.testing.assert_array_equal(kf.fuse(lambda d: d["b"] - d["a"])(moved), A)
    np.testing.assert_array_equal(kf.fuse(lambda d: next(iter(d.values())) * 1)(moved), A * 2)


# ---- functions that take no traced values ---------------------------------------------------------------------------


def test_functions_of_scipy_have_their_own_names():
    special = pytest.importorskip("scipy.special")
    for call in (special.gamma, special.gammaln, special.betaln.reduce):
        plan = kf.plan(lambda x, call=call: call(x + 1), kf.spec((3, 4), "float64"))
        assert plan.refusals[0].sentence.startswith("scipy.special.")


def test_another_library_s_error_about_our_class():
    for error in (RuntimeError, TypeError, ValueError):

        def rearrange(x, error=error):
            raise error(f"Tensor type unknown to einops {type(x)}")

        f = function_of("rearrange(x)", rearrange=rearrange)
        with pytest.raises(kf.TraceError, match=r"a function that takes no traced values was called \(Tensor type"):
            kf.fuse(f)(A)


def test_the_user_s_line_is_named_not_an_installed_package_s(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "of_others.py"
    package.parent.mkdir()
    package.write_text("def truth(x):\n    return 1 if x else 0\n")
    monkeypatch.syspath_prepend(str(package.parent))
    import of_others

    says = r"branching on a traced value.*\n  "
    with pytest.raises(kf.TraceError, match=says + r"user_model\.py:4: truth\(x\)\n"):
        kf.fuse(function_of("truth(x)", truth=of_others.truth))(A)
    with pytest.raises(kf.TraceError, match=says + r"of_others\.py:2: return 1 if x else 0\n"):
        kf.fuse(of_others.truth)(A)  # there is no other
    del sys.modules["of_others"]


def test_recursion():
    @kf.fuse
    def f(x):
        return f(x - 1)

    @kf.fuse
    def of_a_plain_array(x):
        return of_a_plain_array(A) + x

    for endless in (f, of_a_plain_array):
        with pytest.raises(RecursionError, match=r"kfusion\.\w+: it calls itself.*end the recursion by a Python value"):
            endless(A)

    @kf.fuse
    def ending(x, n):
        return x if n == 0 else ending(x, n - 1) * 2

    np.testing.assert_array_equal(ending(A, 5), A * 32)
