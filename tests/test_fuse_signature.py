"""What tells calls of a fused function apart, and what may change while it is called."""

import numpy as np
import pytest

import kfusion as kf

pytestmark = pytest.mark.native

SCALE, OTHER, helper, TOGGLE = 1.0, 1.0, None, True
X = np.arange(3.0)


def by_scale(x):
    return x * SCALE


def by_other(x):
    return x + OTHER


def test_names_whose_values_are_equal(monkeypatch):
    """A value of another name makes another call."""
    f = kf.fuse(lambda x: helper(x))
    for name, value, want in (
        ("helper", by_scale, X),
        ("helper", by_other, X + 1),
        ("SCALE", 3.0, X + 1),
        ("helper", by_scale, 3 * X),
    ):
        monkeypatch.setitem(globals(), name, value)
        np.testing.assert_array_equal(f(X), want)


def test_keys_of_dicts():
    f = kf.fuse(lambda x, d: x * next(iter(d)) + next(iter(d.values())))
    for d in ({0.5: 2.0}, {7.0: 2.0}, {0.5: 3.0}, {(1, 2.0)[1]: 1}, {-0.0: 1.0}, {0.0: 1.0}):
        np.testing.assert_array_equal(f(X + 1, d), (X + 1) * next(iter(d)) + next(iter(d.values())))


def test_ranges_and_slices_by_their_members():
    f = kf.fuse(lambda x, r: x * r.stop)
    for r in (range(0, 3, 2), range(0, 4, 2), slice(0, 5), slice(0, 3)):
        np.testing.assert_array_equal(f(X, r), X * r.stop)


def test_a_name_that_is_rebound_while_arguments_are_read():
    """The call goes by one value of the name, and keeps nothing that was made with another."""

    class Rebinds(np.ndarray):
        pass

    class Array:
        shape, dtype = (3,), np.dtype(float)

        def __dlpack_device__(self):
            return X.__dlpack_device__()

        def __dlpack__(self, **options):
            global TOGGLE
            TOGGLE = not TOGGLE
            return X.__dlpack__(**options)

    global TOGGLE
    f = kf.fuse(lambda x: x * 2 if TOGGLE else x * 100)
    for _ in range(4):
        f(Array())
    for TOGGLE in (True, False, True):
        np.testing.assert_array_equal(f(X), X * (2 if TOGGLE else 100))


class Holder:
    def __init__(self):
        self.array = np.full((1, 5), 1000.0)


def test_out_over_an_argument_after_an_array_changed_its_shape():
    holder = Holder()
    f = kf.fuse(lambda x: x[::-1] + holder.array)
    a = np.arange(5.0)
    np.testing.assert_array_equal(f(a), a[None, ::-1] + 1000)
    holder.array.shape = (5,)
    holder.array[:] = 4
    want = a[::-1] + 4
    np.testing.assert_array_equal(f(a, out=a), want)


def test_out_inside_another_function():
    inner, out = kf.fuse(lambda x: x * 2), np.zeros(3)
    outer = kf.fuse(lambda x: inner(x, out=out) + 1)
    with pytest.raises(TypeError, match="out= and stream= cannot be given inside a traced function"):
        outer(X)


def test_a_list_that_shrinks_while_it_is_read():
    class Shrinks:
        shape, dtype = (3,), np.dtype(float)

        def __dlpack_device__(self):
            return X.__dlpack_device__()

        def __dlpack__(self, **options):
            del arrays[1:]
            return X.__dlpack__(**options)

    f = kf.fuse(lambda xs: xs[0] * 2)
    arrays = [Shrinks(), X, X, X]
    np.testing.assert_array_equal(np.asarray(f(arrays)), X * 2)


def test_errors_of_a_metaclass_are_raised():
    """A class that cannot say what it has is no class without attributes."""

    class Failing(type):
        def __getattr__(cls, name):
            raise RuntimeError(f"no answer about {name}")

    class Argument(metaclass=Failing):
        pass

    with pytest.raises(RuntimeError, match="no answer about __kfusion"):
        kf.fuse(lambda x, a: x + 1)(np.ones(3), Argument())
