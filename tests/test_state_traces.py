"""How often functions that set something are traced: once for what they set, not in each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._fuse import FusedFunction
from stateful import described, module_of

pytestmark = pytest.mark.native


@pytest.fixture
def traced(monkeypatch):
    """The names of functions that are traced, as they are traced."""
    names: list[str] = []
    trace = FusedFunction._traced_as

    def noted(self, *args):
        names.append(self.__name__)
        return trace(self, *args)

    monkeypatch.setattr(FusedFunction, "_traced_as", noted)
    return names


def test_counters_are_no_reason_to_trace_again():
    module = module_of("c.n += 1; c.h = np.tanh(c.h + x); return c.h * c.n")
    fused = kf.fuse(module.f)
    module.c.h = np.zeros(3)
    for n in range(1, 8):
        fused(np.ones(3))
        assert module.c.n == n
    assert fused._cached() == 1


CACHES = {
    "a mask": "c.last = np.arange(3.0) if c.last is None else c.last; return x * c.last + np.ones(3)",
    "a table": "c.named.setdefault(x.shape, [np.arange(3.0), 2]); return x * c.named[x.shape][0]",
    "a flag": "c.last = 'warned'; return x * 2, 'a', 1.5",
    "a set": "seen.add(x.shape); return x * 2",
    "beside a call of the library": "c.last = c.last or 1; return np.partition(x, c.last) * 2",
    "beside a number": "c.last = c.last or 1; return x * a",
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_cost_one_trace(name):
    module = module_of(CACHES[name])
    exec(f"seen = set()\ndef f(x, a):\n    {CACHES[name]}\n", vars(module))
    fused = kf.fuse(module.f)
    for a in (0.5, 1.5, 2.5):
        x = np.linspace(-a, a, 3)
        assert described(fused(x, a)) == described(module.f(x, a))
    assert fused._cached() == 1
    assert not fused._places.are_known


# Bodies of a module's `forward(self, x)`, which has `y` and returns its sum.
STEPS = {
    "a counter": "self.step += 1",
    "a counter that is read": "self.step += 1; y = y * (1.0 / self.step)",
    "two counters": "self.step, self.last = self.step + 2, self.step",
    "a counter in a dict": "self.cache['n'] = self.cache.get('n', 0) + 1; y = y * self.cache['n']",
    "a counter in a list": "self.counts[1] += 1; y = y * self.counts[1]",
    "a counter of an object": "self.inner.n += 1; y = y + self.inner.n",
    "a float": "self.rate = self.rate * 0.5; y = y * self.rate",
    "a mean": "self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()",
    "a mean of what is computed": "self.step += 1; self.mean = 0.9 * self.mean + y.mean().detach() / self.step",
    "an entry": "self.cache['y'] = y",
    "a log": "self.log.append(y.sum().detach())",
    "two logs": "self.log.append(y); self.cache.setdefault('log', []).extend([1, y.sum()]); self.log += [x]",
    "a log and a counter": "self.step += 1; self.log.append((self.step, y.sum() * self.step))",
    "a copy": "self.copy = 0.9 * self.copy + 0.1 * y.detach().mean(0) if hasattr(self, 'copy') else y.detach().mean(0)",
    "buffers": "self.buffer.mul_(0.9).add_(y.detach().mean(0), alpha=0.1); self.seen += 1",
    "buffers that are replaced": "self.buffer = 0.9 * self.buffer + y.detach().mean(0); self.seen = self.seen + 1",
}


def stepping(body: str) -> Any:
    torch = pytest.importorskip("torch")

    class Inner:
        n = 0

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = torch.nn.Linear(4, 4).double()
            self.step, self.last, self.rate, self.mean = 0, 0, 2.0, torch.zeros((), dtype=torch.float64)
            self.cache, self.counts, self.inner, self.log = {}, [0, 0], Inner(), []
            self.register_buffer("buffer", torch.zeros(4, dtype=torch.float64))
            self.register_buffer("seen", torch.tensor(0))

    scope: dict[str, Any] = {"torch": torch}
    exec(f"def forward(self, x):\n    y = torch.tanh(self.linear(x))\n    {body}\n    return y.sum()\n", scope)
    Net.forward = scope["forward"]
    return Net()


def held_by(net: Any) -> Any:
    held = {n: v for n, v in vars(net).items() if not n.startswith("_") and n not in ("training", "inner")}
    return held | dict(net.named_buffers()) | {"n": net.inner.n}


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("name", STEPS)
def test_training_steps_are_not_traced_again(name, grad, traced):
    import torch

    eager, net = stepping(STEPS[name]), stepping(STEPS[name])
    fused = kf.fuse(net)
    for i, n in enumerate((3, 3, 3, 3, 3, 5, 5, 6, 7, 3)):
        if i in (3, 7):
            traced.clear()
        found = []
        for module, function in ((eager, eager), (net, fused)):
            x = torch.randn(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(i), requires_grad=grad)
            module.zero_grad()
            with torch.set_grad_enabled(grad):
                y = function(x)
            if grad:
                y.backward()
            found.append([y.detach(), x.grad, module.linear.weight.grad, held_by(module)])
        torch.testing.assert_close(found[1], found[0])
        if i in (4, 9):
            assert not traced


@pytest.mark.parametrize("body", ["d['n'] += 1; return x * d['n']", "d['in']['n'] += 1; d['l'][0] += 2; return x * 2"])
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: kf.value_and_grad(lambda x, d: f(x, d).sum())])
def test_counters_in_arguments_are_no_reason_to_trace_again(body, wrap, traced):
    scope: dict[str, Any] = {}
    exec(f"def f(x, d):\n    {body}\n", scope)
    fused = kf.fuse(wrap(scope["f"]))
    states = [{"n": 1, "in": {"n": 0}, "l": [0, 5], "size": 3} for _ in range(2)]
    for i in range(8):
        x = np.linspace(-1, 1, 5) + i
        fused(x, states[0])
        scope["f"](x, states[1])
        assert described(states[0]) == described(states[1])
        if i == 2:
            traced.clear()
    assert not traced


# What functions do with a list to which all calls append, and that is read in some.
READ = {
    "length": "y = y * len(h)",
    "length in a condition": "y = y * 2 if len(h) > 4 else y",
    "truth": "y = y if h else y * 2",
    "last": "y = y + h[-1].sum()",
    "slice": "y = y + sum(v.sum() for v in h[-2:])",
    "loop": "y = y + 0 * x\n    for v in h: y = y + v.sum()",
    "identity": "y = y * 2 if h[0] is x else y * 3",
    "in": "y = y * 2 if any(v is x for v in h) else y * 3",
    "stack": "y = y + np.stack([v[:2] for v in h]).sum()",
    "unpacked": "y = y + len([*h, 1])",
    "added": "y = y + len([1] + h)",
    "copied": "y = y + len(list(h)) + len(h.copy())",
    "popped": "y = y + h.pop(0).sum()",
    "emptied": "y = y + len(h); h.clear()",
    "heap": "import heapq; k = []; heapq.heappush(k, len(h)); y = y + k[0]",
    "sorted": "y = y + sorted(h, key=lambda v: v.shape)[0].sum()",
    "returned": "return y, h",
    "kept elsewhere": "d['h'] = h",
    "in a tuple": "d['h'] = (h, 1)",
    "given to another": "(lambda values: d.__setitem__('n', len(values)))(h)",
    "caught": "\n    try: y = y * len(h)\n    except BaseException: y = y * 0",
}
FIRST = ("", "if n > 2: ")  # always, or after two calls that only append; `n` is the number of the call


@pytest.mark.parametrize("where", ["global", "argument"])
@pytest.mark.parametrize(
    ("name", "first"), [(name, first) for name in READ for first in FIRST if not first or "\n" not in READ[name]]
)
def test_lists_that_are_read_are_whole(name, first, where):
    body = READ[name]
    found = []
    for fuse in (lambda f: f, kf.fuse):
        scope: dict[str, Any] = {"np": np, "h": [], "d": {}}
        parameters = "x, n, h" if where == "argument" else "x, n"
        text = f"def f({parameters}):\n    y = x * 2\n    h.append(x + 1)\n    {first}{body}\n    return y\n"
        exec(text, scope)
        f = fuse(scope["f"])
        for n in range(6):
            given = (scope["h"],) if where == "argument" else ()
            y = f(np.linspace(0, 1, 3) + n, n, *given)
            found.append(described([y, scope["h"], scope["d"]]))
    assert found[:6] == found[6:]


@pytest.mark.slow
def test_long_lists_cost_nothing(traced):
    scope: dict[str, Any] = {"h": [np.ones(3)] * 5000}
    exec("def f(x):\n    h.append(x * 2)\n    return x + 1\n", scope)
    fused = kf.fuse(scope["f"])
    for i in range(6):
        fused(np.full(3, float(i)))
        if i == 1:
            traced.clear()
    assert not traced
    assert [v[0] for v in scope["h"][5000:]] == [0, 2, 4, 6, 8, 10]
