"""Numbers beyond the range of a tensor's dtype: fused, a function raises an error where torch does, and gives the same
elsewhere."""

from __future__ import annotations

import contextlib
import functools
import itertools
import re

import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
from test_op_database import TRACED, one_thread  # noqa: E402, F401

DTYPES = ("float16", "bfloat16", "float32", "int32", "int64")
BEYOND = (1e6, -1e6, 1e39, -1e300, 70000, 2**31, -(2**40), float("inf"), float("nan"))


def is_scalar(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def with_number(sample, place, value):
    """The sample's arguments with another number at a place."""
    if isinstance(place, str):
        return sample.args, sample.kwargs | {place: value}
    return (*sample.args[:place], value, *sample.args[place + 1 :]), sample.kwargs


def places(op, sample):
    """Where the sample has a number that may be a fraction, and hence no extent, axis or count."""
    for place, value in (*enumerate(sample.args), *sample.kwargs.items()):
        if is_scalar(value):
            args, kwargs = with_number(sample, place, 1.5)
            with contextlib.suppress(Exception):
                op.op(sample.input.clone(), *args, **kwargs)
                yield place


def called(f, *args, **kwargs):
    """Whether torch's error about a number is raised; None where the call is refused, or fails otherwise."""
    args = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    try:
        f(*args, **kwargs)
    except kf.TraceError:
        return None
    except Exception as error:
        is_it = re.search("cannot be converted to type|must be in range \\[", str(error))
        return True if is_it else None
    return False


def differences(op, dtype, most):
    if not op.supports_dtype(getattr(torch, dtype), "cpu"):
        return
    samples = list(op.sample_inputs("cpu", getattr(torch, dtype)))
    with_numbers = [s for s in samples if any(map(is_scalar, (*s.args, *s.kwargs.values())))]
    for sample in with_numbers[:: -(-len(with_numbers) // most) or 1]:
        for place, value in itertools.product(places(op, sample), BEYOND):
            args, kwargs = with_number(sample, place, value)
            want = called(op.op, sample.input, *args, **kwargs)
            got = called(kf.fuse(lambda x, *a, k=kwargs, op=op: op.op(x, *a, **k)), sample.input, *args)
            if want != got and (want or got):
                yield f"{op.formatted_name} of {dtype}, {value} for {place}: raises {got}, torch: {want}"


def all_differences(compared, dtypes):
    torch.manual_seed(0)
    return [text for op in compared for dtype in dtypes for text in differences(op, dtype, 1)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
def test_some_functions(seed):
    assert all_differences(TRACED[seed % 96 :: 96], DTYPES[seed % 5 :][:1]) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
def test_all_functions(rng, is_sampled):
    assert all_differences(TRACED[rng.integers(16) :: 16] if is_sampled else TRACED, DTYPES) == []


CONVERTING = {
    "fill_": lambda x, s: x.clone().fill_(s),
    "clamp": lambda x, s: x.clamp(max=s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "full_like": lambda x, s: torch.full_like(x, s) + x * 0,
    "new_full": lambda x, s: x.new_full((3,), s) + x[:3] * 0,
    "pad": lambda x, s: torch.nn.functional.pad(x, (1, 1), value=s),
    "hardtanh": lambda x, s: torch.nn.functional.hardtanh(x, -1.0, s),
    "threshold": lambda x, s: torch.nn.functional.threshold(x, 0.5, s),
    "hardshrink": lambda x, s: torch.nn.functional.hardshrink(x, s),
    "softshrink": lambda x, s: torch.nn.functional.softshrink(x, s),
    "add": lambda x, s: torch.add(x, x, alpha=s),
}
WIDE = {
    "product": lambda x, s: x * s,
    "sum": lambda x, s: x + s,
    "comparison": lambda x, s: x < s,
    "where": lambda x, s: torch.where(x > 0, x, s),
    "leaky_relu": lambda x, s: torch.nn.functional.leaky_relu(x, s),
    "lerp": lambda x, s: torch.lerp(x, x * 0, s),
}


def _calls(f, x, numbers, is_argument):
    """Each number, and the call of the fused function with it: one of its arguments, or a constant of the function."""
    fused = kf.fuse(f)
    for s in numbers:
        constant = functools.partial(kf.fuse(lambda x, s=s: f(x, s)), x)
        yield s, functools.partial(fused, x, s) if is_argument else constant


@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize("name", CONVERTING)
def test_converting_functions(name, is_argument):
    """A number among the arguments is looked at in each call."""
    f = CONVERTING[name]
    x = torch.linspace(-1, 1, 6).half()
    for s, call in _calls(f, x, (0.5, 0.25, 1e6, 0.75), is_argument):
        if s > 65504:
            with pytest.raises(RuntimeError, match=r"cannot be converted to type|must be in range"):
                f(x, s)
            with pytest.raises(
                RuntimeError, match=rf"kfusion._?{name}: .*(cannot be converted to type|must be in range)"
            ):
                call()
        else:
            torch.testing.assert_close(call(), f(x, s))


@pytest.mark.parametrize("name", WIDE)
def test_functions_that_take_numbers_as_they_are(name):
    f = WIDE[name]
    x = torch.linspace(-1, 1, 6).half()
    fused = kf.fuse(f)
    for s in (0.5, 1e6, -1e6):
        torch.testing.assert_close(fused(x, s), f(x, s))


def test_infinities_have_a_place_in_floats():
    x = torch.linspace(-1, 1, 6).half()
    for f in (lambda x, s: x.masked_fill(x > 0, s), lambda x, s: x.clamp(max=s)):
        assert torch.equal(kf.fuse(f)(x, float("inf")), f(x, float("inf")))


def test_stored_numbers_become_infinite():
    def f(x, s):
        y = x.clone()
        y[1:3] = s
        return y

    x = torch.zeros(5).half()
    assert torch.equal(kf.fuse(f)(x, 1e6), f(x, 1e6))


@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize("name", ["leaky_relu", "elu", "celu"])
def test_half_types_convert_to_float32(name, is_argument):
    f = getattr(torch.nn.functional, name)
    x = torch.linspace(-1, 1, 6).half()
    for s, call in _calls(f, x, (0.5, 1e6, 1e39, 0.75), is_argument):
        if s > 1e38:
            with pytest.raises(RuntimeError, match=rf"kfusion\.{name}: .*cannot be converted to type"):
                call()
        else:
            torch.testing.assert_close(call(), f(x, s))


def test_conditions_alone_give_float32():
    fused = kf.fuse(lambda x, s: torch.where(x > 0, s, 0.5))
    x = torch.linspace(-1, 1, 6)
    assert fused(x, 2.0).tolist() == [0.5, 0.5, 0.5, 2.0, 2.0, 2.0]
    with pytest.raises(RuntimeError, match="cannot be converted to type"):
        fused(x, 1e39)
