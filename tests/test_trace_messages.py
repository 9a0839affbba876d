"""What tracing says of arguments and results that are no arrays, and of functions that take no traced values."""

from __future__ import annotations

import collections
import dataclasses
import functools
import re
import sys
import types
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from test_trace_errors import function_of

X = np.ones((3, 4), np.float32)
Pair = collections.namedtuple("Pair", "a b")


class Table:
    """A table that is asked as pandas and xarray are."""

    def to_numpy(self) -> np.ndarray:
        return X

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X

    def __add__(self, other: Any) -> Any:
        return self


class Lazy:
    """An array that is asked as dask's are."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X

    __add__ = Table.__add__


@dataclasses.dataclass
class Both:
    a: Any
    b: Any = None


@pytest.mark.parametrize(("value", "conversion"), [(Table(), r"t\.to_numpy\(\)"), (Lazy(), r"numpy\.asarray\(t\)")])
def test_tables_and_lazy_arrays(value, conversion):
    kind = type(value).__name__
    with pytest.raises(
        TypeError, match=rf"kfusion\.<lambda>: t must be an array, got {kind}; convert it with {conversion}"
    ):
        kf.fuse(lambda t: t + 1)(value)
    with pytest.raises(kf.TraceError, match=rf"an operand must be an array or a number, got {kind}\n(.*\n)?  write "):
        kf.fuse(lambda x: x + value)(X)


PASS = {
    "got the class ndarray; pass an instance of it": np.ndarray,
    "got list; convert it with numpy.asarray(x)": [1.0, 2.0],
    "got Table; convert it with x.to_numpy()": Table(),
    "got dict; pass its arrays one by one": {"a": 1.0},
    "got str": "a",
}


@pytest.mark.parametrize("text", PASS)
def test_what_to_pass_instead(text):
    """To functions of arrays, to functions that fail on it in their own ways, and beside a traced value."""
    value = PASS[text]
    for f in (kf.fuse(lambda x: x + 1), kf.fuse(np.exp), kf.relu, kf.fused_softmax):
        with pytest.raises(TypeError, match=rf"x must be an array, {re.escape(text)}$"):
            f(value)
    got, _, instead = text.partition("; ")
    with pytest.raises(kf.TraceError, match=re.escape(got)) as caught:
        kf.fuse(lambda y, x: y + x)(X, value)
    assert instead.replace("convert it with", "write") in str(caught.value)


def test_a_class_in_place_of_its_instance():
    class Layer:
        def __call__(self, x):
            return x + 1

    assert kf.fuse(Layer())(X) is not None
    with pytest.raises(TypeError, match="must be a function or an object, got the class Layer; pass an instance of it"):
        kf.fuse(Layer)(X)


@pytest.mark.parametrize("library", ["pandas", "xarray", "dask.array"])
def test_tables_of_libraries_that_a_function_names(library):
    """Arguments may be such tables: tests of dask and of labelled arrays."""
    module = pytest.importorskip(library)
    make = {"pandas": "DataFrame", "xarray": "DataArray", "dask.array": "from_array"}[library]
    table = getattr(module, make)(X)
    with pytest.raises((TypeError, ValueError)):  # pandas asks for the length of what it meets
        kf.fuse(lambda x: table + x)(X)


def test_a_dataclass_argument():
    with pytest.raises(TypeError, match=r"d must be an array, got Both; the attributes of an object without arrays"):
        kf.fuse(lambda d: d.a.a + 1)(Both(Both(X)))


def objects() -> dict[str, Any]:
    return {
        "partial": lambda x: functools.partial(kf.relu, x + 1),
        "set": lambda x: {x + 1},
        "deque": lambda x: collections.deque([x + 1]),
        "generator": lambda x: (x + i for i in range(2)),
        "map": lambda x: map(kf.relu, [x]),
        "mappingproxy": lambda x: types.MappingProxyType({"y": x}),
    }


@pytest.mark.parametrize("kind", objects())
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an array"])
def test_results_within_other_objects(kind, beside):
    inner = objects()[kind]

    def f(x):
        return (x * 2, inner(x)) if beside else inner(x)

    with pytest.raises(
        kf.TraceError, match=rf"f returns what it computes within a value of type {kind}\n  return arrays"
    ):
        kf.fuse(f)(X)


def test_objects_that_have_nothing_traced_are_results():
    both = Both(X)
    y, got = kf.fuse(lambda x: (x + 1, both))(X)
    assert got is both
    np.testing.assert_array_equal(y, X + 1)


@pytest.mark.parametrize(
    ("value", "what"), [(None, "None"), (3, "a value of type int"), (X, "a value of type ndarray")]
)
def test_results_of_nothing(value, what):
    f = function_of("return value")
    f.__globals__["value"] = value
    with pytest.raises(kf.TraceError, match=rf"f returns nothing made of its arrays, but {what}\n  return what it"):
        kf.fuse(f)(X)


@pytest.mark.parametrize("make", [lambda x: [x, x], lambda x: (x,), lambda x: Pair(x, x), lambda x: {"a": x}])
@pytest.mark.parametrize("function", [kf.relu, kf.softmax, kf.sum, kf.layernorm], ids=lambda f: f.__name__)
def test_containers_in_the_place_of_arrays(make, function):
    who = rf"x of kfusion\.{function.__name__}"
    with pytest.raises(
        kf.TraceError, match=rf"{who} must be an array, got {type(make(0)).__name__}\n.*\n  call kfusion"
    ):
        kf.fuse(lambda x: function(make(x)))(X)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: kf.add(x, None), "y"), (lambda x: kf.add(None, x), "x"), (lambda x: kf.layernorm(None, x), "x"),
        (lambda x: kf.where(None, x, x), "condition"), (lambda x: kf.matmul(x, None), "y"),
        (lambda x: kf.mse(x, None), "y"),
    ],
)  # fmt: skip
def test_none_in_the_place_of_an_array(call, name):
    for f in (call, kf.fuse(call)):
        with pytest.raises(TypeError, match=rf"kfusion\.\w+: {name} must be an array, got None"):
            f(X)


def test_scipy_s_functions_have_scipy_s_name():
    special = pytest.importorskip("scipy.special")
    for call in (special.gamma, special.gammaln, special.betaln.reduce):
        plan = kf.plan(lambda x, call=call: call(x + 1), kf.spec((3, 4), "float64"))
        assert plan.refusals[0].sentence.startswith("scipy.special.")


def test_ufuncs_of_nobody_have_their_own_name():
    ufunc = np.frompyfunc(lambda x: x, 1, 1)
    with pytest.raises(kf.TraceError, match=r"kfusion\.trace: <lambda> \(vectorized\) gives object"):
        kf.fuse(lambda x: ufunc(x))(X)


@pytest.mark.parametrize("error", [RuntimeError, TypeError, ValueError])
def test_another_library_s_error_about_our_class(error):
    def rearrange(x):
        raise error(f"Tensor type unknown to einops {type(x)}")

    f = function_of("rearrange(x)")
    f.__globals__["rearrange"] = rearrange
    with pytest.raises(kf.TraceError, match=r"a function that takes no traced values was called \(Tensor type"):
        kf.fuse(f)(X)


def test_einops():
    einops = pytest.importorskip("einops")
    f = function_of("einops.rearrange(x, 'a b -> b a')")
    f.__globals__["einops"] = einops
    np.testing.assert_array_equal(kf.fuse(f)(X), f(X))  # a traced value is what it stands for to isinstance


def test_the_user_s_line_is_named_not_an_installed_package_s(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "of_others.py"
    package.parent.mkdir()
    package.write_text("def truth(x):\n    return 1 if x else 0\n")
    monkeypatch.syspath_prepend(str(package.parent))
    import of_others

    f = function_of("truth(x)")
    f.__globals__["truth"] = of_others.truth
    with pytest.raises(kf.TraceError, match=r"branching on a traced value.*\n  user_model\.py:4: truth\(x\)\n"):
        kf.fuse(f)(X)
    with pytest.raises(
        kf.TraceError, match=r"branching on a traced value.*\n  of_others\.py:2: return 1 if x else 0\n"
    ):
        kf.fuse(of_others.truth)(X)  # there is no other
    del sys.modules["of_others"]


def test_endless_recursion():
    @kf.fuse
    def f(x):
        return f(x - 1)

    @kf.fuse
    def of_a_plain_array(x):
        return of_a_plain_array(X) + x

    for endless in (f, of_a_plain_array):
        with pytest.raises(RecursionError, match=r"kfusion\.\w+: it calls itself.*end the recursion by a Python value"):
            endless(X)


def test_recursion_that_ends():
    @kf.fuse
    def f(x, n):
        return x if n == 0 else f(x, n - 1) * 2

    np.testing.assert_array_equal(f(X, 5), X * 32)


class Broken(list):
    def __iter__(self):
        raise ZeroDivisionError("no items today")


class Growing(list):
    def __iter__(self):
        self.append(X)
        return super().__iter__()


class Sorted(dict):
    def items(self):
        return sorted(super().items())


class NoPairs(dict):
    def items(self):
        return [1, 2]


def test_containers_with_an_order_of_their_own():
    moved = collections.OrderedDict(a=X, b=X * 2)
    moved.move_to_end("a")
    for given in (moved, Sorted(b=X * 2, a=X)):
        np.testing.assert_array_equal(kf.fuse(lambda d: d["b"] - d["a"])(given), X)
        np.testing.assert_array_equal(
            kf.fuse(lambda d: next(iter(d.values())) * 1)(given), next(v for _, v in given.items())
        )


def test_containers_that_cannot_be_read():
    with pytest.raises(ZeroDivisionError, match="no items today"):
        kf.fuse(lambda x: x[0] + 1)(Broken([X]))
    with pytest.raises(TypeError, match="a container gave more arrays when it was read again"):
        kf.fuse(lambda x: x[0] + 1)(Growing([X]))
    with pytest.raises(TypeError, match=r"kfusion\.<lambda>: the items of d must be pairs"):
        kf.fuse(lambda d: 1)(NoPairs(a=X))
