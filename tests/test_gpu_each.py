"""One kernel for many sets of arrays on a GPU: in place, at odd sizes and addresses, on streams, in graphs."""

from __future__ import annotations

import functools
import operator
import threading

import pytest

import kfusion as kf
from kinds import HAVE_GPU

torch = pytest.importorskip("torch")
optim = pytest.importorskip("kfusion.optim")
pytestmark = pytest.mark.skipif(not (HAVE_GPU and torch.cuda.is_available()), reason="needs a GPU")

SIZES = [0, 1, 3, 4, 5, 255, 1023, 1024, 1025, 4096, 16_383, 16_384, 16_385, 100_003, 1_000_000]


@kf.for_each
def axpy(p, g, m, lr):
    m.mul_(0.5).add_(g)
    p.sub_(lr * m)


def plain(p, g, m, lr):
    m = m * 0.5 + g
    return p - lr * m, m


def lists(dtype=torch.float32, seed=0, shift=0):
    """Views into poisoned rooms, whose first element is `shift` elements behind a multiple of 512 bytes."""
    generator = torch.Generator("cuda").manual_seed(seed)
    rooms = [[torch.full((n + 600,), 7.0, device="cuda", dtype=dtype) for n in SIZES] for _ in range(3)]
    views = [[r[256 + shift : 256 + shift + n] for r, n in zip(room, SIZES, strict=True)] for room in rooms]
    for view in functools.reduce(operator.iadd, views, []):
        view.copy_(torch.rand(view.shape, device="cuda", generator=generator))
    return rooms, views


class TestForEach:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("shift", [0, 1])
    def test_values_and_what_lies_around(self, dtype, shift):
        rooms, (ps, gs, ms) = lists(dtype, shift=shift)
        before = [[x.double().clone() for x in xs] for xs in (ps, gs, ms)]
        axpy(ps, gs, ms, 0.25)
        tolerance = {8: 1e-14, 4: 1e-6, 2: 1e-2}[dtype.itemsize]
        for i, n in enumerate(SIZES):
            p, m = plain(*(b[i] for b in before), 0.25)
            torch.testing.assert_close(ps[i].double(), p, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(ms[i].double(), m, rtol=tolerance, atol=tolerance)
            torch.testing.assert_close(gs[i].double(), before[1][i], rtol=0, atol=0)
            for room in rooms:
                assert (room[i][: 256 + shift] == 7).all()
                assert (room[i][256 + shift + n :] == 7).all()

    def test_addresses_that_change_in_each_step(self):
        """More tables than are kept, on one stream and on several; and of several threads."""
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in range(12)]
        sets = [[[torch.ones(n, device="cuda") for n in (5, 70_000)] for _ in range(3)] for _ in range(7)]
        torch.cuda.synchronize()
        want = torch.ones(1)
        for stream in streams * 2:
            with torch.cuda.stream(stream):
                for own in sets:
                    axpy(*own, 0.0)
            stream.synchronize()
            want = want * 0.5 + 1
        assert all((m.cpu() == want).all() for own in sets for m in own[2])

        def work(own):
            for _ in range(100):
                axpy(*own, 0.0)

        threads = [threading.Thread(target=work, args=(own,)) for own in sets]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert all((m == 2).all() for own in sets for m in own[2])

    @pytest.mark.filterwarnings("ignore:.*Profiler clears events")
    def test_it_is_one_launch(self):
        _, sets = lists()
        axpy(*sets, 0.5)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            axpy(*sets, 0.5)
            torch.cuda.synchronize()
        assert len([e.name for e in profile.events() if e.name.startswith("kf_")]) == 1

    def test_a_captured_graph(self):
        _, sets = lists()
        axpy(*sets, 0.5)
        m = [x.clone() for x in sets[2]]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            axpy(*sets, 0.5)
        for n in range(12):  # other tables come and go
            axpy(*[[torch.ones(n + 1, device="cuda")] for _ in range(3)], 0.5)
        graph.replay()
        torch.cuda.synchronize()
        for x, before, g in zip(sets[2], m, sets[1], strict=True):
            torch.testing.assert_close(x, before * 0.5 + g, rtol=1e-6, atol=1e-6)

    def test_two_devices_are_refused(self):
        with pytest.raises(TypeError, match="one device"):
            axpy(*[[torch.ones(3, device="cuda"), torch.ones(3)] for _ in range(3)], 0.5)


OPTIONS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
}


class TestOptimizers:
    @pytest.mark.parametrize("name", OPTIONS)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_against_torch(self, name, dtype):
        mine = [torch.nn.Parameter(torch.randn(n, device="cuda").to(dtype)) for n in SIZES]
        wide = dtype if dtype.itemsize > 2 else torch.float64
        want = [torch.nn.Parameter(p.detach().to(wide, copy=True)) for p in mine]
        a = getattr(optim, name)(mine, **OPTIONS[name])
        b = getattr(torch.optim, name)(want, **OPTIONS[name])
        for _ in range(4):
            for p, q in zip(mine, want, strict=True):
                p.grad = torch.randn(p.shape, device="cuda").to(dtype)
                q.grad = p.grad.to(wide)
            a.step()
            b.step()
        tolerance = {8: 1e-12, 4: 1e-5, 2: 0.05}[dtype.itemsize]
        for p, q in zip(mine, want, strict=True):
            torch.testing.assert_close(p.to(wide), q, rtol=tolerance, atol=tolerance)

    def test_parameters_on_two_devices(self):
        ps = [torch.nn.Parameter(torch.ones(5, device=d)) for d in ("cpu", "cuda", "cpu")]
        for p in ps:
            p.grad = torch.ones_like(p)
        optim.SGD(ps, lr=0.25).step()
        assert all((p == 0.75).all() for p in ps)

    @pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
    def test_a_capture_is_refused(self):
        p = torch.nn.Parameter(torch.ones(5, device="cuda"))
        p.grad = torch.ones_like(p)
        o = optim.AdamW([p])
        o.step()
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="captured"), torch.cuda.graph(graph):
            o.step()
