"""How a call of `kf.fuse` reaches its kernels: the ways of calling, what tells calls apart, what is kept of a call."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kfusion as kf
from sweeps import sweep
from tracing import counting

pytestmark = pytest.mark.native
X = np.arange(3.0)
SCALE, OTHER, helper, TOGGLE = 1.0, 1.0, None, True


def affine(x, scale=2.0, *, shift=1.0):
    return x * scale + shift


def expected(x, scale=2.0, shift=1.0):
    return np.asarray(x) * scale + shift


# ---- ways of calling ----


def test_every_way_of_calling(rng):
    f, x = kf.fuse(affine), rng.standard_normal((3, 5))
    keyword = "".join(["sh", "ift"])  # another object than the name in the code
    out = np.full_like(x, np.nan)
    for got, want in (
        (f(x), expected(x)),
        (f(x, 3.0), expected(x, 3.0)),
        (f(x=x), expected(x)),
        (f(shift=4.0, x=x), expected(x, shift=4.0)),
        (f(*(x, 3.0), **{keyword: 5.0}), expected(x, 3.0, 5.0)),
        (f.__call__(x, shift=0.5), expected(x, shift=0.5)),
        (functools.partial(f, x)(shift=2.5), expected(x, shift=2.5)),
        (next(map(f, [x])), expected(x)),
        (f(x, out=None, stream=None), expected(x)),
        (f(x, **{"".join(["o", "ut"]): out}), expected(x)),
    ):
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(out, expected(x))
    for args in ((), (1, 2, 3, 4)):
        with pytest.raises(TypeError, match="argument"):
            f(*args)


def test_a_subclass_may_wrap_the_call(rng):
    class Counting(kf.FusedFunction):
        calls = 0

        def __call__(self, *args, **kwargs):
            self.calls += 1
            return super().__call__(*args, **kwargs)

    f, x = Counting(affine, {}), rng.standard_normal(4)
    for _ in range(3):
        np.testing.assert_array_equal(f(x, shift=3.0), expected(x, shift=3.0))
    assert f.calls == 3


def test_arguments_of_very_many_types(rng):
    """More than the table of types finds without a lock."""
    f, x = kf.fuse(lambda x, other: x * other.scale), rng.standard_normal(3)
    for scale in range(200):
        other = type(f"Other{scale}", (), {"scale": float(scale)})()
        for _ in range(2):
            np.testing.assert_array_equal(f(x, other), x * scale)


# ---- what tells calls apart ----


def variants(rng):
    """Arrays that differ from the one before in one thing each."""
    x = rng.standard_normal((4, 6))
    square = rng.standard_normal((4, 4))
    many = rng.standard_normal((1, 2) * 15)
    layouts = [x, np.asfortranarray(x), np.repeat(x, 2, 0)[::2], np.repeat(x, 2, 1)[:, ::2], x[:, ::-1]]
    extents = [x[:3], x[:, :5], square, square.T, x[0], x[:0], x[None], x[:1], np.broadcast_to(x[:1], (4, 6))]
    return [x, x.astype(np.float32), *layouts, *extents, np.asfortranarray(x).T, x.astype(np.int64), many, many.T]


def test_calls_that_take_turns(rng):
    arrays, f = variants(rng), kf.fuse(affine)
    for i in [*range(len(arrays)), *rng.integers(0, len(arrays), 100)]:
        got, want = f(arrays[i]), expected(arrays[i])
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


class Model:
    def __init__(self, scale):
        self.scale = scale


def test_what_lies_at_the_same_address():
    """What was freed is not taken for what lies there now."""
    f, g = kf.fuse(affine), kf.fuse(lambda x, model: x * model.scale)
    for i in range(50):
        for shape in ((8,), (2, 4), (4, 2)):
            np.testing.assert_array_equal(f(np.full(shape, float(i))), np.full(shape, 2.0 * i + 1))
        np.testing.assert_array_equal(g(X, Model(float(i))), X * i)


def test_values_that_differ():
    """Each function by each of the values, one after the other."""

    def check(function, *values):
        fused = kf.fuse(function)
        for value in values:
            np.testing.assert_array_equal(fused(X + 1, value), function(X + 1, value))

    dicts = {0.5: 2.0}, {7.0: 2.0}, {0.5: 3.0}, {(1, 2.0)[1]: 1}, {-0.0: 1.0}, {0.0: 1.0}
    sweep(
        check,
        [
            (lambda x, d: x * next(iter(d)) + next(iter(d.values())), *dicts),
            (lambda x, r: x * r.stop, range(0, 3, 2), range(0, 4, 2), slice(0, 5), slice(0, 3)),
            (lambda x, a: x * 2.0 if a > 1.0 else x * a, 0.5, 2.0, 0.25, 0.5, 3.0, 2.0),
        ],
    )


def by_scale(x):
    return x * SCALE


def by_other(x):
    return x + OTHER


def test_names_whose_values_are_equal(monkeypatch):
    """A value of another name makes another call."""
    f = kf.fuse(lambda x: helper(x))
    changes = ("helper", by_scale, X), ("helper", by_other, X + 1), ("SCALE", 3.0, X + 1), ("helper", by_scale, 3 * X)
    for name, value, want in changes:
        monkeypatch.setitem(globals(), name, value)
        np.testing.assert_array_equal(f(X), want)


class Doing:
    """An array that does something when it is read."""

    shape, dtype = (3,), np.dtype(float)

    def __init__(self, does):
        self.does = does

    def __dlpack_device__(self):
        return X.__dlpack_device__()

    def __dlpack__(self, **options):
        self.does()
        return X.__dlpack__(**options)


def test_a_name_that_is_rebound_while_arguments_are_read():
    """The call goes by one value of the name, and keeps nothing that was made with another."""

    def toggle():
        global TOGGLE
        TOGGLE = not TOGGLE

    global TOGGLE
    f = kf.fuse(lambda x: x * 2 if TOGGLE else x * 100)
    for _ in range(4):
        f(Doing(toggle))
    for TOGGLE in (True, False, True):
        np.testing.assert_array_equal(f(X), X * (2 if TOGGLE else 100))


def test_a_list_that_shrinks_while_it_is_read():
    arrays = [Doing(lambda: arrays.__delitem__(slice(1, None))), X, X, X]
    np.testing.assert_array_equal(np.asarray(kf.fuse(lambda xs: xs[0] * 2)(arrays)), X * 2)


def test_out_over_an_argument_after_an_array_changed_its_shape():
    holder = Model(np.full((1, 5), 1000.0))
    f = kf.fuse(lambda x: x[::-1] + holder.scale)
    a = np.arange(5.0)
    np.testing.assert_array_equal(f(a), a[None, ::-1] + 1000)
    holder.scale.shape = (5,)
    holder.scale[:] = 4
    want = a[::-1] + 4
    np.testing.assert_array_equal(f(a, out=a), want)


def test_errors_of_a_metaclass_are_raised():
    """A class that cannot say what it has is no class without attributes."""

    class Failing(type):
        def __getattr__(cls, name):
            raise RuntimeError(f"no answer about {name}")

    class Argument(metaclass=Failing):
        pass

    with pytest.raises(RuntimeError, match="no answer about __kfusion"):
        kf.fuse(lambda x, a: x + 1)(np.ones(3), Argument())


# ---- what is kept, and when a function is traced again ----


def test_a_signature_is_traced_once(rng):
    f = counting(lambda x, n=2: x * n)
    x = rng.standard_normal(8)
    first = (x[:4],), (x[4:],), (x[:4].copy(),)
    others = (x[:5],), (x[:4].astype(np.float32),), (x[::2],), (x[:4], 3), (x[:4], True)  # equal to 1, but no integer
    for calls, traces in ((first, 1), (others, 6), (others, 6)):
        for given in calls:
            f(*given)
        assert len(f.count) == traces
    for _ in range(3):
        f.clear()
        assert f._cached() == 0
        np.testing.assert_array_equal(f(x, 3), x * 3)


@pytest.mark.parametrize("f", [kf.fuse(lambda x: x * 2 + 1), kf.fused_relu_layernorm], ids=["fuse", "own"])
def test_arguments_are_not_kept(f):
    """Not even until Python looks for cycles: they may be all that a GPU holds."""
    torch = pytest.importorskip("torch")
    gc.disable()
    try:
        for _ in range(2):
            x = torch.ones(3, 4)
            alive = weakref.ref(x)
            f(x)
            del x
            assert alive() is None
    finally:
        gc.enable()


def test_floats_are_read_when_the_kernels_run(rng):
    """Rounded to what they meet; NumPy's keep their dtype."""
    f = counting(lambda x, a, b=0.5: x * a + b)
    x = rng.standard_normal(5)
    with np.errstate(invalid="ignore"):
        for a in (0.1, 0.2, float("nan"), float("inf"), -0.0):
            np.testing.assert_array_equal(f(x, a), x * a + 0.5)
            np.testing.assert_array_equal(f(x, a, 2 * a), x * a + 2 * a)
    assert len(f.count) == 2
    for dtype in ("float16", "float32", "float64"):
        f, x = counting(lambda x, a: x + a), rng.standard_normal(5).astype(dtype)
        for a in (0.1, 1 / 3, 1e-9):
            np.testing.assert_array_equal(f(x, a), x + np.dtype(dtype).type(a))
        assert len(f.count) == 1
    f, x = counting(lambda x, a: x + a), rng.standard_normal(5).astype(np.float32)
    for kind in (float, np.float64, np.float32):
        for a in (kind(0.1), kind(0.7)):
            assert f(x, a).dtype == (x + a).dtype
            np.testing.assert_array_equal(f(x, a), x + a)
    assert len(f.count) == 3


LOOKS = [
    lambda x, a: {f"{a:.1f}": x + 1}[f"{a:.1f}"],
    lambda x, a: x * (2 if isinstance(a, float) else 3),
    lambda x, a: x * np.full(5, a),
    lambda x, a: (x + 1, a),
    lambda x, a: x * {0.5: 1, 2.0: 7, -1.0: 5}[a],
    lambda x, a: x * sorted([a, 0.7])[0],
]


def test_floats_that_the_function_looks_at(rng):
    def check(body):
        f = counting(body)
        for a in (0.5, 2.0, -1.0, 0.5, 2.0):
            np.testing.assert_equal(f(x, a), body(x, a))
        assert len(f.count) <= 2 * 3  # a trace may fail on what stands for a float first

    x = rng.uniform(1, 2, 5)
    sweep(check, [(body,) for body in LOOKS])


def test_a_function_forgets_what_it_has_not_used():
    f = counting(lambda x, n: x + n)
    x = np.ones(2)
    for n in range(1100):
        assert f(x, n)[0] == 1 + n
    assert f._cached() <= 512
    traced = len(f.count)
    f(x, 1099)
    assert len(f.count) == traced


def test_first_calls_of_kernels_on_disk_import_nothing_heavy(tmp_path):
    """numpy.ma alone takes longer than a kernel from the cache."""
    code = (
        "import sys, numpy as np, kfusion as kf\n"
        "before = set(sys.modules)\n"
        "kf.fuse(lambda x: kf.relu(x * 2.0))(np.ones(3))\n"
        "kf.device('H200')\n"
        "print(*(set(sys.modules) - before))"
    )
    environment = {**os.environ, "KFUSION_CACHE_DIR": str(tmp_path)}
    for _ in range(2):  # the first one compiles
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not {"numpy.ma", "importlib.resources", "llvmlite"} & set(done.stdout.split())


def test_threads_that_call_with_different_arrays(rng):
    @kf.fuse
    def f(x, scale):
        return kf.softmax(x * scale), x.sum(0)

    xs = [rng.standard_normal(s) for s in ((3,), (4, 5), (5, 4), (2, 2, 2), *((50, n) for n in range(40, 44)))]
    wanted = [(kf.softmax(x * 0.5), x.sum(0)) for x in xs]
    ready = threading.Barrier(8)

    def work(first):
        ready.wait(60)
        for k in range(200):
            i = (first + k) % 8 if k % 2 else first
            for got, want in zip(f(xs[i], 0.5), wanted[i], strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


# ---- CUDA ----


@pytest.mark.cuda
def test_streams_that_take_turns(rng):
    torch = pytest.importorskip("torch")
    f, x = kf.fuse(affine), torch.randn(1 << 18, device="cuda")
    out = torch.empty_like(x)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for i in range(30):
        stream = streams[i % 3]
        with torch.cuda.stream(streams[(i + 1) % 3]):  # the current one, which is not the one that is named
            y = f(x, shift=float(i), stream=stream)
            f(x, shift=float(i), out=out, stream=stream)
        stream.synchronize()
        torch.cuda.synchronize()
        for got in (y, out):
            torch.testing.assert_close(got, x * 2.0 + float(i))


@pytest.mark.skipif(kf._core.cuda_device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.cuda
def test_devices_that_take_turns(rng):
    torch = pytest.importorskip("torch")
    f = kf.fuse(affine)
    for i in range(20):
        with torch.cuda.device(i // 2 % 2):  # the current device, which a call leaves as it is
            x = torch.randn(1000, device=f"cuda:{i % 2}")
            torch.testing.assert_close(f(x), x * 2.0 + 1.0)
            assert torch.cuda.current_device() == i // 2 % 2


@pytest.mark.cuda
def test_a_thread_that_never_used_cuda(rng):
    torch = pytest.importorskip("torch")
    f, x = kf.fuse(affine), torch.randn(1000, device="cuda")
    f(x)
    with ThreadPoolExecutor(1) as pool:
        torch.testing.assert_close(pool.submit(f, x).result(), x * 2.0 + 1.0)
