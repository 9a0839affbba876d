"""The user's own torch.autograd.Function, checkpoints and hooks in traced functions: gradients are torch's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


class Rounded(torch.autograd.Function):
    """Straight through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=0.5):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.scale * g, None


class Clipped(torch.autograd.Function):
    """Gives its very argument."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.bounds = low, high
        return x

    @staticmethod
    def backward(ctx, g):
        return g.clamp(*ctx.bounds), None, None


class Exp(torch.autograd.Function):
    """With a context that is set up by another function, and the result saved."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class OnceExp(Exp):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, scale):
        ctx.save_for_backward(x, y)
        ctx.scale = scale
        positive, signs = (x > 0).long(), torch.sign(x)
        ctx.mark_non_differentiable(positive, signs)
        return x * y, positive, signs, x + scale * y

    @staticmethod
    def backward(ctx, g, positive, signs, h):
        x, y = ctx.saved_tensors
        assert positive.shape == signs.shape == g.shape
        gx = g * y + h if ctx.needs_input_grad[0] else None
        gy = g * x + ctx.scale * h if ctx.needs_input_grad[1] else None
        return gx, gy, None


class Added(torch.autograd.Function):
    """Whose gradient of the second is summed over the axes along which that is broadcast."""

    @staticmethod
    def forward(ctx, x, b):
        ctx.set_materialize_grads(False)
        return x + b

    @staticmethod
    def backward(ctx, g):
        return g, g


class Written(torch.autograd.Function):
    """Writes to what backward has made."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        made = g.clone()
        made[ctx.saved_tensors[0] < 0] = 0.25
        return made


class OfNumPy(torch.autograd.Function):
    """What no trace sees into."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        return g * torch.from_numpy(np.cos(ctx.saved_tensors[0].numpy()))


class ExpOfNumPy(torch.autograd.Function):
    """An exponential with its result saved, and another result beside it that has no gradients."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        large = (y > 1).double()
        ctx.mark_non_differentiable(large)
        return y, large

    @staticmethod
    def backward(ctx, g, _):
        return g * ctx.saved_tensors[0]


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


rounded = Rounded.apply  # as models name it
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "straight through": lambda x, w: rounded(x * 3) * w,
    "of a weight": lambda x, w: x * rounded(w),
    "of a weight's multiple": lambda x, w: x * Rounded.apply(w * 4),
    "reversal": lambda x, w: Reversed.apply(x * w, 0.3) ** 2,
    "default": lambda x, w: Reversed.apply(x * w) ** 2,
    "clipped": lambda x, w: Clipped.apply(x, -0.5, 0.5) * w,
    "setup_context": lambda x, w: (Exp.apply(x) * w).tanh(),
    "once_differentiable": lambda x, w: (OnceExp.apply(x) * w).tanh(),
    "several": lambda x, w: next(y * (i + 1) + s + z for y, i, s, z in [Several.apply(x, w, 2.0)]),
    "first of several": lambda x, w: Several.apply(x, w, 2.0)[0].sin(),
    "last of several": lambda x, w: Several.apply(x, w, 2.0)[3].sin(),
    "one argument of several": lambda x, w: Several.apply(x, w.detach(), 2.0)[0] * w,
    "same argument twice": lambda x, w: Several.apply(x, x, 2.0)[0] * w,
    "broadcast": lambda x, w: Added.apply(x, w[:1]) * w,
    "writes inside": lambda x, w: Written.apply(x * w) * w,
    "of NumPy": lambda x, w: OfNumPy.apply(x * w) * w,
    "of NumPy, saved": lambda x, w: ExpOfNumPy.apply(x * w)[0] * w,
    "of NumPy, of two": lambda x, w: next(y * w + z for y, z in [ExpOfNumPy.apply(x * w)]),
    "in place": lambda x, w: InPlace.apply(x * w) * w,
    "chain": lambda x, w: Reversed.apply(Reversed.apply(x * w, 0.3) * 2, 0.5) * rounded(w),
    "shared by others": lambda x, w: next(y * w + y.cos() for y in [Reversed.apply(x, 2.0)]),
    "written afterwards": lambda x, w: Exp.apply(x).mul_(w) + w,
}


def drawn(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 5, dtype=torch.float64), torch.randn(rows, 5, dtype=torch.float64)


def differentiated(function: Callable[..., Any], *given: Any) -> list[Any]:
    """The result, and the gradients of its sine's sum."""
    leaves = [x.clone().requires_grad_() for x in given]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), leaves, materialize_grads=True)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    fused = kf.fuse(function)
    if name == "written afterwards":  # torch refuses that: what is written to was saved
        function = lambda x, w: Exp.apply(x) * w + w  # noqa: E731
    for rows in (4, 5, 6, 7):
        given = drawn(rows)
        want = differentiated(function, *given)
        torch.testing.assert_close(differentiated(fused, *given), want)
        with torch.no_grad():
            torch.testing.assert_close(fused(*given), want[0])
        made = kf.value_and_grad(lambda x, w: fused(x, w).sin().sum(), (0, 1))(*given)
        torch.testing.assert_close([*made[1]], want[1:])
        y, pull = kf.vjp(fused, *given)
        torch.testing.assert_close([y, *pull(torch.cos(y))], want)


def test_results_of_calls_without_gradients() -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for function in (lambda x: ExpOfNumPy.apply(x * 2), kf.fuse(lambda x: ExpOfNumPy.apply(x * 2))):
        assert [y.requires_grad for y in function(x)] == [True, False]


def test_kernels_hold_what_is_traced() -> None:
    def loss(x: Any) -> Any:
        return (Reversed.apply(torch.round(x), 0.5) * 2).sum()

    plan = kf.grad(loss).plan(kf.spec((64, 64), "float32", like="torch"))
    assert len(plan.groups) == 1


def test_modules() -> None:
    class Quantized(nn.Linear):
        def forward(self, x: Any) -> Any:
            return nn.functional.linear(Clipped.apply(x, -1e-2, 1e-2), rounded(self.weight * 8) / 8, self.bias)

    torch.manual_seed(0)
    model = nn.Sequential(Quantized(5, 6), nn.Tanh(), Quantized(6, 3)).double()
    fused = kf.fuse(model)
    for rows in (4, 7):
        x = drawn(rows)[0].requires_grad_()
        wanted = [x, *model.parameters()]
        found, want = (torch.autograd.grad(f(x).sin().sum(), wanted) for f in (fused, model))
        torch.testing.assert_close(found, want)


def test_gradients_of_gradients() -> None:
    x = drawn(3)[0]

    def penalty(function: Any, grad: Any) -> Callable[..., Any]:
        return lambda x: (grad(lambda z: (function.apply(z) ** 2).sum())(x) ** 2).sum()

    z = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((Exp.apply(z) ** 2).sum(), z, create_graph=True)
    torch.testing.assert_close(kf.grad(penalty(Exp, kf.grad))(x), torch.autograd.grad((g**2).sum(), z)[0])
    with pytest.raises(kf.TraceError, match=r"OnceExp.backward is once_differentiable"):
        kf.grad(penalty(OnceExp, kf.grad))(x)


def test_gradients_of_gradients_of_the_librarys_functions() -> None:
    x = torch.randn(4, 4, dtype=torch.float64)
    for function in (torch.linalg.det, lambda x: (torch.cumsum(x, 0) ** 2).sum(), lambda x: torch.sort(x)[0].prod()):
        found = kf.grad(lambda x, f=function: (kf.grad(f)(x) ** 2).sum())(x)
        want = torch.func.grad(lambda x, f=function: (torch.func.grad(f)(x) ** 2).sum())(x)
        torch.testing.assert_close(found, want)


def test_what_is_refused() -> None:
    class Late(InPlace):
        @staticmethod
        def forward(ctx, x):
            y = x.mul_(2)
            ctx.mark_dirty(x)
            return y

    class WrongShape(Rounded):
        @staticmethod
        def backward(ctx, g):
            return g[:1, :1]

    class TooFew(Several):
        @staticmethod
        def backward(ctx, *g):
            return g[0]

    x = drawn(4)[0].requires_grad_()
    for function, message in [
        (lambda x: Late.apply(x * 1), "call mark_dirty first"),
        (lambda x: Late.apply(x * 1) * 2, "call mark_dirty first"),
        (WrongShape.apply, r"WrongShape.backward must give a gradient of shape \(4, 5\), got \(1, 1\)"),
        (lambda x: TooFew.apply(x, x, 1.0)[0], r"TooFew.backward must give 3 gradients, got 1"),
    ]:
        with pytest.raises((kf.TraceError, RuntimeError), match=message):
            kf.fuse(function)(x)


def test_apply_is_torchs_own_outside() -> None:
    before = "apply" in vars(torch.autograd.Function.__mro__[1])
    kf.fuse(FUNCTIONS["chain"])(*drawn(3))
    assert ("apply" in vars(torch.autograd.Function.__mro__[1])) is before is False


# ---- checkpoints ----


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints(use_reentrant: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5), nn.GELU())

        def forward(self, x: Any) -> Any:
            return checkpoint(self.inner, self.first(x), use_reentrant=use_reentrant) + x

    block = Block().double()
    fused = kf.fuse(block)
    for rows in (3, 4, 5):
        x = drawn(rows)[0].requires_grad_()
        found = []
        for f in (fused, block):
            block.zero_grad()
            x.grad = None
            f(x).sin().sum().backward()
            found.append([x.grad, *(p.grad for p in block.parameters())])
        torch.testing.assert_close(*found)


@pytest.mark.slow
def test_checkpoints_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, use_cache=False
    )
    for use_reentrant in (False, True):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = transformers.LlamaForCausalLM(config).train()
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        ids = torch.randint(0, 50, (2, 7))
        found = []
        for f in (kf.fuse(model), model):
            model.zero_grad()
            f(input_ids=ids, labels=ids).loss.backward()
            found.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-5)


def test_requires_grad_is_torchs() -> None:
    answers: list[Any] = []

    def asked(x: Any, w: Any) -> Any:
        y = (x * 2).requires_grad_(bool(x.requires_grad))
        values = (x, w, y, y * w, y.detach(), x > 0, x.sum().round().long())
        answers.append([v.requires_grad for v in values])
        return y * w

    for wanted in [(True, False), (False, True), (True, True), (False, False)]:
        given = [x.requires_grad_(r) for x, r in zip(drawn(3), wanted, strict=True)]
        answers.clear()
        asked(*given)
        kf.fuse(asked)(*given)
        assert answers[0] == answers[1]


# ---- hooks ----


def trained(model: Any, x: torch.Tensor, seen: list[Any]) -> list[Any]:
    """All gradients of a step, and what hooks have seen meanwhile."""
    seen.clear()
    given = x.clone().requires_grad_()
    model.zero_grad()
    model(given).square().sum().backward()
    return [given.grad, *(p.grad for p in model.parameters()), *seen]


def test_hooks_of_modules_run_in_each_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    fused, seen = kf.fuse(model), []
    of_all = nn.modules.module

    def halved(module: Any, given: Any, made: Any) -> Any:
        seen.append(made[0].clone())
        return tuple(None if g is None else g * 0.5 for g in given)

    def clipped(module: Any, made: Any) -> Any:
        seen.append(made[0].clone())
        return (made[0].clamp(-0.1, 0.1),)

    for register in (
        lambda: model[1].register_full_backward_hook(halved),
        lambda: model[2].register_full_backward_pre_hook(clipped),
        lambda: model.register_full_backward_hook(halved),
        lambda: of_all.register_module_full_backward_hook(halved),
        lambda: of_all.register_module_full_backward_pre_hook(clipped),
        lambda: of_all.register_module_forward_hook(lambda module, given, made: made * 2),
        lambda: of_all.register_module_forward_pre_hook(lambda module, given: (given[0] * 2,)),
    ):
        for handle in (register(), None):
            for rows in (3, 4, 3):
                x = drawn(rows)[0]
                want = trained(model, x, seen)
                torch.testing.assert_close(trained(fused, x, seen), want)
            if handle is not None:
                handle.remove()


def test_hooks_without_full_are_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model[0].register_backward_hook(lambda *_: None)
    with pytest.raises(kf.TraceError, match=r"x.grad_fn is not traced"):
        kf.fuse(model)(torch.ones(3, 5))


def test_hooks_of_tensors() -> None:
    seen: list[Any] = []

    def doubled(g: Any) -> Any:
        seen.append(g.clone())
        return g * 2

    def hooked(x: Any, w: Any) -> Any:
        y = (x * w).sin()
        if y.requires_grad:
            y.register_hook(doubled)
            y.register_hook(lambda g: None)
        return y * w + y

    fused, given = kf.fuse(hooked), drawn(4)
    for _ in range(2):
        want, theirs = differentiated(hooked, *given), list(seen)
        seen.clear()
        torch.testing.assert_close(differentiated(fused, *given), want)
        torch.testing.assert_close(seen, theirs)
        seen.clear()
    with torch.no_grad():
        torch.testing.assert_close(fused(*given), want[0])

    def late(x: Any) -> Any:
        y = x.sin()
        z = y * 2
        y.register_hook(doubled)
        return z + y

    with pytest.raises(kf.TraceError, match="a hook on a value that was read before"):
        kf.fuse(late)(given[0].clone().requires_grad_())


# ---- parametrizations, pairs of results, transforms ----


@pytest.mark.parametrize("orthogonal_map", ["matrix_exp", "cayley", "householder"])
def test_orthogonal_weights(orthogonal_map: str) -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(5, 5).double(), orthogonal_map=orthogonal_map)
    fused = kf.fuse(layer)
    for rows in (3, 4):
        x = drawn(rows)[0].requires_grad_()
        wanted = [x, *layer.parameters()]
        found, want = (torch.autograd.grad(f(x).sin().sum(), wanted) for f in (fused, layer))
        torch.testing.assert_close(found, want)


def test_both_results_of_an_extreme() -> None:
    for function in (lambda x: x.max(0, keepdim=True), lambda x: x.min(1), lambda x: torch.max(x, 1, True)):
        fused = kf.fuse(function)
        for rows in (3, 4, 5):
            x = drawn(rows)[0].requires_grad_()
            found, want = fused(x), function(x)
            torch.testing.assert_close(tuple(found), tuple(want))
            gradients = [torch.autograd.grad(y.values.sin().sum(), x)[0] for y in (found, want)]
            torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, for forward mode
@pytest.mark.parametrize("requires_grad", [False, True])
def test_transforms_of_torch_func_inside_are_refused(requires_grad: bool) -> None:
    x = drawn(3)[0].requires_grad_(requires_grad)
    f = torch.func
    for function in (
        f.grad(lambda x: x.sin().sum()),
        f.vmap(torch.sin),
        lambda x: f.vjp(torch.sin, x)[1](x),
        f.jacrev(torch.sin),
        lambda x: f.jvp(torch.sin, (x,), (x,)),
    ):
        with pytest.raises(kf.TraceError, match=r"torch.func's grad, vmap and others do not see into traced functions"):
            kf.fuse(function)(x)
    called = kf.fuse(lambda x: kf.call(f.vmap(torch.sin), x * 2, result=x))
    torch.testing.assert_close(called(x), torch.sin(x * 2))
    constant = kf.fuse(lambda x: x * f.grad(torch.sin)(torch.tensor(0.5, dtype=x.dtype)))
    torch.testing.assert_close(constant(x), x * math.cos(0.5))


def test_what_backward_sets_is_refused() -> None:
    seen = {"calls": 0}

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            seen["calls"] += 1
            return g * seen["calls"]

    fused = kf.fuse(lambda x: Counted.apply(x).sin())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Counted\\.backward sets something beside its gradients"):
            fused(torch.randn(3, requires_grad=True))
    assert seen == {"calls": 0}
    x = torch.randn(3)
    torch.testing.assert_close(fused(x), x.sin())


class Unmaterialized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(ctx, g, h):
        return (0 if g is None else g) + (100 if h is None else 2 * h)


def test_gradients_that_would_be_none_are_refused() -> None:
    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="Unmaterialized calls set_materialize_grads\\(False\\) and has 2 results"):
        kf.fuse(lambda x: Unmaterialized.apply(x)[0] * 3)(x)
    with torch.no_grad():
        torch.testing.assert_close(kf.fuse(lambda x: Unmaterialized.apply(x)[0] * 3)(x), x * 3)


SCALE = 1.0


class ScaledBackward(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.by = SCALE

    @staticmethod
    def backward(ctx, g):
        return g * ctx.by * scaled_by(SCALE)


def scaled_by(scale):
    return scale + 1


def test_globals_of_backward_are_looked_at_in_each_call(monkeypatch):
    fused = kf.fuse(lambda x: ScaledBackward.apply(x) + 1)
    for scale in (1.0, 5.0, 1.0, 7.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        x = torch.arange(3.0, requires_grad=True)
        fused(x).sum().backward()
        assert x.grad.tolist() == [scale * (scale + 1)] * 3
