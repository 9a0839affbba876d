"""How a call reaches its kernels: the ways of calling, and what is remembered of the call before."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import kfusion as kf

HAVE_GPU = kf._core.cuda_device_count() > 0


def affine(x, scale=2.0, *, shift=1.0):
    return x * scale + shift


def expected(x, scale=2.0, shift=1.0):
    return np.asarray(x) * scale + shift


# ---- ways of calling ----


def test_every_way_of_calling(rng):
    f, x = kf.fuse(affine), rng.standard_normal((3, 5))
    keyword = "".join(["sh", "ift"])  # another object than the name in the code
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
    ):
        np.testing.assert_array_equal(got, want)


def test_out_by_a_name_that_was_put_together(rng):
    f, x = kf.fuse(affine), rng.standard_normal((3, 5))
    out = np.full_like(x, np.nan)
    assert f(x, **{"".join(["o", "ut"]): out}) is out
    np.testing.assert_array_equal(out, expected(x))


def test_out_is_an_argument_like_another_where_it_is_no_keyword():
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        kf.relu(np.ones(3), out=np.ones(3))


@pytest.mark.parametrize("args", [(), (1, 2, 3, 4)])
def test_wrong_numbers_of_arguments(args):
    with pytest.raises(TypeError, match="argument"):
        kf.fuse(affine)(*args)


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


def test_what_was_never_made_cannot_be_called():
    made = kf.FusedFunction.__new__(kf.FusedFunction)
    with pytest.raises(TypeError, match="__init__ was not called"):
        made(np.ones(3))


def test_arguments_of_very_many_types(rng):
    """More than the table of types finds without a lock."""
    f, x = kf.fuse(lambda x, other: x * other.scale), rng.standard_normal(3)
    for scale in range(200):
        other = type(f"Other{scale}", (), {"scale": float(scale)})()
        for _ in range(2):
            np.testing.assert_array_equal(f(x, other), x * scale)


# ---- the call before ----


def variants(rng):
    """Arrays that differ from the one before in one thing each."""
    x = rng.standard_normal((4, 6))
    square = rng.standard_normal((4, 4))
    return [
        x,
        x.astype(np.float32),  # dtype
        x,
        np.asfortranarray(x),  # strides
        np.repeat(x, 2, axis=0)[::2],
        x[:, ::-1],
        x[:3],  # extents
        x[:, :5],
        square,
        square.T,
        x[0],  # axes
        x[:0],
        x[None],
        x[:1],
        np.broadcast_to(x[:1], (4, 6)),
        np.asfortranarray(x).T,
        x.astype(np.int64),
    ]


def test_calls_that_take_turns(rng):
    arrays, f = variants(rng), kf.fuse(affine)
    order = [*range(len(arrays)), *rng.integers(0, len(arrays), 100)]
    for i in order:
        got, want = f(arrays[i]), expected(arrays[i])
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_fresh_arrays_at_the_same_address():
    """What was freed is not taken for what lies there now."""
    f = kf.fuse(affine)
    for i in range(50):
        for shape in ((8,), (2, 4), (4, 2)):
            np.testing.assert_array_equal(f(np.full(shape, float(i))), np.full(shape, 2.0 * i + 1))


def test_objects_at_the_same_address():
    class Model:
        def __init__(self, scale):
            self.scale = scale

    f, x = kf.fuse(lambda x, model: x * model.scale), np.ones(3)
    for i in range(50):
        np.testing.assert_array_equal(f(x, Model(float(i))), np.full(3, float(i)))


def test_floats_that_are_looked_at_and_others(rng):
    f = kf.fuse(lambda x, limit: x * 2.0 if limit > 1.0 else x * limit)
    x = rng.standard_normal(5)
    for limit in (0.5, 2.0, 0.25, 0.5, 3.0, 2.0):
        np.testing.assert_array_equal(f(x, limit), x * (2.0 if limit > 1.0 else limit))


def test_clearing_between_calls(rng):
    f, x = kf.fuse(affine), rng.standard_normal(3)
    for _ in range(3):
        np.testing.assert_array_equal(f(x), expected(x))
        f.clear()
        assert f._cached() == 0


def test_more_signatures_than_are_kept():
    f = kf.fuse(lambda x, n: x + n)
    for n in [*range(700), 0, 699, 5]:
        np.testing.assert_array_equal(f(np.zeros(2), n), np.full(2, float(n)))


def test_threads_that_call_with_different_arrays(rng):
    f, wrong = kf.fuse(affine), []
    ready = threading.Barrier(4)

    def work(x):
        ready.wait()
        for _ in range(300):
            if not np.array_equal(f(x), expected(x)):
                wrong.append(x.shape)

    arrays = [rng.standard_normal(s) for s in ((3,), (4, 5), (5, 4), (2, 2, 2))]
    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_many_arrays_and_results(rng):
    """More than a call has room for on its stack."""
    arrays = [rng.standard_normal((3,)) for _ in range(40)]
    f = kf.fuse(lambda arrays: [x + float(i) for i, x in enumerate(arrays)])
    for _ in range(2):
        for i, (got, x) in enumerate(zip(f(arrays), arrays, strict=True)):
            np.testing.assert_array_equal(got, x + i)
    outs = [np.full(3, np.nan) for _ in arrays]
    f(arrays, out=outs)
    for i, (got, x) in enumerate(zip(outs, arrays, strict=True)):
        np.testing.assert_array_equal(got, x + i)


def test_arrays_of_many_axes(rng):
    x = rng.standard_normal((1, 2) * 15)
    for y in (x[..., 0:1], x.T, x):
        np.testing.assert_array_equal(kf.fuse(affine)(y.reshape(y.shape)), expected(y))


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


# ---- CUDA ----


@pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU")
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


@pytest.mark.skipif(not HAVE_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.cuda
def test_a_thread_that_never_used_cuda(rng):
    torch = pytest.importorskip("torch")
    f, x, results = kf.fuse(affine), torch.randn(1000, device="cuda"), []
    f(x)
    thread = threading.Thread(target=lambda: results.append(f(x)))
    thread.start()
    thread.join()
    torch.testing.assert_close(results[0], x * 2.0 + 1.0)
