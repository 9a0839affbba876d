"""What only a GPU shows: streams, graphs, our own array, sizes beyond 32 bits. Needs torch with CUDA."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import multiprocessing

import numpy as np
import pytest

import kfusion as kf
import reference
from kfusion import _core
from kinds import ALL_DTYPES, np_dtype
from sweeps import sweep

pytestmark = pytest.mark.cuda
VERSIONS = (kf.fused_relu_layernorm, kf.unfused_relu_layernorm)
every_version = pytest.mark.parametrize("f", VERSIONS, ids=["fused", "unfused"])
SLEEP_CYCLES = 50_000_000  # some 30 ms: far longer than any launch


def check(y, x, atol=2e-5):
    got = y.numpy() if isinstance(y, kf.DeviceArray) else y.double().cpu().numpy()
    np.testing.assert_allclose(got, reference.relu_layernorm(x), atol=atol)


class TestStreams:
    """The input is written after a long sleep on one stream: a kernel on any other stream would read old values."""

    @pytest.fixture(autouse=True)
    def late_input(self, torch, rng):
        self.torch = torch
        self.values = rng.standard_normal((300, 500)).astype(np.float32)
        self.source = torch.from_numpy(self.values).cuda()
        self.x = torch.zeros_like(self.source)
        self.stream = torch.cuda.Stream()
        torch.cuda.synchronize()

    def fill_late(self):
        self.torch.cuda._sleep(SLEEP_CYCLES)
        self.x.copy_(self.source)

    @every_version
    def test_the_current_stream_and_one_that_is_given(self, f):
        with self.torch.cuda.stream(self.stream):
            self.fill_late()
            y = f(self.x)
            self.x.zero_()  # after the kernel, on its stream
        self.stream.synchronize()
        check(y, self.values)
        for stream, given in itertools.product((self.stream, self.stream.cuda_stream), (False, True)):
            self.x.zero_()
            self.torch.cuda.synchronize()
            with self.torch.cuda.stream(self.stream):
                self.fill_late()
            y = f(self.x, out=self.torch.full_like(self.x, float("nan")) if given else None, stream=stream)
            if not given:  # a fresh result is ready for the current stream too
                check(y + 0, self.values)
            self.stream.synchronize()
            check(y, self.values)

    def test_cupy(self):
        cupy = pytest.importorskip("cupy")
        with cupy.cuda.Stream(non_blocking=True) as stream:
            with self.torch.cuda.stream(self.torch.cuda.ExternalStream(stream.ptr)):
                self.fill_late()
            y = kf.fused_relu_layernorm(cupy.from_dlpack(self.x))
        stream.synchronize()
        np.testing.assert_allclose(y.get(), reference.relu_layernorm(self.values), atol=2e-5)

    def test_the_cuda_array_interface(self):
        """Its `stream` says where the producer's work is."""
        interface = {**self.x.__cuda_array_interface__, "version": 3, "stream": self.stream.cuda_stream}
        producer = type("Producer", (), {"__cuda_array_interface__": interface})
        with self.torch.cuda.stream(self.stream):
            self.fill_late()
        y = kf.fused_relu_layernorm(producer())
        assert isinstance(y, kf.DeviceArray)
        check(y, self.values)

    def test_exports_wait_for_our_work(self):
        a = kf.to_device(self.values)
        self.torch.cuda._sleep(SLEEP_CYCLES)  # on the default stream, where our arrays' work is ordered
        b = kf.fused_relu_layernorm(a)
        with self.torch.cuda.stream(self.stream):
            y = self.torch.from_dlpack(b) + 0
        self.stream.synchronize()
        check(y, self.values)

    @every_version
    def test_graphs(self, f):
        f(self.x)  # kernels are loaded outside the capture
        graph = self.torch.cuda.CUDAGraph()
        out = self.torch.empty_like(self.x)
        with self.torch.cuda.graph(graph):
            f(self.x, out=out)
            y = f(self.x)
        for _ in range(3):
            values = self.torch.randn_like(self.x)
            self.x.copy_(values)
            out.fill_(float("nan"))
            graph.replay()
            self.torch.cuda.synchronize()
            for result in (out, y):
                check(result, values.cpu().numpy())

    @every_version
    def test_threads_on_streams(self, f):
        def work(seed):
            stream = self.torch.cuda.Stream()
            generator = self.torch.Generator(device="cuda").manual_seed(seed)
            with self.torch.cuda.stream(stream):
                for rows, cols in [(7, 1000), (64, 4096), (3, 100_003), (1000, 33)] * 10:
                    x = self.torch.randn(rows, cols, generator=generator, device="cuda")
                    want = self.torch.nn.functional.layer_norm(x.double().relu(), (cols,))
                    assert self.torch.allclose(f(x).double(), want, atol=1e-4)
            return True

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))


def test_rows_of_odd_width_on_two_streams(rng, torch):
    """Many rows with weights: blocks stay, keep the weights, and take rows from a counter that every launch shares."""
    shapes = (20_000, 1023), 1023, 1023
    x, w, b = (torch.from_numpy(rng.standard_normal(s).astype(np.float32)).cuda().to(torch.bfloat16) for s in shapes)
    assert "weighted_rows<" in kf.fused_layernorm.source(x, w, b)
    want = kf.fused_layernorm(x, w, b)
    streams = [torch.cuda.Stream() for _ in range(2)]
    results = [torch.empty_like(x) for _ in streams]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, y in zip(streams, results, strict=True):
            with torch.cuda.stream(stream):
                kf.fused_layernorm(x, w, b, out=y)
    torch.cuda.synchronize()
    assert all(torch.equal(y, want) for y in results)


class TestDeviceArray:
    def test_round_trip(self, rng):
        def check(dtype, shape):
            x = np.asarray(rng.standard_normal(shape), np_dtype(dtype))
            a = kf.to_device(x)
            assert (a.shape, a.dtype, a.ndim, a.size, a.nbytes) == (x.shape, x.dtype, x.ndim, x.size, x.nbytes)
            assert a.device == "cuda:0"
            assert a.strides == np.empty(shape, x.dtype).strides or x.size == 0
            y = a.numpy()
            assert (y.dtype, y.tobytes()) == (x.dtype, x.tobytes())
            assert repr(a) == f"kfusion.DeviceArray(shape={x.shape}, dtype={dtype}, device='cuda:0')"
            if shape:
                assert len(a) == shape[0]
            else:
                with pytest.raises(TypeError, match="no length"):
                    len(a)

        sweep(check, itertools.product(ALL_DTYPES, [(), (0,), (3, 0), (7,), (2, 3, 5)]))
        x = rng.standard_normal((40, 30))
        for view in (x.T, x[::2, ::-3], np.broadcast_to(x[0], x.shape)):  # are made dense
            np.testing.assert_array_equal(kf.to_device(view).numpy(), view)

    def test_what_is_refused(self):
        for bad in ([1.0], np.arange(3, dtype=np.int16), np.ones(3, np.complex64), 1.0):
            with pytest.raises(TypeError, match=r"kfusion\.to_device: x must be"):
                kf.to_device(bad)
        with pytest.raises(kf.DeviceError, match="99"):
            kf.to_device(np.ones(3), 99)
        a = kf.to_device(np.ones(3))
        with pytest.raises(BufferError, match="copy"):
            a.__dlpack__(copy=True)
        with pytest.raises(BufferError, match="cuda:0"):
            a.__dlpack__(dl_device=(1, 0))
        assert not hasattr(kf.to_device(np.ones(3, np_dtype("bfloat16"))), "__cuda_array_interface__")

    def test_torch_takes_it(self, torch, rng):
        for dtype in ALL_DTYPES:
            x = rng.standard_normal((5, 6)).astype(np_dtype(dtype))
            a = kf.to_device(x)
            t = torch.from_dlpack(a)
            del a
            gc.collect()
            kf.to_device(np.zeros((5, 6), x.dtype))  # would reuse memory that is still held
            assert t.dtype == getattr(torch, dtype)
            np.testing.assert_array_equal(t.double().cpu().numpy(), x.astype(np.float64))

    def test_others_take_it(self, rng):
        x = rng.standard_normal((5, 6))
        a = kf.to_device(x)
        cupy = pytest.importorskip("cupy")
        np.testing.assert_array_equal(cupy.from_dlpack(a).get(), x)
        np.testing.assert_array_equal(cupy.asarray(a).get(), x)  # the CUDA array interface
        cuda = pytest.importorskip("numba.cuda")
        np.testing.assert_array_equal(cuda.as_cuda_array(a).copy_to_host(), x)


class TestArguments:
    def test_places_that_do_not_match(self, torch):
        x = torch.ones(4, 8, device="cuda")
        for keywords in ({"weight": torch.ones(8)}, {"bias": torch.ones(8)}, {"out": torch.ones(4, 8)}):
            with pytest.raises(TypeError, match=r"on .* device.* cuda:0|cuda:0.*cpu|cpu.*cuda:0"):
                kf.fused_relu_layernorm(x, **keywords)
        with pytest.raises(TypeError, match="must be an array of torch as x is"):
            kf.fused_relu_layernorm(x, kf.to_device(np.ones(8, np.float32)))

    def test_out(self, torch):
        """It may overlap, and what lies around it is left alone."""
        a = torch.randn(6, 8, device="cuda")
        want = kf.fused_relu_layernorm(a[:4])
        kf.fused_relu_layernorm(a[:4], out=a[1:5])
        assert bool((a[1:5] == want).all())
        buffer = torch.full((9, 64), 7.0, device="cuda")
        x = torch.randn(5, 30, device="cuda")
        for f, out in itertools.product(VERSIONS, (buffer[2:7, 3:33], buffer[2:7, :60:2], buffer[2:7, 4:34])):
            f(x, out=out)
            check(out, x.cpu().numpy())
            out.fill_(7.0)
            assert bool((buffer == 7.0).all())

    def test_results_live_in_torchs_memory(self, torch):
        kf.fused_relu_layernorm(torch.ones(1024, 1024, device="cuda"))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        y = kf.fused_relu_layernorm(torch.ones(1024, 1024, device="cuda"))
        assert torch.cuda.memory_allocated() - before == y.nbytes
        with pytest.raises((kf.DeviceError, RuntimeError), match="memory"):
            kf.fused_relu_layernorm(torch.ones(1, device="cuda").expand(2**34, 2**8))
        check(kf.fused_relu_layernorm(torch.ones(2, 3, device="cuda")), np.ones((2, 3)))

    def test_two_devices(self, torch):
        """The current one is left alone; streams of others are refused."""
        if torch.cuda.device_count() < 2:
            pytest.skip("needs two GPUs")
        for current in range(2):
            with torch.cuda.device(current):
                x = torch.randn(4, 8, device=f"cuda:{1 - current}")
                y = kf.fused_relu_layernorm(x)
                assert y.device == x.device
                assert torch.cuda.current_device() == current
            check(y, x.cpu().numpy())
        x = torch.randn(4, 8, device="cuda:1")
        for f in (kf.fused_relu_layernorm, kf.fuse(lambda x: x * 2)):
            with pytest.raises(ValueError, match=r"the arrays' device \(cuda:1\), got one of cuda:0"):
                f(x, stream=torch.cuda.Stream(0))
            f(x, stream=torch.cuda.Stream(1))


class TestLargeSizes:
    @every_version
    @pytest.mark.parametrize(("rows", "cols"), [(2**19 + 3, 4100), (2**27 + 1, 17), (2, 2**30 + 8), (1, 2**31 + 5)])
    def test_beyond_32_bits(self, f, torch, rows, cols):
        torch.cuda.empty_cache()
        kf.empty_cache()
        if torch.cuda.mem_get_info()[0] < 8 * rows * cols + 2**30:
            pytest.skip("not enough memory on this GPU")
        x = torch.randn(rows, cols, device="cuda", dtype=torch.float16)
        y = f(x)
        for r in {0, rows // 2, rows - 1}:
            r64 = x[r].double().relu_()
            want = (r64 - r64.mean()) / (r64.var(correction=0) + 1e-5).sqrt()
            assert float((y[r].double() - want).abs().max()) < 2e-2
        assert bool(y.view(-1)[:: 2**20 + 1].isfinite().all())

    @every_version
    def test_rows_beyond_32_bits_on_axes_that_do_not_merge(self, f, torch):
        torch.cuda.empty_cache()
        kf.empty_cache()
        base = torch.randn(2**28, 9, 2, device="cuda", dtype=torch.float16)
        x = base[:, :8, :]
        out = torch.full_like(base, 7.0)
        f(x, out=out[:, :8, :])
        assert bool((out[:, 8] == 7).all())
        for i in (0, 2**27 + 1, 2**28 - 1):
            check(out[i, :8], x[i].double().cpu().numpy(), 2e-2)

    def test_strides_beyond_32_bits(self, torch):
        base = torch.randn(3, 2**31 + 64, device="cuda", dtype=torch.float16)
        for x in (base[:, :1000], base[:, 1 : 2**31 : 2**22], base[:, :64].T):
            check(kf.fused_relu_layernorm(x), x.double().cpu().numpy(), 5e-3)


def _in_a_child(_):
    try:
        kf.to_device(np.ones(3))
    except kf.DeviceError as error:
        y = kf.fused_relu_layernorm(np.ones((4, 8), np.float32))  # the CPU still works
        return "spawn" in str(error) and y.shape == (4, 8)
    return False


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_forked_child_says_so():
    kf.to_device(np.ones(3))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map_async(_in_a_child, [0]).get(timeout=60) == [True]


def test_timing():
    x = kf.to_device(np.ones((4096, 1024), np.float32))
    times = _core.cuda_time(lambda: kf.fused_relu_layernorm(x), 5)
    assert len(times) == 5
    assert all(0 < t < 1e6 for t in times)
    with pytest.raises(ZeroDivisionError):
        _core.cuda_time(lambda: 1 / 0, 3)
    with pytest.raises(kf.DeviceError):
        _core.cuda_time(lambda: None, 3, device=99)
