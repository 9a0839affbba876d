"""What the forward pass of a compiled model keeps for its backward pass, the memory of that, and losses of classes."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import kfusion as kf  # noqa: E402
from kfusion._torch_compile import cuda_graphs, donation, partition  # noqa: E402
from kfusion._torch_compile.backend import backend  # noqa: E402
from kfusion._torch_compile.compiled import Compiled  # noqa: E402
from sweeps import sweep  # noqa: E402
from test_torch_compile import Block  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()

    def refused(self: Any, error: Exception, values: Any) -> None:
        raise error

    monkeypatch.setattr(Compiled, "_refused", refused)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Tensors without data of what forward passes keep beside their arguments, as they are compiled."""
    found: list[Any] = []
    chosen = partition.partitioners._extract_fwd_bwd_modules

    def extract(joint: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        found.extend(v.meta["val"] for v in values if v.op != "placeholder")
        return chosen(joint, values, *args, **kwargs)

    monkeypatch.setattr(partition.partitioners, "_extract_fwd_bwd_modules", extract)
    return found


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend=backend, fullgraph=True, **options)


def check(function: Callable[..., Any], *arguments: Any, tolerance: float = 1e-4) -> None:
    """Results and gradients, of some direction, are eager torch's."""
    torch._dynamo.reset()
    given = [a.detach().requires_grad_() if a.is_floating_point() else a for a in arguments]
    inputs = [a for a in given if a.requires_grad]
    made = []
    for f in (compiled(function), function):
        y = f(*given)
        along = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
        made.append([y, *torch.autograd.grad(y, inputs, along)])
    torch.testing.assert_close(*made, rtol=tolerance, atol=tolerance, equal_nan=True)


def bytes_of_block(kept: list[Any]) -> int:
    kept.clear()
    torch._dynamo.reset()
    block = Block()
    torch.compile(block, backend=backend, fullgraph=True)(torch.randn(2, 32, 16)).sum().backward()
    return sum(v.nbytes for v in kept)


def test_no_more_than_by_torchs_choice(kept, monkeypatch):
    own = bytes_of_block(kept)
    monkeypatch.setattr(partition.partitioners, "has_recomputable_ops", lambda joint: True)
    monkeypatch.setattr(partition.partitioners, "cleanup_recompute_tags", lambda joint, **_: joint)
    assert 0 < own <= bytes_of_block(kept)


PARTS: dict[str, Callable[[Any], Any]] = {
    "split": lambda y: y.split(8, -1),
    "chunk": lambda y: y.chunk(3, -1),
    "uneven": lambda y: y.split([8, 8, 8], -1),
    "unbind": lambda y: y.view(*y.shape[:-1], 3, 8).unbind(-2),
    "slices": lambda y: (y[..., :8], y[..., 8:16], y[..., 16:]),
}


def test_parts_of_a_product_are_kept_as_one(kept, some):
    """Those that come back share memory as eager torch's."""

    def part(name, f):
        def gates(x: Any, w: Any) -> Any:
            a, b, c = f(x @ w)
            return torch.tanh(a) * torch.sigmoid(b) + a * torch.exp(-c * c)

        kept.clear()
        check(gates, torch.randn(5, 6, 7), torch.randn(7, 24))
        assert [v.numel() for v in kept] == [5 * 6 * 24]
        x = torch.randn(5, 6, 24)
        made, want = compiled(lambda x: f(x * 2))(x), f(x * 2)
        torch.testing.assert_close(list(made), list(want), rtol=0, atol=0)
        assert [v.stride() for v in made] == [v.stride() for v in want]
        assert len({v.untyped_storage().data_ptr() for v in made}) == 1

    sweep(part, some(PARTS.items(), 2))


def test_cross_entropy_keeps_logits_and_two_numbers_of_each_row(kept):
    def entropy_of(dtype, is_wide):
        def loss(x: Any, w: Any, t: Any) -> Any:
            logits = x @ w
            return F.cross_entropy(logits.float() if is_wide else logits, t)

        kept.clear()
        x, w = torch.randn(40, 8, dtype=dtype), torch.randn(8, 50, dtype=dtype)
        check(loss, x, w, torch.randint(50, (40,)), tolerance=1e-4 if dtype == torch.float32 else 2e-2)
        row = ((40, 1), torch.float32)
        assert [(tuple(v.shape), v.dtype) for v in kept if v.ndim] == [((40, 50), dtype), row, row]

    sweep(entropy_of, [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)])


def test_softmaxes_are_kept_once(kept):
    def softmax(function):
        kept.clear()
        check(lambda x, w: function(x @ w), torch.randn(40, 8), torch.randn(8, 50))
        assert sum(v.numel() for v in kept) <= 40 * 50 + 2 * 40

    functions = [
        lambda y: (torch.log_softmax(y, -1) * torch.linspace(-1, 1, 50)).tanh().sum(),
        lambda y: -((logs := torch.log_softmax(y, -1)).exp() * logs).sum(),
        lambda y: torch.log_softmax(y + y.roll(1, 0) @ torch.eye(50) + y.cumsum(0), -1)[:, 3].sum(),
        lambda y: torch.log_softmax(y, -1),
    ]
    sweep(softmax, [(f,) for f in functions])
    for shape in ((3, 0), (0, 3), ()):
        check(lambda x: torch.softmax(x * 2, -1) * 2 if x.ndim else torch.softmax(x * 2, 0), torch.randn(shape))


def test_the_caller_may_write_to_logits_and_arguments():
    """Eager torch keeps the logarithms of a cross entropy, not the logits."""
    x, w, t = of_head()

    def function(x: Any, w: Any, t: Any) -> Any:
        y = x @ w
        return F.cross_entropy(y, t), y

    want = torch.autograd.grad(head(x, w, t), (x, w))
    loss, logits = torch.compile(function, backend=backend, fullgraph=True)(x, w, t)
    with torch.no_grad():
        logits.zero_()
    torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), want)
    y = torch.randn(6, 9, requires_grad=True)
    (want,) = torch.autograd.grad(torch.log_softmax(y, -1)[:, 0].sum(), y)
    made = torch.compile(lambda y: torch.log_softmax(y, -1)[:, 0].sum(), backend=backend)(y)
    with torch.no_grad():
        y.add_(1)
    torch.testing.assert_close(torch.autograd.grad(made, y)[0], want)


def test_buffers_that_a_graph_writes_to():
    """torch's own backends read them in backward as they are then (2.13)."""

    class Module(nn.Module):
        def __init__(self, function) -> None:
            super().__init__()
            self.function = function
            self.register_buffer("scale", torch.linspace(0, 1, 54).view(6, 9))

        def forward(self, x: Any) -> Any:
            y = self.function(self.scale)
            self.scale.mul_(0.9).add_(0.1)
            return (y * x).sum(-1)

    for function in (torch.exp, lambda y: torch.log_softmax(y, -1), lambda y: y.t().tanh().t() * 2):
        modules = compiled(Module(function)), Module(function)
        for _ in range(2):
            leaves = [torch.linspace(-1, 1, 54).view(6, 9).requires_grad_() for _ in modules]
            for f, leaf in zip(modules, leaves, strict=True):
                f(leaf).sum().backward()
            torch.testing.assert_close(*(leaf.grad for leaf in leaves))


REDUCTIONS = ["mean", "sum", "none"]
CLASSES = {"rows": (6, 9), "images": (2, 9, 3, 4), "lines": (3, 9, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", CLASSES)
def test_losses_of_classes(shape, dtype):
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]

    def losses(reduction, weighted):
        x = torch.randn(CLASSES[shape], dtype=dtype)
        t = torch.randint(9, (x.shape[0], *x.shape[2:]))
        t.view(-1)[::4] = -100
        options = {"weight": torch.rand(9, dtype=dtype) + 0.5 if weighted else None, "reduction": reduction}
        check(lambda x: F.cross_entropy(x, t, **options), x, tolerance=tolerance)
        check(lambda x: F.nll_loss(torch.tanh(x), t, **options), x, tolerance=tolerance)
        if shape == "rows":
            smooth = options | {"label_smoothing": 0.25, "ignore_index": 3}
            check(lambda x: F.cross_entropy(x, t.clamp_min(0), **smooth), x, tolerance=tolerance)

    sweep(losses, itertools.product(REDUCTIONS, (False, True)))


def test_rows_of_classes():
    x = torch.randn(6, 9)
    x[1, 2], x[2, 3], x[3] = torch.inf, -torch.inf, -torch.inf
    x[4, 0] = torch.nan  # of a row that is ignored
    t = torch.tensor([0, 1, 3, 4, -100, 5])
    for reduction in REDUCTIONS:
        check(lambda x, r=reduction: F.cross_entropy(x, torch.tensor(2), reduction=r), torch.randn(7))
        check(lambda x, r=reduction: F.nll_loss(torch.tanh(x), torch.tensor(2), reduction=r), torch.randn(7))
        check(lambda x, r=reduction: F.cross_entropy(x, t, reduction=r), x, tolerance=1e-5)
    f = compiled(F.cross_entropy)
    x, t = torch.randn(6, 9, requires_grad=True), torch.tensor([0, 1, 9, 4, 2, 5])
    with pytest.raises(IndexError, match="out of bounds"):
        f(x, t)
    t[2] = 8
    torch.testing.assert_close(f(x, t), F.cross_entropy(x, t))


# ---- memory that the backward pass alone reads ----


def head(x: Any, w: Any, t: Any) -> Any:
    return F.cross_entropy(x @ w, t)


def of_head(rows: int = 40) -> list[Any]:
    x, w = torch.randn(rows, 8), torch.randn(8, 50)
    return [x.requires_grad_(), w.requires_grad_(), torch.randint(50, (rows,))]


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors that calls of backward passes may use the memory of."""
    found: list[Any] = []
    is_given = donation.is_given

    def look(arguments: Any, places: Any) -> bool:
        given = is_given(arguments, places)
        found.extend(arguments[i] for i in (places if given else ()))
        return given

    monkeypatch.setattr(donation, "is_given", look)
    return found


def require_gradients(f: Callable[..., Any], given: Any, loss: Any = None) -> None:
    made = torch.autograd.grad(f(*given) if loss is None else loss, given[:2])
    torch.testing.assert_close(made, torch.autograd.grad(head(*given), given[:2]))


def test_backward_uses_the_memory_of_what_is_kept_for_it(given_away):
    for dynamic in (False, True):
        torch._dynamo.reset()
        given_away.clear()
        f = compiled(head, dynamic=dynamic)
        for rows in (40, 41, 40):
            require_gradients(f, of_head(rows))
        assert len([tensor for tensor in given_away if tensor.untyped_storage().nbytes() == 0]) >= 3
    given_away.clear()
    given = [of_head(), of_head()]  # two forward passes before their backward passes
    losses = [f(*a) for a in given]
    for loss, a in reversed(list(zip(losses, given, strict=True))):
        require_gradients(f, a, loss)
    assert given_away


def test_complex_tensors_that_are_kept():
    check(lambda x: torch.fft.rfft(x.tanh()).abs().sum(), torch.randn(12, 8))
    check(lambda x: (torch.polar(x.tanh(), x) * torch.polar(x, x.cos())).abs().sum(), torch.rand(12, 8))


def test_what_the_caller_has_stays():
    """Results that are kept for backward, too, or share its memory; what the caller took from the graph."""
    x, w, t = of_head()
    loss = compiled(head)(x, w, t)
    held = loss.grad_fn.saved_tensors
    before = [v.detach().clone() for v in held]
    loss.backward()
    assert all(torch.equal(v, b) for v, b in zip(held, before, strict=True))
    for part in (lambda y: y, lambda y: y[:2], lambda y: y.view(-1), lambda y: y.detach()):

        def function(x: Any, w: Any, part: Any = part) -> Any:
            y = torch.tanh(x @ w)
            return part(y), (y * torch.sigmoid(y)).sum()

        torch._dynamo.reset()
        y, total = compiled(function)(x, w)
        before = y.detach().clone()
        total.backward()
        assert torch.equal(y.detach(), before)


def test_what_hooks_have_stays(given_away):
    f, given = compiled(head), of_head()
    require_gradients(f, given)
    assert given_away
    given_away.clear()
    held: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda v: held.append(v) or v, lambda v: v):
        loss = f(*given)
    before = [v.detach().clone() for v in held]
    require_gradients(f, given, loss)
    assert not given_away
    assert all(torch.equal(v, b) for v, b in zip(held, before, strict=True))


def test_retained_graphs(given_away):
    x, w, t = of_head()
    with torch._functorch.config.patch(donated_buffer=False):
        loss = compiled(head)(x, w, t)
        first = torch.autograd.grad(loss, (x, w), retain_graph=True)
        again = torch.autograd.grad(loss, (x, w))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not given_away
    torch._dynamo.reset()
    f = compiled(head)
    torch.autograd.grad(f(x, w, t), (x, w))
    loss = f(x, w, t)
    with pytest.raises(RuntimeError, match="donated_buffer=False"):
        torch.autograd.grad(loss, (x, w), retain_graph=True)


def test_a_failure_behind_kernels_is_no_other_result(monkeypatch, given_away):
    f, given = compiled(head), of_head()
    loss, fused = f(*given), Compiled._fused

    def fails(self: Any, function: Any, given: Any) -> Any:
        fused(self, function, given)
        raise MemoryError("none left")

    with monkeypatch.context() as context:
        context.setattr(Compiled, "_fused", fails)
        with pytest.raises(MemoryError, match="none left"):
            torch.autograd.grad(loss, given[:2])
    require_gradients(f, given)


def test_results_of_attention_are_not_copied() -> None:
    """They lie in the plan as torch's own do, with their heads behind the positions."""
    for is_causal in (False, True):

        def f(x: Any, is_causal: bool = is_causal) -> Any:
            q, k, v = (t.view(2, 96, 4, 16).transpose(1, 2) for t in x.split(64, -1))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            return attended.transpose(1, 2).reshape(2, 96, 64) * 2

        leaf = torch.randn(2, 96, 192)
        check(f, leaf)
        leaf.requires_grad_()
        made = compiled(f)
        made(leaf).sum().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled:
            made(leaf).sum().backward()
        assert sum("scaled_dot_product" in e.name for e in profiled.events()) >= 2
        copies = [e.input_shapes[0] for e in profiled.events() if e.name == "aten::copy_"]
        assert not [shape for shape in copies if len(shape) == 4]


# ---- `mode="reduce-overhead"` without a GPU: what torch's trees of CUDA graphs are asked, and when ----


@pytest.fixture
def trees():
    """torch's module, whose import warns."""
    from torch._inductor import cudagraph_trees

    return cudagraph_trees


def graph(function, *shapes, device="cuda"):
    """A graph of operators on tensors without data on a device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = [torch.empty(shape, device=device) for shape in shapes]
        return make_fx(function)(*given)


@pytest.fixture
def asked(monkeypatch, trees):
    """The calls of the trees' entry, which runs what it is given."""
    calls = []

    def cudagraphify_impl(run, inputs, static, **facts):
        calls.append((list(inputs), list(static), facts))
        return lambda arguments: ("replayed", run(arguments))

    monkeypatch.setattr(trees, "cudagraphify_impl", cudagraphify_impl)
    return calls


def product(x, w):
    return torch.relu(x @ w), x


def test_which_graphs_are_recorded(monkeypatch):
    assert cuda_graphs.recordable(graph(product, (2, 3), (3, 4))) == 0
    assert cuda_graphs.recordable(graph(product, (2, 3), (3, 4), device="cpu")) is None
    assert cuda_graphs.recordable(graph(lambda x: (torch.rand_like(x) + x,), (2, 3))) is None
    mixed = graph(product, (2, 3), (3, 4))
    next(iter(mixed.graph.nodes)).meta["val"] = torch.empty(2, 3)
    assert cuda_graphs.recordable(mixed) is None
    module = graph(product, (2, 3), (3, 4))  # with what the host must look at
    size = torch.fx.experimental.symbolic_shapes.ShapeEnv().create_unbacked_symint()
    with module.graph.inserting_before(next(iter(module.graph.nodes))):
        module.graph.call_function(torch.ops.aten.sym_size.int).meta["val"] = size
    assert cuda_graphs.recordable(module) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    wanted = [cuda_graphs.is_wanted(mode) for mode in ("reduce-overhead", "default", None)]
    assert wanted == [True, False, False]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cuda_graphs.is_wanted("reduce-overhead")


def test_a_forward_pass_is_recorded_behind_its_first_call(asked):
    module = graph(product, (2, 3), (3, 4))
    runs = []
    replays = cuda_graphs.Replays(1)
    run = replays.forward(lambda a: runs.append(list(a)) or a.clear(), module, ["w", "x"], is_inference=True)
    assert run._boxed_call
    for call in range(3):
        given = ["w", "x"]
        made = run(given)
        assert (made is None) == (call == 0)
        assert given == []
    assert runs == [["w", "x"]] * 3
    ((inputs, static, facts),) = asked
    assert (inputs, static, facts["device_index"]) == (["w", "x"], [0], 0)
    assert (facts["is_inference"], facts["is_backward"]) == (True, False)
    assert len(facts["stack_traces"]) == len(facts["placeholders"]) == 2  # which the trees demand of each result


def test_parameters_are_fixed_where_torch_knows_them(asked, monkeypatch):
    known = types.SimpleNamespace(fw_metadata=types.SimpleNamespace(static_input_indices=[1]))
    monkeypatch.setattr(torch._guards.TracingContext, "try_get", staticmethod(lambda: known))
    run = cuda_graphs.Replays(2).forward(lambda a: None, graph(product, (2, 3), (3, 4)), ["x", "w"], is_inference=False)
    run([])
    run([])
    assert asked[0][1] == [1]


def test_new_sizes_run_as_they_are_first(asked):
    made = []
    run = cuda_graphs.Replays(2).forward(made.append, graph(product, (2, 3), (3, 4)), [4, "x"], is_inference=True)
    for size in (4, 4, 5, 5, 4):
        run([size, "x"])
    assert len(asked) == 1  # which tells sizes apart itself
    assert [v[0] for v in made] == [4, 4, 5, 5, 4]
    assert [run([n, "x"]) for n in (6, 6)] == [None, ("replayed", None)]


def test_a_backward_pass_says_that_it_runs(asked, monkeypatch, trees):
    said = []
    manager = types.SimpleNamespace(set_to_running_backward=lambda: said.append("backward"))
    monkeypatch.setattr(trees, "get_manager", lambda device, create_if_none_exists: manager)
    replays = cuda_graphs.Replays(2)
    backward = graph(lambda x, tangents_1: (tangents_1 * x,), (2, 3), (2, 3))
    assert replays.backward(len, backward, ["x", "t"]) is len  # behind a forward pass that is not recorded
    replays.forward(len, graph(product, (2, 3), (3, 4)), ["x", "w"], is_inference=False)
    drawing = graph(lambda x: (torch.rand_like(x) + x,), (2, 3))
    assert replays.backward(len, drawing, ["x"])(["x"]) == 1
    assert said == ["backward"]
    run = replays.backward(len, backward, ["x", "t"])
    assert run(["x", "t"]) == 2
    assert run(["x", "t"]) == ("replayed", 2)
    ((_, static, facts),) = asked
    assert facts["is_backward"]
    assert static == [0]  # what the forward pass kept
    assert len(said) == 3


def test_results_are_torchs_own_while_a_graph_is_recorded():
    """The trees free results by torch's own function, which DLPack's memory does not have; it cannot be resized."""
    fused, x = kf.fuse(lambda x: x * 2), torch.ones(5)

    def owned(made):
        return made.untyped_storage().resizable()

    assert not owned(fused(x))
    assert owned(cuda_graphs._made_by_torch(fused)(x))
    assert not owned(fused(x))
    with pytest.raises(TypeError):
        cuda_graphs._made_by_torch(fused)("no array")
    assert not owned(fused(x))
