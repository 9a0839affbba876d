"""What is refused, with a sentence that names the function and the argument, before anything runs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import kfusion as kf
from kinds import OnlyDlpack

pytestmark = pytest.mark.native

VERSIONS = [kf.fused_relu_layernorm, kf.unfused_relu_layernorm]
X = np.ones((4, 8), np.float32)


def refuses(error, message, f, *args, **keywords):
    with pytest.raises(error, match=rf"kfusion\.(relu_layernorm|relu|trace): .*{message}"):
        f(*args, **keywords)


@pytest.mark.parametrize("f", VERSIONS)
@pytest.mark.parametrize(
    ("error", "message", "args", "keywords"),
    [
        (TypeError, r"x must be an array, got list; convert it with numpy.asarray\(x\)", ([1.0, 2.0],), {}),
        (TypeError, "at least one argument must be an array", (1.0,), {}),
        (ValueError, "axis -1 is out of bounds for array of dimension 0", (np.float32(1),), {}),
        (TypeError, "at least one argument must be an array", (None,), {}),
        (TypeError, r"MaskedArray; fill it first: x.filled\(value\)", (np.ma.masked_array(X, X > 0),), {}),
        (TypeError, "matrix.*numpy.asarray", (X.view(np.matrix),), {}),
        (TypeError, "x must be floats, got int64", (np.ones((2, 2), np.int64),), {}),
        (TypeError, "x must be .*got complex64", (np.ones(2, np.complex64),), {}),
        (TypeError, "x must be .*got bool", (np.ones(2, bool),), {}),
        (TypeError, "x must be .*got longdouble|float128", (np.ones(2, np.longdouble),), {}),
        (TypeError, "x must be .*got >f4.*byte order", (X.astype(">f4"),), {}),
        (ValueError, "axis -1 is out of bounds for array of dimension 0", (np.array(1.0),), {}),
        (ValueError, r"weight must have shape \(8,\), got \(4,\)", (X, X[0, :4]), {}),
        (ValueError, r"weight must have shape \(8,\), got \(1, 8\)", (X, X[:1]), {}),
        (ValueError, r"bias must have shape \(8,\), got \(\)", (X, None, np.array(1, np.float32)), {}),
        (TypeError, "weight must be float32, got float64", (X, X[0].astype(np.float64)), {}),
        (
            TypeError,
            "bias must be float64 or float32, got float16",
            (X.astype(float), None, X[0].astype(np.float16)),
            {},
        ),
        (TypeError, "weight of kfusion.relu_layernorm must be an array or a number, got list", (X, [1.0] * 8), {}),
        (ValueError, "eps must be finite and >= 0, got -1", (X,), {"eps": -1}),
        (ValueError, "eps must be finite and >= 0, got nan", (X,), {"eps": float("nan")}),
        (ValueError, "eps must be finite and >= 0, got inf", (X,), {"eps": float("inf")}),
        (TypeError, "eps must be a number, got str", (X,), {"eps": "1e-5"}),
        (TypeError, "eps must be a number, got NoneType", (X,), {"eps": None}),
        (ValueError, r"out must have shape \(4, 8\), got \(8, 4\)", (X,), {"out": np.empty((8, 4), np.float32)}),
        (TypeError, "out must be float32, got float64", (X,), {"out": np.empty((4, 8))}),
        (ValueError, "out must not overlap itself", (X,), {"out": np.lib.stride_tricks.as_strided(X, (4, 8), (0, 4))}),
        (TypeError, "out must be a NumPy array", (X,), {"out": [1]}),
        (ValueError, "stream applies to CUDA arrays", (X,), {"stream": 0}),
        (TypeError, "stream must be None, an integer", (X,), {"stream": "0"}),
        (TypeError, "stream must be None, an integer", (X,), {"stream": True}),
        (ValueError, "stream must be a stream handle", (X,), {"stream": -1}),
    ],
)
def test_refusals(f, error, message, args, keywords):
    refuses(error, message, f, *args, **keywords)


@pytest.mark.parametrize("f", VERSIONS)
def test_out_that_overlaps(f):
    a = np.arange(48, dtype=np.float32).reshape(6, 8)
    before = a.copy()
    for x, weight, bias, out in (
        (a[:4], None, None, a[1:5]),
        (a[:4], None, None, a[3::-1]),
        (a[:2], a[5], None, a[4:6]),
        (a[:2].copy(), None, a[5], a[4:6]),
    ):
        a[...] = before
        want = f(x, weight, bias)
        assert f(x, weight, bias, out=out) is out
        assert np.array_equal(out, want)
    a[...] = before
    read_only = np.ones_like(X)
    read_only.setflags(write=False)
    refuses(ValueError, "out must be writable, got a read-only array", f, X, out=read_only)
    assert np.array_equal(a, before)
    assert (read_only == 1).all()


def test_calls_python_refuses():
    with pytest.raises(TypeError):
        kf.fused_relu_layernorm()
    with pytest.raises(TypeError):
        kf.fused_relu_layernorm(X, None, None, 1e-5)  # eps is keyword-only
    with pytest.raises(TypeError):
        kf.fused_relu_layernorm(X, epsilon=1e-5)


def test_no_memory_for_the_result():
    with pytest.raises(MemoryError):
        kf.fused_relu_layernorm(np.broadcast_to(np.float32(1), (2**40, 2**10)))


def test_memmap_is_an_array(tmp_path):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 5))
    x[...] = np.arange(15).reshape(3, 5)
    y = kf.fused_relu_layernorm(x)
    assert type(y) is np.ndarray
    assert np.array_equal(y, kf.fused_relu_layernorm(np.asarray(x)))


class TestTorch:
    @pytest.fixture(autouse=True)
    def torch(self):
        self.torch = pytest.importorskip("torch")
        self.x = self.torch.randn(4, 8)

    def test_gradients(self):
        x = self.x.clone().requires_grad_()
        weight = self.torch.nn.Parameter(self.torch.ones(8))
        assert kf.fused_relu_layernorm(x).requires_grad
        assert kf.fused_relu_layernorm(self.x, weight).requires_grad
        with self.torch.no_grad():
            y = kf.fused_relu_layernorm(x, self.torch.nn.Parameter(self.torch.ones(8)))
        assert self.torch.equal(y, kf.fused_relu_layernorm(x.detach()))
        assert not y.requires_grad

    def test_autograd_hears_of_a_write(self):
        a, w = self.torch.ones(4, 8), self.torch.ones(4, 8, requires_grad=True)
        loss = (a * w).sum()
        kf.fused_relu_layernorm(self.x, out=a)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        with self.torch.inference_mode():
            kf.fused_relu_layernorm(self.x, out=self.torch.empty(4, 8))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
    def test_tangents(self):
        forward_ad = self.torch.autograd.forward_ad
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(self.x, self.torch.ones_like(self.x))
            with pytest.raises(RuntimeError, match=r"x carries a tangent, and .* no derivatives in forward mode"):
                kf.fused_relu_layernorm(dual)
            kf.fused_relu_layernorm(self.x)

    @pytest.mark.slow
    def test_without_the_c_exchange_api(self):
        """Torch before 2.10 makes these checks, slower."""
        code = """
import numpy as np, pytest, torch, kfusion as kf
del torch.Tensor.__dlpack_c_exchange_api__
x = torch.randn(4, 8)
want = torch.nn.functional.layer_norm(x.relu(), (8,))
y = kf.fused_relu_layernorm(x)
assert type(y) is torch.Tensor and torch.allclose(y, want, atol=1e-5)
with pytest.raises(TypeError, match="lazily negated"):
    kf.fused_relu_layernorm(torch._neg_view(x))
with pytest.raises(BufferError, match="require"):
    kf.fused_relu_layernorm(x, torch.nn.Parameter(torch.ones(8)))
out = torch.empty(4, 8)
assert kf.fused_relu_layernorm(x, out=out) is out and torch.allclose(out, want, atol=1e-5)
"""
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_lazy_negation(self):
        imaginary = self.torch.randn(4, 8, dtype=self.torch.complex64).conj().imag
        assert imaginary.is_neg()
        refuses(TypeError, r"lazily negated view.*resolve_neg", kf.fused_relu_layernorm, imaginary)
        kf.fused_relu_layernorm(imaginary.resolve_neg())

    def test_what_has_no_plain_memory(self):
        for x in (self.x.to("meta"), self.x.to_sparse()):
            refuses(TypeError, "x must", kf.fused_relu_layernorm, x)
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = self.torch.empty(4, 8)
        refuses(TypeError, "FakeTensor; torch.Tensor subclasses", kf.fused_relu_layernorm, fake)

        class Sub(self.torch.Tensor):
            pass

        refuses(TypeError, "Sub; torch.Tensor subclasses", kf.fused_relu_layernorm, self.x.as_subclass(Sub))
        self.torch.vmap(lambda t: refuses(TypeError, "x must", kf.fused_relu_layernorm, t) or t)(self.x)

    def test_dtypes_and_kinds(self):
        refuses(TypeError, "x must be .*got int64", kf.fused_relu_layernorm, self.torch.arange(4))
        refuses(
            TypeError, "x must be .*got complex64", kf.fused_relu_layernorm, self.torch.ones(4, dtype=self.torch.cfloat)
        )
        refuses(
            TypeError,
            "weight must be an array of torch as x is, got one of numpy",
            kf.fused_relu_layernorm,
            self.x,
            X[0],
        )
        refuses(
            TypeError,
            r"out must be the same kind of array as the inputs \(NumPy\), got torch",
            kf.fused_relu_layernorm,
            X,
            out=self.x,
        )

    def test_layouts(self):
        for x in (self.x.T, self.x[::2], self.x[:, ::3], self.x[1:, 1:], self.x[:1].expand(5, 8),
                  self.torch.randn(2, 3, 4).permute(2, 0, 1)):  # fmt: skip
            y = kf.fused_relu_layernorm(x)
            want = self.torch.nn.functional.layer_norm(x.double().relu(), x.shape[-1:]).float()
            self.torch.testing.assert_close(y, want)
        assert kf.fused_relu_layernorm(self.x.T).stride() == (1, 8)

    def test_out(self):
        out = self.torch.full((4, 8), float("nan"))
        assert kf.fused_relu_layernorm(self.x, out=out) is out
        assert out.isfinite().all()


class TestJax:
    @pytest.fixture(autouse=True)
    def jax(self):
        self.jax = pytest.importorskip("jax")
        self.x = self.jax.numpy.ones((4, 8), "float32")

    def test_out_is_immutable(self):
        refuses(TypeError, "out must be writable, and JAX arrays are not", kf.fused_relu_layernorm, self.x, out=self.x)

    def test_tracers(self):
        x = self.jax.random.normal(self.jax.random.key(0), (4, 8), "float32")
        with self.jax.default_device(self.jax.devices("cpu")[0]):
            inside = self.jax.jit(kf.fused_relu_layernorm)(x)
        np.testing.assert_allclose(inside, kf.fused_relu_layernorm(x), rtol=1e-5, atol=1e-6)

    def test_results_outlive_the_pool(self):
        """JAX keeps our memory without a copy; recycling it would change an immutable array."""
        x = self.jax.random.normal(self.jax.random.key(0), (2048, 1024), "float32")
        y = kf.fused_relu_layernorm(x)
        before = np.array(y)
        for _ in range(5):
            kf.fused_relu_layernorm(np.random.default_rng(0).standard_normal((2048, 1024), np.float32))
            kf.empty_cache()
        assert np.array_equal(before, np.asarray(y))


class TestDlpackProducers:
    def test_before_version_1(self):
        class Old:
            def __init__(self, a):
                self.a = a

            def __dlpack__(self, stream=None):
                return self.a.__dlpack__()

            def __dlpack_device__(self):
                return (1, 0)

        assert np.array_equal(kf.fused_relu_layernorm(Old(X)), kf.fused_relu_layernorm(X))

    def test_read_only_arrays_come_and_are_not_written(self):
        x = X.copy()
        x.setflags(write=False)
        kf.fused_relu_layernorm(OnlyDlpack(x))
        refuses(ValueError, "out must be writable", kf.fused_relu_layernorm, OnlyDlpack(X), out=OnlyDlpack(x))

    def test_a_type_error_of_the_producers_own_is_passed_on(self):
        class Broken:
            def __dlpack__(self, **keywords):
                raise TypeError("broken inside")

            def __dlpack_device__(self):
                return (1, 0)

        with pytest.raises(TypeError, match="broken inside"):
            kf.fused_relu_layernorm(Broken())

    def test_an_out_whose_export_owns_the_memory(self):
        class Moving:
            """Gives its memory away with the last export, which alone keeps it alive."""

            def __init__(self, array, exports):
                self.array, self.exports = array, exports

            def __dlpack__(self, **keywords):
                array, self.exports = self.array, self.exports - 1
                if self.exports == 0:
                    self.array = None
                return array.__dlpack__(**keywords)

            def __dlpack_device__(self):
                return (1, 0)

        kf.fused_relu_layernorm.clear()
        for first in [True] + [False] * 19:  # unmapped memory crashes; the pool's would not
            x, out = np.ones((2048, 1024), np.float32), np.empty((2048, 1024), np.float32)
            moving = Moving(out, 1)
            del out
            exports = 2 if first else 1  # a first call looks at its inputs while it traces
            assert kf.fused_relu_layernorm(Moving(x, exports), out=moving) is moving

    def test_sizes_beyond_64_bits(self):
        """A broadcast array costs its producer nothing, however large it claims to be."""
        torch = pytest.importorskip("torch")
        with pytest.raises(ValueError, match=r"more than 2\^63 - 1 bytes"):
            kf.fused_relu_layernorm(torch.ones(1, dtype=torch.float64).expand(2**61, 2))
        assert kf.fused_relu_layernorm(torch.ones(0, 2**31).expand(0, 2**31)).shape == (0, 2**31)

    def test_first_calls_from_many_threads(self):
        import concurrent.futures
        import threading
        import time

        barrier = threading.Barrier(8)

        class Slow(OnlyDlpack):
            @property
            def __array_namespace__(self):
                time.sleep(0.05)
                raise AttributeError

        def call(_):
            barrier.wait()
            return kf.fused_relu_layernorm(Slow(X), Slow(X[0]))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(call, range(8)))
        assert all(np.array_equal(r, results[0]) for r in results)

    def test_nonsense(self):
        class NoCapsule:
            def __dlpack__(self, **keywords):
                return 1

            def __dlpack_device__(self):
                return (1, 0)

        refuses(TypeError, "returned no DLPack capsule", kf.fused_relu_layernorm, NoCapsule())

        class OtherDevice(NoCapsule):
            def __dlpack_device__(self):
                return (2, 99)

        with pytest.raises((kf.DeviceError, TypeError)):
            kf.fused_relu_layernorm(OtherDevice())

    def test_everything_is_let_go(self):
        import gc
        import weakref

        class Array(np.ndarray):
            pass

        base = np.ones((4, 8), np.float32)
        guard = base.view(Array)
        ref = weakref.ref(guard)
        x = OnlyDlpack(guard.view())
        for _ in range(3):
            kf.fused_relu_layernorm(x)
            with pytest.raises(ValueError, match="weight must have shape"):
                kf.fused_relu_layernorm(x, OnlyDlpack(np.ones(3, np.float32)))
        del x, guard
        gc.collect()
        assert ref() is None


def test_nothing_is_imported_that_the_caller_has_not_imported():
    code = """
import sys, numpy as np, kfusion as kf
kf.fused_relu_layernorm(np.ones((4, 4), np.float32)); kf.savings([])
try: kf.fused_relu_layernorm([1])
except TypeError: pass
bad = [m for m in ("torch", "jax", "cupy", "numba", "ml_dtypes", "matplotlib", "rich") if m in sys.modules]
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", code], check=True)
