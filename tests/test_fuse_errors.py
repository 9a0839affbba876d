"""`kf.fuse`: what it says no to, and how."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import kfusion as kf
from kfusion import _core
from test_fuse import Layer, chain, counting

pytestmark = pytest.mark.native


def test_errors_name_the_function():
    x = np.ones(3)
    with pytest.raises(TypeError, match=r"kfusion\.chain: x must be float16.*got datetime64"):
        chain(np.ones(3, "M8[s]"), x)
    with pytest.raises(ValueError, match=r"could not be broadcast together with shapes \(3,\) \(4,\)"):
        chain(x, np.ones(4))
    with pytest.raises(TypeError, match=r"chain: missing a required argument: 'b'"):
        chain(x)
    with pytest.raises(TypeError, match=r"kfusion\.chain: a spec is for planning"):
        chain(kf.spec(3), x)
    with pytest.raises(ValueError, match=r"kfusion\.chain: stream applies to CUDA arrays"):
        chain(x, x, stream=0)


def test_a_failed_trace_keeps_nothing():
    f = counting(lambda x: x if x.sum() > 0 else -x)
    for _ in range(2):
        with pytest.raises(kf.TraceError, match="branching on a traced value"):
            f(np.ones(3))
    assert f._cached() == 0


@pytest.mark.parametrize("wrong", [[1, 2, 3], 1.0, 3, "text"])
def test_arguments_that_are_no_arrays(wrong):
    instead = "" if isinstance(wrong, str) else "; convert it with numpy.asarray(x)"
    text = re.escape(f"kfusion.f: x must be an array, got {type(wrong).__name__}{instead}") + "$"

    @kf.fuse
    def f(self, x):
        return x

    with pytest.raises(TypeError, match=text):
        f(Layer(np.ones(3)), wrong)


@pytest.mark.parametrize("library", ["random", "numpy.random", "torch"])
def test_random_numbers_are_refused(library):
    module = pytest.importorskip(library)
    draw = module.random if library == "random" else lambda: float(np.asarray(module.rand(1)).item())

    @kf.fuse
    def f(x):
        return x * draw()

    with pytest.raises(
        kf.TraceError, match=rf"f draws from {library}, .*: random numbers would be drawn once.*\n  draw them"
    ):
        f(np.ones(3))


def test_numpys_generator_may_not_be_imported_yet():
    """NumPy imports it when it is first asked for."""
    program = "import numpy as np, kfusion as kf; kf.fuse(lambda x: x + np.random.normal(size=3))(np.ones(3))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert "draws from numpy.random" in ran.stderr


@pytest.mark.parametrize("is_argument", [False, True])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_generator_of_its_own_is_refused(library, is_argument):
    """Each call of the plain function draws others."""
    if library == "numpy":
        generator, draw = np.random.default_rng(0), lambda g: g.random()
    else:
        torch = pytest.importorskip("torch")
        generator, draw = torch.Generator(), lambda g: torch.rand((), generator=g).item()
    f = kf.fuse((lambda x, g: x * draw(g)) if is_argument else lambda x: x * draw(generator))
    hint = r"pass the numbers, not the generator" + r", or write x\.new_empty.*" * (library == "torch")
    with pytest.raises(kf.TraceError, match=rf"draws from a {library}.*Generator.*\n  draw outside and {hint}$"):
        f(np.ones(3), *[generator] * is_argument)


def test_a_plan_on_the_cpu_says_how_to_measure():
    assert 'f.plan(x, device="cpu") measures them' in " ".join(str(chain.plan(np.ones(3), np.ones(3))).split())


def test_values_of_its_own_are_changed_in_place():
    @kf.fuse
    def f(x):
        y = x + 1
        y += 2
        return y

    np.testing.assert_array_equal(f(np.ones(3)), np.full(3, 4.0))


def test_errors_of_the_user_s_code_pass_through():
    @kf.fuse
    def f(x, table):
        return x * table["missing"]

    with pytest.raises(KeyError, match="missing"):
        f(np.ones(3), {"there": 1.0})


def test_the_class_says_no_to_wrong_options():
    with pytest.raises(ValueError, match="there is no option"):
        _core.FusedCallable("f", ["x"], {"speed": True}, True, True)


def test_a_float_argument_that_becomes_an_integer():
    f = kf.fuse(lambda x, s: np.full_like(x, s) + x)
    i = np.arange(3)
    assert [f(i, s).tolist() for s in (1.0, 5.0, -2.9)] == [[1, 2, 3], [5, 6, 7], [-2, -1, 0]]
