"""What a graph cannot hold: each refusal says what was done, on which line, and what to write instead."""

from __future__ import annotations

import linecache
import math

import numpy as np
import pytest

import kfusion as kf
from kfusion._tracing.trace import trace

X = kf.spec((5, 7))
W = np.ones((5, 7), np.float32)

# The line, what the message says of it, and what it says to write.
REFUSED = {
    "if (x > 0).all(): pass": ("branching on a traced value", "kf.where"),
    "y = x if x.sum() else -x": ("branching on a traced value", "kf.where"),
    "y = 0 < x < 1": ("branching on a traced value", "& and |"),
    "y = x > 0 and x < 1": ("branching on a traced value", "& and |"),
    "y = not x": ("branching on a traced value", "kf.where"),
    "while x.sum() > 1: pass": ("branching on a traced value", "kf.where"),
    "assert (x > 0).any()": ("branching on a traced value", "kf.where"),
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
    "np.unique(x)": ("numpy.unique is not traced: the shape of its result depends on data", "a reduction"),
    "x[x > 0]": ("the shape of x[mask] depends on data", "kf.where(mask, x, 0) and a reduction"),
    "x[W > 0]": ("the shape of x[mask] depends on data", "kf.where(mask, x, 0) and a reduction"),
    "x[True]": ("the shape of x[mask] depends on data", "kf.where(mask, x, 0) and a reduction"),
    "np.allclose(x, x)": ("numpy.allclose is not traced: values are not known", "kf.where"),
    "x.item()": ("x.item is not traced: values are not known", "read it outside"),
    "x.tolist()": ("x.tolist is not traced: values are not known", "read it outside"),
    "np.linalg.eig(x)": ("numpy.linalg.eig is not traced", "call it outside"),
    "x.unsqueeze(0)": ("numpy arrays have no .unsqueeze, torch's have", 'like="torch"'),
    "1.0 in x": ("`in` with a traced value", "(x == value).any()"),
    "x + [1, 2]": ("an operand must be an array or a number, got list", "outside"),
    "x * 1j": ("an operand must be an array or a number, got complex", ""),
    "x == 'a'": ("an operand must be an array or a number, got str", ""),
    "f'{x:.3f}'": ("formatting a traced value with '.3f'", "print it outside"),
}


def function_of(line: str, file: str = "user_model.py"):
    """A function with the line in it, as if it stood in a file."""
    text = f"def f(x):\n    '''Has line 4.'''\n    y = x * 1\n    {line}\n    return y\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), f"/somewhere/{file}")
    scope = {"np": np, "kf": kf, "W": W, "math": math}
    exec(compile(text, file, "exec"), scope)
    return scope["f"]


@pytest.mark.parametrize("line", REFUSED)
def test_refused(line):
    what, instead = REFUSED[line]
    with pytest.raises(kf.TraceError) as caught:
        trace(function_of(line), X)
    first, second, *rest = str(caught.value).split("\n")
    assert first.startswith(f"kfusion.trace: {what}")
    assert second == f"  user_model.py:4: {line}"
    assert instead in "".join(rest)
    assert isinstance(caught.value, TypeError)


def test_errors_that_a_function_makes_of_ours_are_its_own():
    """NumPy's of the same words, for w[0, 0] = x, is one that C code made."""

    def f(x):
        try:
            return float(x.sum())
        except kf.TraceError as error:
            raise ValueError("setting an array element with a sequence.") from error

    with pytest.raises(ValueError, match=r"^setting an array element with a sequence\.$"):
        trace(f, X)


@pytest.mark.parametrize("line", ["jnp.sin(x)", "jnp.add(x, 1)", "jnp.where(x, x, 0)", "jax.nn.gelu(x)", "jnp.sum(x)"])
def test_functions_of_jax(line):
    jax = pytest.importorskip("jax")
    f = function_of(line)
    f.__globals__.update(jax=jax, jnp=jax.numpy)
    # Some releases of JAX ask for an array instead of refusing the class.
    with pytest.raises(
        kf.TraceError, match=r"takes no traced values was called|making a NumPy array of traced"
    ) as caught:
        trace(f, X)
    assert f"\n  user_model.py:4: {line}\n  write " in str(caught.value)


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        ("x + np.ones((3, 4))", ValueError, "kfusion.add: operands could not be broadcast together"),
        ("x.sum(5)", ValueError, "kfusion.sum: axis 5 is out of bounds"),
        ("x.reshape(3)", ValueError, "kfusion.reshape: cannot reshape"),
        ("x @ np.ones(3)", ValueError, "kfusion.matmul: "),
        ("~x", TypeError, "kfusion.invert: x must be integers or bools, got float32"),
        ("x.astype('int32') + 2**40", OverflowError, "kfusion.add: Python integer 1099511627776 out of bounds"),
    ],
)
def test_shapes_and_dtypes_name_the_line(line, error, text):
    with pytest.raises(error) as caught:
        trace(function_of(line), X)
    assert str(caught.value).startswith(text)
    assert str(caught.value).endswith(f"\n  user_model.py:4: {line}")


@pytest.mark.parametrize(
    ("line", "text"),
    [("x[9]", "index 9 is out of bounds for axis 0 with size 5"), ("x[0, 0, 0]", "too many indices"),
     ("x[..., ...]", "a single ellipsis")],
)  # fmt: skip
def test_indices_fail_as_numpys(line, text):
    with pytest.raises(IndexError, match=text):
        trace(function_of(line), X)


def test_the_users_own_errors_stay():
    with pytest.raises(TypeError, match="my own") as caught:
        trace(function_of("raise TypeError('my own')"), X)
    assert not isinstance(caught.value, kf.TraceError)


def test_a_line_within_a_called_function():
    def helper(v):
        if v.sum() > 0:
            return v
        return -v

    with pytest.raises(kf.TraceError, match=r"\n  test_trace_errors\.py:\d+: if v\.sum\(\) > 0:\n"):
        trace(lambda x: helper(x), X)
