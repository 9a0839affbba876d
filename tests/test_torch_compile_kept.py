"""What the forward pass of a compiled model keeps for its backward pass, and losses of classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from kfusion._torch_compile import donation, partition  # noqa: E402
from kfusion._torch_compile.backend import backend  # noqa: E402
from kfusion._torch_compile.compiled import Compiled  # noqa: E402

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


def check(function: Callable[..., Any], *arguments: Any, tolerance: float = 1e-4) -> None:
    """Results and gradients, of some direction, are eager torch's."""
    floats = [a for a in arguments if torch.is_tensor(a) and a.is_floating_point()]
    given = [a.detach().requires_grad_() if a.is_floating_point() else a for a in arguments]
    inputs = [a for a in given if a.requires_grad]
    assert floats
    made = []
    for f in (torch.compile(function, backend=backend, fullgraph=True), function):
        y = f(*given)
        along = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape)
        made.append([y, *torch.autograd.grad(y, inputs, along)])
    torch.testing.assert_close(*made, rtol=tolerance, atol=tolerance)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(16), nn.Linear(16, 48)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Any) -> Any:
        n, s, d = x.shape
        q, k, v = (t.view(n, s, 4, d // 4).transpose(1, 2) for t in self.heads(self.norm(x)).split(d, -1))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, s, d)
        return x + self.down(F.gelu(self.up(self.norm(x))))


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


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_product_are_kept_as_one(name, kept):
    def gates(x: Any, w: Any) -> Any:
        a, b, c = PARTS[name](x @ w)
        return torch.tanh(a) * torch.sigmoid(b) + a * torch.exp(-c * c)

    check(gates, torch.randn(5, 6, 7), torch.randn(7, 24))
    assert [v.numel() for v in kept] == [5 * 6 * 24]


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_come_back_share_memory_as_eager_torchs(name):
    def parts(x: Any) -> Any:
        return PARTS[name](x * 2)

    x = torch.randn(5, 6, 24)
    made, want = torch.compile(parts, backend=backend, fullgraph=True)(x), parts(x)
    torch.testing.assert_close(list(made), list(want), rtol=0, atol=0)
    assert [v.stride() for v in made] == [v.stride() for v in want]
    assert len({v.untyped_storage().data_ptr() for v in made}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_wide", [False, True])
def test_cross_entropy_keeps_logits_and_two_numbers_of_each_row(dtype, is_wide, kept):
    def loss(x: Any, w: Any, t: Any) -> Any:
        logits = x @ w
        return F.cross_entropy(logits.float() if is_wide else logits, t)

    x, w = torch.randn(40, 8, dtype=dtype), torch.randn(8, 50, dtype=dtype)
    check(loss, x, w, torch.randint(50, (40,)), tolerance=1e-4 if dtype == torch.float32 else 2e-2)
    row = ((40, 1), torch.float32)
    assert [(tuple(v.shape), v.dtype) for v in kept if v.ndim] == [((40, 50), dtype), row, row]


def entropy(logs: Any) -> Any:
    return -(logs.exp() * logs).sum()


SOFTMAXES: dict[str, tuple[Callable[..., Any], int]] = {  # how many arrays of its size are kept
    "read as it is": (lambda y: (torch.log_softmax(y, -1) * torch.linspace(-1, 1, 50)).tanh().sum(), 1),
    "entropy": (lambda y: entropy(torch.log_softmax(y, -1)), 1),
    "of a sum": (lambda y: torch.log_softmax(y + y.roll(1, 0) @ torch.eye(50) + y.cumsum(0), -1)[:, 3].sum(), 1),
    "a result": (lambda y: torch.log_softmax(y, -1), 1),
}


@pytest.mark.parametrize("name", SOFTMAXES)
def test_softmaxes_are_kept_once(name, kept):
    function, arrays = SOFTMAXES[name]
    check(lambda x, w: function(x @ w), torch.randn(40, 8), torch.randn(8, 50))
    assert sum(v.numel() for v in kept) <= arrays * 40 * 50 + 2 * 40


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


@pytest.mark.parametrize("function", [torch.exp, lambda y: torch.log_softmax(y, -1), lambda y: y.t().tanh().t() * 2])
def test_buffers_that_a_graph_writes_to(function):
    """torch's own backends read them in backward as they are then (2.13)."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.linspace(0, 1, 54).view(6, 9))

        def forward(self, x: Any) -> Any:
            y = function(self.scale)
            self.scale.mul_(0.9).add_(0.1)
            return (y * x).sum(-1)

    modules = Module(), Module()
    for _ in range(2):
        x = torch.randn(6, 9)
        made = []
        for f in (torch.compile(modules[0], backend=backend), modules[1]):
            leaf = x.clone().requires_grad_()
            f(leaf).sum().backward()
            made.append(leaf.grad)
        torch.testing.assert_close(*made)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), ()])
def test_softmaxes_of_no_elements(shape):
    check(lambda x: torch.softmax(x * 2, -1) * 2 if x.ndim else torch.softmax(x * 2, 0), torch.randn(shape))


REDUCTIONS = ["mean", "sum", "none"]
CLASSES = {"rows": (6, 9), "images": (2, 9, 3, 4), "lines": (3, 9, 5)}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", CLASSES)
def test_losses_of_classes(shape, weighted, reduction, dtype):
    x = torch.randn(CLASSES[shape], dtype=dtype)
    t = torch.randint(9, (x.shape[0], *x.shape[2:]))
    t.view(-1)[::4] = -100
    weight = torch.rand(9, dtype=dtype) + 0.5 if weighted else None

    def entropy(x: Any) -> Any:
        return F.cross_entropy(x, t, weight, reduction=reduction)

    def likelihood(x: Any) -> Any:
        return F.nll_loss(torch.tanh(x), t, weight, reduction=reduction)

    def smooth(x: Any) -> Any:
        return F.cross_entropy(x, t, weight, reduction=reduction, label_smoothing=0.25, ignore_index=3)

    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for function in (entropy, likelihood) if shape != "rows" else (entropy, likelihood, smooth):
        if function is smooth:
            t = t.clamp_min(0)
        check(function, x, tolerance=tolerance)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_one_row_of_classes(reduction):
    check(lambda x: F.cross_entropy(x, torch.tensor(2), reduction=reduction), torch.randn(7))
    check(lambda x: F.nll_loss(torch.tanh(x), torch.tensor(2), reduction=reduction), torch.randn(7))


def test_rows_that_are_not_finite():
    x = torch.randn(6, 9)
    x[1, 2], x[2, 3], x[3] = torch.inf, -torch.inf, -torch.inf
    t = torch.tensor([0, 1, 3, 4, -100, 5])
    x[4, 0] = torch.nan  # of a row that is ignored
    inputs = x.requires_grad_()
    for reduction in REDUCTIONS:
        made = []
        for f in (torch.compile(F.cross_entropy, backend=backend, fullgraph=True), F.cross_entropy):
            y = f(inputs, t, reduction=reduction)
            made.append([y, *torch.autograd.grad(y, inputs, torch.ones_like(y))])
        torch.testing.assert_close(*made, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_target_that_is_no_class_is_an_error():
    compiled = torch.compile(F.cross_entropy, backend=backend, fullgraph=True)
    x, t = torch.randn(6, 9, requires_grad=True), torch.tensor([0, 1, 9, 4, 2, 5])
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(x, t)
    t[2] = 8
    torch.testing.assert_close(compiled(x, t), F.cross_entropy(x, t))


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


@pytest.mark.parametrize("dynamic", [False, True])
def test_backward_uses_the_memory_of_what_is_kept_for_it(dynamic, given_away):
    compiled = torch.compile(head, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (40, 41, 40):
        x, w, t = of_head(rows)
        made = torch.autograd.grad(compiled(x, w, t), (x, w))
        torch.testing.assert_close(made, torch.autograd.grad(head(x, w, t), (x, w)))
    logits = [tensor for tensor in given_away if tensor.untyped_storage().nbytes() == 0]
    assert len(logits) >= 3


def test_two_forward_passes_before_their_backward_passes(given_away):
    compiled = torch.compile(head, backend=backend, fullgraph=True)
    given = [of_head(), of_head()]
    losses = [compiled(*a) for a in given]
    for loss, a in reversed(list(zip(losses, given, strict=True))):
        torch.testing.assert_close(torch.autograd.grad(loss, a[:2]), torch.autograd.grad(head(*a), a[:2]))
    assert given_away


def test_what_the_caller_took_from_the_graph_stays():
    x, w, t = of_head()
    loss = torch.compile(head, backend=backend, fullgraph=True)(x, w, t)
    held = loss.grad_fn.saved_tensors
    before = [v.detach().clone() for v in held]
    loss.backward()
    assert all(torch.equal(v, b) for v, b in zip(held, before, strict=True))


def test_complex_tensors_that_are_kept():
    check(lambda x: torch.fft.rfft(x.tanh()).abs().sum(), torch.randn(12, 8))
    check(lambda x: (torch.polar(x.tanh(), x) * torch.polar(x, x.cos())).abs().sum(), torch.rand(12, 8))


@pytest.mark.parametrize("part", [lambda y: y, lambda y: y[:2], lambda y: y.view(-1), lambda y: y.detach()])
def test_what_the_caller_has_stays(part):
    """Results that are kept for backward, too, or share its memory."""

    def function(x: Any, w: Any) -> Any:
        y = torch.tanh(x @ w)
        return part(y), (y * torch.sigmoid(y)).sum()

    x, w, _ = of_head()
    y, total = torch.compile(function, backend=backend, fullgraph=True)(x, w)
    before = y.detach().clone()
    total.backward()
    assert torch.equal(y.detach(), before)


def test_what_hooks_have_stays(given_away):
    compiled = torch.compile(head, backend=backend, fullgraph=True)
    x, w, t = of_head()
    torch.autograd.grad(compiled(x, w, t), (x, w))
    assert given_away
    given_away.clear()
    held: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda v: held.append(v) or v, lambda v: v):
        loss = compiled(x, w, t)
    before = [v.detach().clone() for v in held]
    made = torch.autograd.grad(loss, (x, w))
    torch.testing.assert_close(made, torch.autograd.grad(head(x, w, t), (x, w)))
    assert not given_away
    assert all(torch.equal(v, b) for v, b in zip(held, before, strict=True))


def test_retained_graphs(given_away):
    x, w, t = of_head()
    with torch._functorch.config.patch(donated_buffer=False):
        loss = torch.compile(head, backend=backend, fullgraph=True)(x, w, t)
        first = torch.autograd.grad(loss, (x, w), retain_graph=True)
        again = torch.autograd.grad(loss, (x, w))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not given_away
    torch._dynamo.reset()
    compiled = torch.compile(head, backend=backend, fullgraph=True)
    torch.autograd.grad(compiled(x, w, t), (x, w))
    loss = compiled(x, w, t)
    with pytest.raises(RuntimeError, match="donated_buffer=False"):
        torch.autograd.grad(loss, (x, w), retain_graph=True)


def test_a_failure_behind_kernels_is_no_other_result(monkeypatch, given_away):
    compiled = torch.compile(head, backend=backend, fullgraph=True)
    x, w, t = of_head()
    loss = compiled(x, w, t)
    fused = Compiled._fused

    def fails(self: Any, function: Any, given: Any) -> Any:
        fused(self, function, given)
        raise MemoryError("none left")

    with monkeypatch.context() as context:
        context.setattr(Compiled, "_fused", fails)
        with pytest.raises(MemoryError, match="none left"):
            torch.autograd.grad(loss, (x, w))
    made = torch.autograd.grad(compiled(x, w, t), (x, w))
    torch.testing.assert_close(made, torch.autograd.grad(head(x, w, t), (x, w)))


@pytest.mark.parametrize("is_causal", [False, True])
def test_results_of_attention_are_not_copied(is_causal: bool) -> None:
    """They lie in the plan as torch's own do, with their heads behind the positions."""

    def f(x: Any) -> Any:
        q, k, v = (t.view(2, 96, 4, 16).transpose(1, 2) for t in x.split(64, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2).reshape(2, 96, 64) * 2

    x = torch.randn(2, 96, 192)
    check(f, x)
    compiled = torch.compile(f, backend=backend, fullgraph=True)
    leaf = x.requires_grad_()
    compiled(leaf).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiled:
        compiled(leaf).sum().backward()
    names = [e.name for e in profiled.events()]
    assert sum("scaled_dot_product" in n for n in names) >= 2
    copies = [e.input_shapes[0] for e in profiled.events() if e.name == "aten::copy_"]
    assert not [shape for shape in copies if len(shape) == 4]
