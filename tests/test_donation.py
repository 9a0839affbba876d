"""What a forward pass keeps is its backward pass's own, where nobody else has it: memory for what that computes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kfusion as kf
from kfusion import _autograd, _core
from kinds import HAVE_GPU
from sweeps import sweep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Gated(nn.Module):
    """Keeps both products, and reads each in one kernel of its backward pass."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.fixture(params=[False, True], ids=["shared", "lent"], autouse=True)
def _lent(request: pytest.FixtureRequest) -> Iterator[None]:
    """Memory for each value, as on a GPU, and results that are made when they are stored."""
    torch.manual_seed(0)
    _core.testing.lend_everywhere(request.param)
    yield
    _core.testing.lend_everywhere(False)


@pytest.fixture
def donated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What backward passes were given, one after the other."""
    found: list[tuple[int, ...]] = []
    own = _autograd._Node._donated

    def record(node: Any, tensors: Any) -> tuple[int, ...]:
        found.append(own(node, tensors))
        return found[-1]

    monkeypatch.setattr(_autograd._Node, "_donated", record)
    return found


def pair(width: int) -> tuple[Any, Any, Any]:
    """A module, the same fused, and an argument. The width is the test's own: nothing made before is found."""
    module = Gated(width).double()
    return module, kf.fuse(module), torch.randn(7, width, dtype=torch.float64, requires_grad=True)


def gradients(y: Any, x: Any, module: Any, **how: Any) -> list[Any]:
    return list(torch.autograd.grad(y, [x, *module.parameters()], torch.cos(y.detach()), **how))


def assert_same(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def assert_near(got: Any, want: Any) -> None:
    for g, w in zip(got, want, strict=True):
        g, w = g.detach(), w.detach()
        torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-3 * float(w.abs().max()))


def test_last_pass_is_given_what_is_kept(donated: list[tuple[int, ...]], request: Any) -> None:
    module, fused, x = pair(17 + len(request.node.name))
    want = gradients(module(x), x, module)
    for _ in range(3):
        assert_same(gradients(fused(x), x, module), want)
    assert [len(d) for d in donated] == [2, 2, 2]


def test_passes_that_are_done_again(donated: list[tuple[int, ...]]) -> None:
    module, fused, x = pair(18)
    want = gradients(module(x), x, module)
    y = fused(x)
    for again in (True, True, False):
        assert_same(gradients(y, x, module, retain_graph=again), want)
    assert [len(d) for d in donated] == [0, 0, 2]
    with pytest.raises(RuntimeError, match="second time"):
        gradients(y, x, module)


def test_looking_holds_nothing(donated: list[tuple[int, ...]]) -> None:
    module, fused, x = pair(20)
    y = fused(x)
    assert len(y.grad_fn.saved_tensors) > 2
    assert_same(gradients(y, x, module), gradients(module(x), x, module))
    assert len(donated[0]) == 2


@pytest.mark.parametrize("is_numbered", [False, True])
def test_hooks_that_hold(is_numbered: bool, donated: list[tuple[int, ...]]) -> None:
    """With a list of their own: it has them still when the pass is done, and no more references than the graph."""
    module, fused, x = pair(21 + is_numbered)
    packed: list[Any] = []

    def pack(t: Any) -> Any:
        packed.append(t)
        return len(packed) - 1 if is_numbered else t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: packed[t] if is_numbered else t):
        y = fused(x)
    before = [t.clone() for t in packed]
    assert_same(gradients(y, x, module), gradients(module(x), x, module))
    assert donated == [()]
    assert_same(packed, before)


def _in_grad(t: Any) -> Any:
    owner = nn.Parameter(torch.zeros_like(t))
    owner.grad = t
    return owner


HOLDERS: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda t: t, lambda t: t),
    (lambda t: t.detach(), lambda t: t),
    (lambda t: t.view(-1)[3:], lambda t: t),
    (lambda t: t.numpy(), torch.as_tensor),
    (_in_grad, lambda o: o.grad),
    (lambda t: t * torch.ones((), dtype=t.dtype, requires_grad=True), lambda o: o.grad_fn._saved_self),
    (lambda t: t.untyped_storage(), lambda s: torch.tensor(s.tolist())),
]


def test_what_somebody_holds_stays(donated: list[tuple[int, ...]]) -> None:
    """Also without the object."""

    def check(number: int) -> None:
        holds, held = HOLDERS[number]
        donated.clear()
        module, fused, x = pair(31 + number)
        want = gradients(module(x), x, module)
        y = fused(x)
        kept = [t for t in y.grad_fn.saved_tensors if not t.requires_grad]
        holders = [holds(t) for t in kept]
        before = [held(h).clone() for h in holders]
        del kept
        assert_same(gradients(y, x, module), want)
        assert donated == [()]
        assert_same([held(h) for h in holders], before)

    sweep(check, [(n,) for n in range(len(HOLDERS))])


def test_library_gradients_that_are_what_they_get() -> None:
    """That of a sum along an axis of one element gives its argument, which lies where the kept value did."""
    f = lambda x, y: torch.sin(torch.cumsum(x * y, 0))  # noqa: E731
    for rows in (1, 2):
        x, y = (torch.randn(rows, 33, dtype=torch.float64, requires_grad=True) for _ in range(2))
        g = torch.randn(rows, 33, dtype=torch.float64)
        fused = kf.fuse(f)
        for _ in range(3):
            assert_same(torch.autograd.grad(fused(x, y), [x, y], g), torch.autograd.grad(f(x, y), [x, y], g))


def test_views_that_functions_give(donated: list[tuple[int, ...]]) -> None:
    """Attention gives a view of what it has made, which is nobody's either."""

    x, w = torch.randn(2, 16, 128, requires_grad=True), torch.randn(128, 512, requires_grad=True)
    g = torch.randn(2, 16, 128)

    def f(x: Any, w: Any) -> Any:
        q, k, v, out = w.split(128, 1)
        q, k, v = ((x @ t).reshape(2, 16, 4, 32).transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape) @ out

    fused, kept = kf.fuse(f), []
    for _ in range(2):
        y = fused(x, w)
        kept.append(len(y.grad_fn.saved_tensors) - 2)
        assert_near(torch.autograd.grad(y, [x, w], g), torch.autograd.grad(f(x, w), [x, w], g))
    assert [len(d) for d in donated] == kept
    assert min(kept) >= 2


def test_a_pass_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have changed what was kept: torch would let it be done again."""
    module, fused, x = pair(29)
    y = fused(x)
    passes = y.grad_fn.node.passes

    def fails(*arguments: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(passes, "backward", fails)
        with pytest.raises(MemoryError):
            gradients(y, x, module)
    with pytest.raises(RuntimeError, match="call the function again"):
        gradients(y, x, module)
    assert_same(gradients(fused(x), x, module), gradients(module(x), x, module))


def test_results_stay(donated: list[tuple[int, ...]]) -> None:
    """A result that backward reads is the caller's."""

    def f(x: Any, w: Any) -> Any:
        z = x @ w
        return z, torch.tanh(z) * z

    x, w = (torch.randn(23, 23, dtype=torch.float64, requires_grad=True) for _ in range(2))
    z, y = kf.fuse(f)(x, w)
    before = z.detach().clone()
    got = torch.autograd.grad(y, [x, w], torch.ones_like(y))
    assert_same(got, torch.autograd.grad(f(x, w)[1], [x, w], torch.ones_like(y)))
    torch.testing.assert_close(z.detach(), before, rtol=0, atol=0)
    assert donated == [()]


def test_threads_that_share_a_graph() -> None:
    module, fused, x = pair(26)
    want = gradients(module(x), x, module)

    def work(_: int) -> None:
        for _ in range(5):
            assert_same(gradients(fused(x), x, module), want)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_other_sizes(donated: list[tuple[int, ...]]) -> None:
    """What is recorded for other extents says it, too."""
    module, fused, _ = pair(27)
    for n in (3, 5, 7, 9):
        x = torch.randn(n, 27, dtype=torch.float64, requires_grad=True)
        assert_same(gradients(fused(x), x, module), gradients(module(x), x, module))
    assert [len(d) for d in donated] == [2] * 4
    fused = kf.fuse(lambda x, t: F.cross_entropy(x, t, reduction="sum"))
    for rows in (0, 3):  # without rows no kernel runs, after which what is donated could be given back
        x, t = torch.randn(rows, 5, requires_grad=True), torch.zeros(rows, dtype=torch.int64)
        fused(x, t).backward()
        assert_same([x.grad], torch.autograd.grad(F.cross_entropy(x, t, reduction="sum"), x))


needs_gpu = pytest.mark.skipif(not (HAVE_GPU and torch.cuda.is_available()), reason="needs a GPU")


def on_gpu(width: int, rows: int) -> tuple[Any, Any, Any]:
    module = Gated(width).cuda()
    return module, kf.fuse(module), torch.randn(rows, width, device="cuda", requires_grad=True)


@pytest.mark.cuda
@needs_gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node")
class TestOnGpu:
    def test_memory_goes_as_it_is_read(self, donated: list[tuple[int, ...]]) -> None:
        module, fused, x = on_gpu(512, 8192)
        want, one = gradients(module(x), x, module), x.nbytes
        y = fused(x)
        g = torch.cos(y.detach())
        peaks = []
        for again in (True, True, False):
            gc.collect()  # else what other tests left may go while this is measured
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            got = torch.autograd.grad(y, [x, *module.parameters()], g, retain_graph=again)
            peaks.append(torch.cuda.max_memory_allocated() - before)
            assert_near(got, want)
            del got
        assert [len(d) for d in donated] == [0, 0, 2]
        assert peaks[2] < peaks[1] - one

    def test_in_a_cuda_graph(self) -> None:
        module, fused, x = on_gpu(256, 8192)
        parameters = [x, *module.parameters()]
        g = torch.randn_like(x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                torch.autograd.grad(fused(x), parameters, g)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fused(x)
            got = torch.autograd.grad(y, parameters, g)
        for _ in range(3):
            with torch.no_grad():
                x.normal_(), g.normal_()
            graph.replay()
            want = module(x)
            assert_near([y, *got], [want, *torch.autograd.grad(want, parameters, g)])

    def test_streams_of_threads(self) -> None:
        module, fused, x = on_gpu(320, 8192)
        g = torch.randn_like(x)
        want = torch.autograd.grad(module(x), [x, *module.parameters()], g)
        torch.cuda.synchronize()

        def work(_: int) -> None:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(6):
                    own = x.detach().clone().requires_grad_()
                    assert_near(torch.autograd.grad(fused(own), [own, *module.parameters()], g), want)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))

    def test_another_stream(self) -> None:
        """Its memory is there before it waits for the caller's."""
        module, _, x = on_gpu(384, 8192)
        with torch.no_grad():
            want, stream = module(x), torch.cuda.Stream()
            for _ in range(3):
                got = kf.fuse(lambda x: module(x))(x, stream=stream)
                assert_near([got], [want])
