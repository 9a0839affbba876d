"""What is refused, with a sentence that names the function and the argument, before anything runs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from capsules import Producer
from graph_runs import read_only
from kfusion import _core
from kinds import OnlyDlpack
from sweeps import refusals, sweep

pytestmark = pytest.mark.native

VERSIONS = [kf.fused_relu_layernorm, kf.unfused_relu_layernorm]
X = np.ones((4, 8), np.float32)
READ_ONLY = read_only(np.ones_like(X))


def refuses(error, message, f, *args, **keywords):
    with pytest.raises(error, match=rf"kfusion\.(relu_layernorm|relu|trace): .*{message}"):
        f(*args, **keywords)


def like(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


REFUSED = [
    (TypeError, r"x must be an array, got list; convert it with numpy.asarray\(x\)", ([1.0, 2.0],), {}),
    (TypeError, "at least one argument must be an array", (1.0,), {}),
    (TypeError, "at least one argument must be an array", (None,), {}),
    (ValueError, "axis -1 is out of bounds for array of dimension 0", (np.float32(1),), {}),
    (ValueError, "axis -1 is out of bounds for array of dimension 0", (np.array(1.0),), {}),
    (TypeError, r"MaskedArray; fill it first: x.filled\(value\)", (np.ma.masked_array(X, X > 0),), {}),
    (TypeError, "matrix.*numpy.asarray", (X.view(np.matrix),), {}),
    (TypeError, "x must be floats, got int64", (like(2, 2, dtype=np.int64),), {}),
    (TypeError, "x must be .*got complex64", (like(2, dtype=np.complex64),), {}),
    (TypeError, "x must be .*got bool", (like(2, dtype=bool),), {}),
    (TypeError, "x must be .*got longdouble|float128", (like(2, dtype=np.longdouble),), {}),
    (TypeError, "x must be .*got >f4.*byte order", (X.astype(">f4"),), {}),
    (ValueError, r"weight must have shape \(8,\), got \(4,\)", (X, X[0, :4]), {}),
    (ValueError, r"weight must have shape \(8,\), got \(1, 8\)", (X, X[:1]), {}),
    (ValueError, r"bias must have shape \(8,\), got \(\)", (X, None, like()), {}),
    (TypeError, "weight must be float32, got float64", (X, like(8, dtype=float)), {}),
    (TypeError, "bias must be float64 or float32, got float16", (X.astype(float), None, like(8, dtype="f2")), {}),
    (TypeError, "weight of kfusion.relu_layernorm must be an array or a number, got list", (X, [1.0] * 8), {}),
    *((ValueError, f"eps must be finite and >= 0, got {e}", (X,), {"eps": float(e)}) for e in ("-1", "nan", "inf")),
    (TypeError, "eps must be a number, got str", (X,), {"eps": "1e-5"}),
    (TypeError, "eps must be a number, got NoneType", (X,), {"eps": None}),
    (ValueError, r"out must have shape \(4, 8\), got \(8, 4\)", (X,), {"out": like(8, 4)}),
    (TypeError, "out must be float32, got float64", (X,), {"out": like(4, 8, dtype=float)}),
    (ValueError, "out must not overlap itself", (X,), {"out": np.lib.stride_tricks.as_strided(X, (4, 8), (0, 4))}),
    (ValueError, "out must be writable, got a read-only array", (X,), {"out": READ_ONLY}),
    (TypeError, "out must be a NumPy array", (X,), {"out": [1]}),
    (ValueError, "stream applies to CUDA arrays", (X,), {"stream": 0}),
    (TypeError, "stream must be None, an integer", (X,), {"stream": "0"}),
    (TypeError, "stream must be None, an integer", (X,), {"stream": True}),
    (ValueError, "stream must be a stream handle", (X,), {"stream": -1}),
    (TypeError, "", (X, None, None, 1e-5), {}),  # eps is keyword-only
]


@pytest.mark.parametrize("f", VERSIONS)
def test_refusals(f):
    sweep(lambda error, message, args, keywords: refuses(error, message, f, *args, **keywords), REFUSED)
    assert (READ_ONLY == 1).all()


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

    def test_refusals(self):
        torch, f = self.torch, kf.fused_relu_layernorm
        imaginary = torch.randn(4, 8, dtype=torch.complex64).conj().imag
        assert imaginary.is_neg()
        f(imaginary.resolve_neg())
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.empty(4, 8)
        other = self.x.as_subclass(type("Sub", (torch.Tensor,), {}))
        rows = [
            (r"lazily negated view.*resolve_neg", imaginary),
            ("x must", self.x.to("meta")),
            ("x must", self.x.to_sparse()),
            ("FakeTensor; torch.Tensor subclasses", fake),
            ("Sub; torch.Tensor subclasses", other),
            ("x must be .*got int64", torch.arange(4)),
            ("x must be .*got complex64", torch.ones(4, dtype=torch.cfloat)),
            ("weight must be an array of torch as x is, got one of numpy", self.x, X[0]),
        ]
        sweep(lambda message, *given: refuses(TypeError, message, f, *given), rows)
        torch.vmap(lambda t: refuses(TypeError, "x must", f, t) or t)(self.x)
        refuses(TypeError, r"out must be the same kind of array as the inputs \(NumPy\), got torch", f, X, out=self.x)


class TestJax:
    @pytest.fixture(autouse=True)
    def jax(self):
        self.jax = pytest.importorskip("jax")
        self.x = self.jax.numpy.ones((4, 8), "float32")

    def test_out_is_immutable(self):
        refuses(TypeError, "out must be writable, and JAX arrays are not", kf.fused_relu_layernorm, self.x, out=self.x)

    def test_results_outlive_the_pool(self):
        """JAX keeps our memory without a copy; recycling it would change an immutable array."""
        x = self.jax.random.normal(self.jax.random.key(0), (2048, 1024), "float32")
        y = kf.fused_relu_layernorm(x)
        before = np.array(y)
        for _ in range(5):
            kf.fused_relu_layernorm(np.random.default_rng(0).standard_normal((2048, 1024), np.float32))
            kf.empty_cache()
        assert np.array_equal(before, np.asarray(y))


class Exports:
    """Memory of the CPU."""

    def __init__(self, array=None):
        self.array = array

    def __dlpack_device__(self):
        return (1, 0)


class TestDlpackProducers:
    def test_before_version_1(self):
        class Old(Exports):
            def __dlpack__(self, stream=None):
                return self.array.__dlpack__()

        assert np.array_equal(kf.fused_relu_layernorm(Old(X)), kf.fused_relu_layernorm(X))

    def test_read_only_arrays_come_and_are_not_written(self):
        x = X.copy()
        x.setflags(write=False)
        kf.fused_relu_layernorm(OnlyDlpack(x))
        refuses(ValueError, "out must be writable", kf.fused_relu_layernorm, OnlyDlpack(X), out=OnlyDlpack(x))

    def test_a_type_error_of_the_producers_own_is_passed_on(self):
        class Broken(Exports):
            def __dlpack__(self, **keywords):
                raise TypeError("broken inside")

        with pytest.raises(TypeError, match="broken inside"):
            kf.fused_relu_layernorm(Broken())

    def test_an_out_whose_export_owns_the_memory(self):
        class Moving(Exports):
            """Gives its memory away with the last export, which alone keeps it alive."""

            def __init__(self, array, exports):
                self.array, self.exports = array, exports

            def __dlpack__(self, **keywords):
                array, self.exports = self.array, self.exports - 1
                if self.exports == 0:
                    self.array = None
                return array.__dlpack__(**keywords)

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

    def test_nonsense(self):
        class NoCapsule(Exports):
            def __dlpack__(self, **keywords):
                return 1

        refuses(TypeError, "returned no DLPack capsule", kf.fused_relu_layernorm, NoCapsule())
        with pytest.raises((kf.DeviceError, TypeError)):
            kf.fused_relu_layernorm(Producer(X, {"device": (2, 99)}))

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


# ---- functions in C++: no lists of C++ types, as pybind11's ----

WRONG: dict[str, Callable[[], Any]] = {
    "kfusion.savings: missing a required argument: 'ops'": lambda: kf.savings(),
    "kfusion.savings: too many positional arguments": lambda: kf.savings([], 2, 3),
    "kfusion.savings: got an unexpected keyword argument 'bytes'": lambda: kf.savings([], bytes=2),
    "kfusion.set_num_threads: n must be an integer, got str": lambda: kf.set_num_threads("4"),
    "kfusion.set_num_threads: n must be an integer, got float": lambda: kf.set_num_threads(2.5),
    "kfusion.set_num_threads: n is out of range: 1099511627776": lambda: kf.set_num_threads(2**40),
    "kfusion.get_num_threads: too many positional arguments": lambda: kf.get_num_threads(1),
    "kfusion.empty_cache: too many positional arguments": lambda: kf.empty_cache(1),
    "kfusion.to_device: device must be an integer, got str": lambda: kf.to_device(X, "cuda:0"),
    "kfusion.trace: relu_layernorm: missing a required argument: 'x'": lambda: kf.fused_relu_layernorm(),
    "kfusion.trace: relu_layernorm: too many positional arguments": lambda: kf.fused_relu_layernorm(X, X, X, 1e-5),
    "kfusion.trace: relu_layernorm: got an unexpected keyword argument 'esp'": lambda: kf.unfused_relu_layernorm(
        X, esp=1
    ),
    "kfusion.Graph: too many positional arguments": lambda: kf.Graph(1),
    "kfusion.Graph.node: id must be an integer, got str": lambda: kf.Graph().node("a"),
    "kfusion.Graph.input: missing a required argument: 'shape'": lambda: kf.Graph().input("x"),
    "kfusion.Graph.map: op must be a str, got int": lambda: kf.Graph().map(1, []),
    "kfusion.Graph.set_outputs: outputs must be a sequence, got int": lambda: kf.Graph().set_outputs(1),
}


def test_what_is_wrong():
    refusals((call, TypeError, f"^{re.escape(message)}$") for message, call in WRONG.items())


def functions() -> list[Callable[..., Any]]:
    modules = (_core, _core.testing)
    found = [f for module in modules for name in dir(module) if inspect.isbuiltin(f := getattr(module, name))]
    for cls in (kf.Graph, kf.DeviceArray):
        found += [getattr(cls, name) for name, m in vars(cls).items() if callable(m) and not name.startswith("_")]
    return found


def test_no_function_lists_types():
    def check(f):
        for arguments in [(object(),) * 9, (), (object(),)]:
            with pytest.raises(Exception) as caught:  # noqa: PT011
                f(*arguments, no_such_argument=1)
            assert "incompatible" not in str(caught.value)

    sweep(check, [(f,) for f in functions()])
