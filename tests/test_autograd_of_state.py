"""What a trained function sets beside its results, as a module its last activation, and gradients of later steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import kfusion as kf
from sweeps import sweep

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Keeping(nn.Module):
    """Keeps what `keep` puts into it or its dict."""

    def __init__(self, keep: Callable[[Any, Any], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 3).double()
        self.keep, self.held = keep, {}

    def forward(self, x: Any) -> Any:
        y = self.linear(x).relu()
        self.keep(self, y)
        return y * 2


class Recurrent(Keeping):
    """Computes with the state of the step before, which gradients do not reach."""

    def forward(self, x: Any) -> Any:
        before = self.held["y"].detach() if "y" in self.held else torch.zeros(2, 3, dtype=x.dtype)
        y = torch.tanh(self.linear(x) + before)
        self.held["y"] = y
        return y * before.cos()


KEEP: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": lambda module, y: setattr(module, "last", y),
    "loss": lambda module, y: setattr(module, "aux", y.pow(2).mean()),
    "dict": lambda module, y: module.held.__setitem__("y", y),
    "both": lambda module, y: (setattr(module, "last", y), module.held.__setitem__("y", y + 1)),
    "detached": lambda module, y: setattr(module, "last", y.detach()),
}


def steps(module: Any, function: Any, count: int = 4) -> list[Any]:
    found = []
    for n in range(count):
        x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).requires_grad_()
        y = function(x)
        y.sum().backward()
        found += [y.detach(), x.grad, module.linear.weight.grad.clone()]
    return found


def test_steps_train_as_eagerly() -> None:
    def check(kind: Any, keep: str) -> None:
        eager, fused = kind(KEEP[keep]), kind(KEEP[keep])
        torch.testing.assert_close(steps(fused, kf.fuse(fused)), steps(eager, eager))

    sweep(check, [(Recurrent, "attribute"), *((Keeping, keep) for keep in KEEP)])


def test_the_loss_of_what_is_kept() -> None:
    found = []
    for fuse in (kf.fuse, lambda module: module):
        module = Keeping(KEEP["loss"])
        function = fuse(module)
        for n in range(3):
            x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
            (function(x).sum() + module.aux).backward()
        found.append(module.linear.weight.grad)
    torch.testing.assert_close(*found)


def test_no_graph_holds_those_of_calls_before() -> None:
    module = Keeping(KEEP["attribute"])
    fused = kf.fuse(module)
    found = []
    for _ in range(6):
        fused(torch.randn(2, 3, dtype=torch.float64))
        found.append(weakref.ref(module.last.grad_fn))
    assert [known() is not None for known in found] == [False] * 5 + [True]


def test_a_state_that_gradients_reach_is_linked() -> None:
    def function(state: dict[str, Any], x: Any) -> Any:
        state["y"] = state["y"] * x
        return state["y"] + 1

    found = []
    for call in (kf.fuse(function), function):
        start, x = (torch.arange(1.0, 4).double().requires_grad_() for _ in range(2))
        state = {"y": start}
        for _ in range(3):
            y = call(state, x)
        y.sum().backward()
        found.append((start.grad, x.grad))
    torch.testing.assert_close(*found)


class Config:
    """Its class looks attributes up in a dict, and raises what that does."""

    def __init__(self, **known: Any) -> None:
        self.known = known

    def __getattr__(self, name: str) -> Any:
        return vars(self)["known"][name]


def test_objects_without_values_are_themselves() -> None:
    config, log = Config(scale=2.0, table=torch.ones(3)), []

    def function(x: Any, held: dict[str, Any]) -> Any:
        log.append(config)
        held["config"] = (config, 1)
        return x * config.scale + config.table, {"config": config}

    fused = kf.fuse(function)
    for n in range(1, 4):
        held: dict[str, Any] = {}
        x = torch.randn(3, requires_grad=True)
        y, found = fused(x, held)
        assert all(v is config for v in (found["config"], held["config"][0], *log))
        assert len(log) == n
        y.sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


PULLED = [
    "c.n += 1; return x * c.n",
    "c.n, d['n'] = c.n + 2, d.get('n', 1) * 3; return x * (c.n + d['n'])",
    "c.h = x * 2 if c.h is None else c.h + x.detach().cos(); return c.h * x",
    "d.setdefault('l', []).append(x.detach()); return x * len(d['l']) * sum(d['l'])",
    "y = x * 3 if c.h is None else x * 5\n    c.h = 1\n    return y",
]


def test_gradients_are_of_the_state_that_the_forward_pass_has_read() -> None:
    class Counted:
        n, h = 0, None

    def check(body: str) -> None:
        found: list[list[Any]] = [[], []]
        for pulls in (True, False):
            scope: dict[str, Any] = {"c": Counted(), "d": {}}
            exec(f"def f(x):\n    {body}\n", scope)
            for n in range(1, 5):
                x = torch.arange(1.0, 1 + n).double()
                scope["c"].h = None if "detach" in body else scope["c"].h
                scope["d"].pop("l", None)
                if pulls:
                    y, pull = kf.vjp(scope["f"], x)
                    states = [str([vars(scope["c"]), scope["d"]])]
                    gradients = [pull(torch.ones_like(y))[0] for _ in range(2)]
                    assert [str([vars(scope["c"]), scope["d"]])] == states
                    torch.testing.assert_close(*gradients)
                else:
                    y = scope["f"](x.requires_grad_())
                    gradients = torch.autograd.grad(y.sum(), x)
                found[pulls] += [y.detach(), gradients[0], scope["c"].n]
        torch.testing.assert_close(*found)

    sweep(check, [(body,) for body in PULLED])


WHERE = {  # where a number is: what makes it, how it is read, and the function's first argument
    "attribute": ("c = Held()\nc.n = 0", "c.n", "c"),
    "class": ("Held.n = 0\nc = Held()", "c.n", "c"),
    "beside a tensor": ("c = Held()\nc.n, c.w = 0, torch.ones(4).requires_grad_()", "c.n", "c"),
    "nested": ("c = Held()\nc.d = {'l': [0]}", "c.d['l'][0]", "c"),
    "in a tuple": ("a = Held()\na.n = 0\nc = (a, 1)", "c[0].n", "c"),
    "entry": ("c = {'n': 0}", "c['n']", "c"),
    "item": ("c = [0]", "c[0]", "c"),
    "named attribute": ("c = Held()\nc.n = 0", "c.n", ""),
    "named item": ("c = [0]", "c[0]", ""),
    "module": ("c = torch.nn.Identity()\nc.n = 0", "c.n", ""),
    "global": ("n = 0", "n", ""),
    "closure": ("", "n", ""),
}
USES = [
    "(x * x)[{n} % 3 :]",
    "(x * x).sum({n} % 2)",
    "x * x * ({n} + 1)",
    "torch.where(torch.arange(4) < {n} % 4, x * x, x)",
    "(x * x)[{n} % 3]",
    "repeated(x, {n} % 4)",
    "(x * x).transpose(0, {n} % 2) * x",
]
WHEN = ["{n} += 1; y = {use}; return y", "y = {use}; {n} += 1; return y", "y = {use}; return y"]


def repeated(x: Any, count: int) -> Any:
    for _ in range(count):
        x = x.sin() * x
    return x


def counting(where: str, use: str, when: str) -> tuple[Any, Any, list[Any]]:
    """Such a function, what else changes the number between its calls, and the first argument, if there is one."""
    setup, n, argument = WHERE[where]
    kind = {"global": "global n; ", "closure": "nonlocal n; "}.get(where, "")
    body = when.format(n=n, use=("c.w * " * ("c.w" in setup) + use).format(n=n))
    functions = f"def f({'c, ' if argument else ''}x): {kind}{body}\ndef count(): {kind}{n} += 1"
    if where == "closure":
        functions = (
            "\n ".join(["def made():", "n = 0", *functions.split("\n"), "return f, count"]) + "\nf, count = made()"
        )
    scope: dict[str, Any] = {"torch": torch, "Held": type("Held", (), {}), "repeated": repeated, "c": None}
    exec(f"{setup}\n{functions}", scope)
    return scope["f"], scope["count"] if when == WHEN[-1] else lambda: None, [scope["c"]] * bool(argument)


def test_backward_passes_read_what_their_calls_have_read() -> None:
    def gradients(kind: str, where: str, use: str, when: str) -> list[Any]:
        f, count, first = counting(where, use, when)
        f = kf.fuse(f) if kind == "fused" else f
        calls: list[Any] = []
        for n in range(3):
            x = torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
            if kind == "pulled":
                calls.append(kf.vjp(lambda x: f(*first, x), x))
            else:
                y = f(*first, x.requires_grad_())
                calls.append((y.detach(), partial(torch.autograd.grad, y, x, retain_graph=True)))
            count()
        return [v for y, pull in (*calls, *calls[::-1]) for v in (y.detach(), *pull(torch.cos(y.detach())))]

    def check(kind: str, *program: str) -> None:
        torch.testing.assert_close(gradients(kind, *program), gradients("eager", *program))

    programs = [(where, when) for where in WHERE for when in WHEN]
    rows = ((where, USES[i % len(USES)], when) for i, (where, when) in enumerate(programs))
    sweep(check, ((("fused", "pulled")[kind], *row) for row in rows for kind in range(2)))


class Held:
    """Holds tensors, a number and whatever it is given."""

    def __init__(self, **held: Any) -> None:
        self.n, self.w = 0, torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_()
        vars(self).update(held)

    def count(self, x: Any) -> Any:
        self.n += 1
        return (x * self.w).sin() * self.n

    def keep(self, x: Any) -> Any:
        self.y = (x * self.w).sin()
        return self.y * 2

    def other(self, other: Any, x: Any) -> Any:
        other.n += self.n + 1
        return other.w.exp() * x * self.w * other.n


OBJECTS: dict[str, Callable[[Any, Any], Any]] = {
    "an attribute": lambda o, x: (x * o.w[:]).sin(),
    "nothing of it": lambda o, x: x.sin() * o.n,
    "an object in a list in it": lambda o, x: (x * o.inner[0].w).sin() + o.w,
    "a list to which it appends": lambda o, x: (o.inner.append((x * o.w).cos()), o.inner[-1] * 2)[1],
    "itself": lambda o, x: (x * o.me.w).sin() * o.w,
    "an attribute that it sets": Held.keep,
    "a counter": Held.count,
    "methods of it": lambda o, x: o.count(x) + o.keep(x) + o.other(o.inner[0], x),
}


def test_objects_among_the_arguments() -> None:
    def check(_: str, function: Callable[[Any, Any], Any]) -> None:
        class Own(Held):
            method = kf.fuse(function)

        found = []
        for call, kind in ((function, Held), (kf.fuse(function), Held), (Own.method, Own)):
            held = kind(inner=[Held()])
            held.me = held
            found.append([])
            for n in range(3):
                x = torch.arange(3, dtype=torch.float64).requires_grad_()
                y = call(held, x) * n
                y.sum().backward(retain_graph=True)
                assert type(held.n) is int
                tensors = [
                    y.detach(),
                    x.grad,
                    *(t.clone() for t in (held.w.grad, held.inner[0].w.grad) if t is not None),
                ]
                found[-1] += [*tensors, torch.tensor([held.n, held.inner[0].n, len(held.inner)])]
        for others in found[1:]:
            assert all(torch.allclose(a, b) for a, b in zip(found[0], others, strict=True))

    sweep(check, OBJECTS.items())
