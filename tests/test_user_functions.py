"""The user's own torch.autograd.Function, checkpoints and hooks in traced functions: gradients are torch's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from sweeps import sweep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.autograd.function import once_differentiable  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def own(name: str, forward: Any, backward: Any, setup: Any = None) -> Any:
    """A function of the user's own; forward(ctx, ...), or forward(...) where setup(ctx, inputs, output) is given."""
    parts = {"forward": forward, "backward": backward} | ({"setup_context": setup} if setup else {})
    return type(name, (torch.autograd.Function,), {n: staticmethod(f) for n, f in parts.items()})


def saved(ctx: Any, values: tuple[Any, ...], result: Any, *without: Any) -> Any:
    """The result, with values saved for backward."""
    ctx.save_for_backward(*values)
    if without:
        ctx.mark_non_differentiable(*without)
    return result


def several(ctx, x, y, scale):
    ctx.scale = scale
    positive, signs = (x > 0).long(), torch.sign(x)
    return saved(ctx, (x, y), (x * y, positive, signs, x + scale * y), positive, signs)


def several_backward(ctx, g, positive, signs, h):
    x, y = ctx.saved_tensors
    assert positive.shape == signs.shape == g.shape
    gx = g * y + h if ctx.needs_input_grad[0] else None
    gy = g * x + ctx.scale * h if ctx.needs_input_grad[1] else None
    return gx, gy, None


def reversed_forward(ctx, x, scale=0.5):
    ctx.scale = scale
    return x.view_as(x)


def clipped_forward(ctx, x, low, high):
    ctx.bounds = low, high
    return x  # its very argument


def written_backward(ctx, g):
    made = g.clone()
    made[ctx.saved_tensors[0] < 0] = 0.25
    return made


def exp_of_numpy(ctx, x):
    y = torch.from_numpy(np.exp(x.detach().numpy()))
    return saved(ctx, (y,), (y, large := (y > 1).double()), large)


def times_saved(ctx, g, *_):
    return g * ctx.saved_tensors[0]


_EXP = lambda x: x.exp(), times_saved, lambda ctx, inputs, output: ctx.save_for_backward(output)
Rounded = own("Rounded", lambda ctx, x: torch.round(x), lambda ctx, g: g)
Reversed = own("Reversed", reversed_forward, lambda ctx, g: (-ctx.scale * g, None))
Clipped = own("Clipped", clipped_forward, lambda ctx, g: (g.clamp(*ctx.bounds), None, None))
Exp = own("Exp", *_EXP)
OnceExp = own("OnceExp", _EXP[0], once_differentiable(times_saved), _EXP[2])
Several = own("Several", several, several_backward)
# Whose gradient of the second is summed over the axes along which that is broadcast.
Added = own("Added", lambda ctx, x, b: (ctx.set_materialize_grads(False), x + b)[1], lambda ctx, g: (g, g))
Written = own("Written", lambda ctx, x: saved(ctx, (x,), x.clamp(min=0)), written_backward)
ExpOfNumPy = own("ExpOfNumPy", exp_of_numpy, times_saved)  # which no trace sees into
InPlace = own("InPlace", lambda ctx, x: (ctx.mark_dirty(x), x.mul_(2))[1], lambda ctx, g: 2 * g)

rounded = Rounded.apply  # as models name it
# Beside those of random programs (support/programs/user_functions.py).
FUNCTIONS: list[Callable[..., Any]] = [
    lambda x, w: x * rounded(w),
    lambda x, w: Reversed.apply(x * w) ** 2,
    lambda x, w: (Exp.apply(x) * w).tanh(),
    lambda x, w: (OnceExp.apply(x) * w).tanh(),
    lambda x, w: next(y * (i + 1) + s + z for y, i, s, z in [Several.apply(x, w, 2.0)]),
    lambda x, w: Several.apply(x, w, 2.0)[0].sin(),
    lambda x, w: Several.apply(x, w, 2.0)[3].sin(),
    lambda x, w: Several.apply(x, w.detach(), 2.0)[0] * w,
    lambda x, w: Several.apply(x, x, 2.0)[0] * w,
    lambda x, w: Added.apply(x, w[:1]) * w,
    lambda x, w: Written.apply(x * w) * w,
    lambda x, w: ExpOfNumPy.apply(x * w)[0] * w,
    lambda x, w: next(y * w + z for y, z in [ExpOfNumPy.apply(x * w)]),
    lambda x, w: InPlace.apply(x * w) * w,
    lambda x, w: Reversed.apply(Reversed.apply(x * w, 0.3) * 2, 0.5) * rounded(w),
    lambda x, w: next(y * w + y.cos() for y in [Reversed.apply(x, 2.0)]),
]


def drawn(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 5, dtype=torch.float64), torch.randn(rows, 5, dtype=torch.float64)


def differentiated(function: Callable[..., Any], *given: Any) -> list[Any]:
    """The result, and the gradients of its sine's sum."""
    leaves = [x.clone().requires_grad_() for x in given]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y.sin().sum(), leaves, materialize_grads=True)]


def test_gradients_are_torchs(some) -> None:
    def check(function: Callable[..., Any], eager: Callable[..., Any]) -> None:
        fused = kf.fuse(function)
        for rows in (4, 5, 6, 7):
            given = drawn(rows)
            want = differentiated(eager, *given)
            torch.testing.assert_close(differentiated(fused, *given), want)
            with torch.no_grad():
                torch.testing.assert_close(fused(*given), want[0])
            made = kf.value_and_grad(lambda x, w: fused(x, w).sin().sum(), (0, 1))(*given)
            torch.testing.assert_close([*made[1]], want[1:])
            y, pull = kf.vjp(fused, *given)
            torch.testing.assert_close([y, *pull(torch.cos(y))], want)

    # torch refuses what is written to afterwards, which was saved
    rows = [(lambda x, w: Exp.apply(x).mul_(w) + w, lambda x, w: Exp.apply(x) * w + w), *((f, f) for f in FUNCTIONS)]
    torch.manual_seed(0)
    sweep(check, some(rows, 6))


def test_results_of_calls_without_gradients() -> None:
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for function in (lambda x: ExpOfNumPy.apply(x * 2), kf.fuse(lambda x: ExpOfNumPy.apply(x * 2))):
        assert [y.requires_grad for y in function(x)] == [True, False]


def test_kernels_hold_what_is_traced() -> None:
    """And torch's class is as it was."""
    before = "apply" in vars(torch.autograd.Function.__mro__[1])
    plan = kf.grad(lambda x: (Reversed.apply(torch.round(x), 0.5) * 2).sum()).plan(kf.spec((64, 64), like="torch"))
    assert len(plan.groups) == 1
    assert ("apply" in vars(torch.autograd.Function.__mro__[1])) is before is False


def test_gradients_of_gradients() -> None:
    x = drawn(3)[0]

    def penalty(function: Any, grad: Any) -> Callable[..., Any]:
        return lambda x: (grad(lambda z: (function.apply(z) ** 2).sum())(x) ** 2).sum()

    z = x.clone().requires_grad_()
    (g,) = torch.autograd.grad((Exp.apply(z) ** 2).sum(), z, create_graph=True)
    torch.testing.assert_close(kf.grad(penalty(Exp, kf.grad))(x), torch.autograd.grad((g**2).sum(), z)[0])
    with pytest.raises(kf.TraceError, match=r"OnceExp.backward is once_differentiable"):
        kf.grad(penalty(OnceExp, kf.grad))(x)


def late(ctx, x):
    y = x.mul_(2)
    ctx.mark_dirty(x)
    return y


def test_what_is_refused() -> None:
    def check(function: Any, message: str) -> None:
        with pytest.raises((kf.TraceError, RuntimeError), match=message):
            kf.fuse(function)(drawn(4)[0].requires_grad_())

    Late = own("Late", late, lambda ctx, g: 2 * g)
    wrong = own("WrongShape", lambda ctx, x: torch.round(x), lambda ctx, g: g[:1, :1])
    few = own("TooFew", several, lambda ctx, *g: g[0])
    sweep(
        check,
        [
            (lambda x: Late.apply(x * 1), "call mark_dirty first"),
            (lambda x: Late.apply(x * 1) * 2, "call mark_dirty first"),
            (wrong.apply, r"WrongShape.backward must give a gradient of shape \(4, 5\), got \(1, 1\)"),
            (lambda x: few.apply(x, x, 1.0)[0], r"TooFew.backward must give 3 gradients, got 1"),
        ],
    )


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
        found = []
        for f in (hooked, fused):
            seen.clear()
            found.append([*differentiated(f, *given), *seen])
        torch.testing.assert_close(*found)
    with torch.no_grad():
        torch.testing.assert_close(fused(*given), found[0][0])

    def late(x: Any) -> Any:
        y = x.sin()
        z = y * 2
        y.register_hook(doubled)
        return z + y

    with pytest.raises(kf.TraceError, match="a hook on a value that was read before"):
        kf.fuse(late)(given[0].clone().requires_grad_())


# ---- parametrizations, pairs of results, transforms ----


def require_trained(model: Any) -> None:
    """Gradients of the argument and all parameters are torch's, for several sizes."""
    fused = kf.fuse(model)
    for rows in (3, 4, 7):
        x = drawn(rows)[0].requires_grad_()
        wanted = [x, *model.parameters()]
        found, want = (torch.autograd.grad(f(x).sin().sum(), wanted) for f in (fused, model))
        torch.testing.assert_close(found, want)


def test_modules() -> None:
    class Quantized(nn.Linear):
        def forward(self, x: Any) -> Any:
            return nn.functional.linear(Clipped.apply(x, -1e-2, 1e-2), rounded(self.weight * 8) / 8, self.bias)

    torch.manual_seed(0)
    require_trained(nn.Sequential(Quantized(5, 6), nn.Tanh(), Quantized(6, 3)).double())
    for kind in ("matrix_exp", "cayley", "householder"):
        require_trained(nn.utils.parametrizations.orthogonal(nn.Linear(5, 5).double(), orthogonal_map=kind))


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


SEEN = {"calls": 0}


def counted_backward(ctx, g):
    SEEN["calls"] += 1
    return g * SEEN["calls"]


def test_what_backward_sets_is_refused() -> None:
    Counted = own("Counted", lambda ctx, x: x * 1, counted_backward)
    fused = kf.fuse(lambda x: Counted.apply(x).sin())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Counted\\.backward sets something beside its gradients"):
            fused(torch.randn(3, requires_grad=True))
    assert SEEN == {"calls": 0}
    x = torch.randn(3)
    torch.testing.assert_close(fused(x), x.sin())


def test_gradients_that_would_be_none_are_refused() -> None:
    def backward(ctx, g, h):
        return (0 if g is None else g) + (100 if h is None else 2 * h)

    two = own("Unmaterialized", lambda ctx, x: (ctx.set_materialize_grads(False), (x * 1, x * 2))[1], backward)
    x, fused = torch.randn(3, requires_grad=True), kf.fuse(lambda x: two.apply(x)[0] * 3)
    with pytest.raises(RuntimeError, match="Unmaterialized calls set_materialize_grads\\(False\\) and has 2 results"):
        fused(x)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), x * 3)


SCALE = 1.0


def scaled_by(scale):
    return scale + 1


def test_globals_of_backward_are_looked_at_in_each_call(monkeypatch):
    def setup(ctx, inputs, output):
        ctx.by = SCALE

    Scaled = own("Scaled", lambda x: x * 2, lambda ctx, g: g * ctx.by * scaled_by(SCALE), setup)
    fused = kf.fuse(lambda x: Scaled.apply(x) + 1)
    for scale in (1.0, 5.0, 1.0, 7.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        x = torch.arange(3.0, requires_grad=True)
        fused(x).sum().backward()
        assert x.grad.tolist() == [scale * (scale + 1)] * 3
