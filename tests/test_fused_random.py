"""Random functions through `kf.fuse`: fused, unfused and NumPy in float64 agree; on the GPU as on the CPU."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import kfusion as kf
from graph_strategies import LARGER_BASES, cases
from kinds import HAVE_GPU
from layouts import laid_out, layouts
from replay import replay

pytestmark = pytest.mark.native

# Each new kernel of a GPU is compiled; the fixture only says where arrays lie.
EXAMPLES = hypothesis.settings(
    max_examples=30 if HAVE_GPU else 60,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)


def back(a):
    return a.numpy() if hasattr(a, "numpy") else np.asarray(a)


def run(function, place, inputs):
    return [back(r) for r in function([place.make(x) for x in inputs])]


def assert_same_bits(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


@EXAMPLES
@hypothesis.given(case=cases(contractions=True, gathers=True))
def test_products_and_gathers_between(place, case):
    try:
        results = run(kf.fuse(replay(case.graph)), place, case.inputs)
    except kf.DeviceError:  # no library on the GPU computes it for arrays of this kind
        assert place.cuda
        assert not place.name.startswith("torch")
    else:
        case.check(results)


@EXAMPLES
@hypothesis.given(case=cases(bases=LARGER_BASES, max_steps=6), data=st.data())
def test_into_the_caller_s_arrays(case, data):
    f = kf.fuse(replay(case.graph))
    expected = f(case.inputs)
    outs = tuple(laid_out(np.zeros_like(r), data.draw(layouts(r.shape))) for r in expected)
    results = f(case.inputs, out=outs)
    assert all(r is out for r, out in zip(results, outs, strict=True))
    for value, got, want in zip(case.outputs, outs, expected, strict=True):
        if value.same_bits:
            assert_same_bits([got], [want])
        else:  # sums go in the order of memory, that of the first result
            np.testing.assert_allclose(
                got, want, rtol=1e-5 if value.dtype == "float32" else 1e-12, atol=2 * value.error
            )


def test_one_value_as_two_results_of_any_layout(rng):
    f = kf.fuse(lambda x: (y := kf.relu(x), y, y.sum(0)))
    x = rng.standard_normal((5, 7))
    outs = np.zeros((7, 5)).T, np.zeros((10, 7))[::-2], np.zeros(7)
    for out, want in zip(f(x, out=outs), (np.maximum(x, 0),) * 2 + (np.maximum(x, 0).sum(0),), strict=True):
        np.testing.assert_allclose(out, want, rtol=1e-14)


def test_a_value_that_moved_under_a_view_is_still_repeated_by_the_next():
    f = kf.fuse(lambda x: np.broadcast_to((-x).reshape(1, 3), (2, 3)).sum(0))
    np.testing.assert_array_equal(f(np.arange(3.0)), [0, -2, -4])


def test_five_hundred_operations_in_a_row(place, rng):
    def f(x, y):
        z = x
        for i in range(250):
            z = (z + y) * (0.5 if i % 2 else 0.25)
        return z

    x, y = (rng.standard_normal((37, 129)) for _ in range(2))
    fused = kf.fuse(f)
    assert len(fused.plan(x, y).groups) == 1
    (got,), (unfused,) = run(lambda a: [fused(*a)], place, [x, y]), run(lambda a: [fused.unfused(*a)], place, [x, y])
    assert_same_bits([got], [unfused])
    np.testing.assert_array_equal(got, f(x, y))


def test_sixty_four_arguments(place, rng):
    f = kf.fuse(lambda arrays: sum(arrays[1:], arrays[0]))
    inputs = [rng.integers(-9, 9, (5, 67)).astype(np.float32) for _ in range(64)]
    assert len(f.plan(inputs).groups) == 1
    np.testing.assert_array_equal(back(f([place.make(x) for x in inputs])), sum(inputs))
