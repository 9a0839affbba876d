"""How often functions that set something are traced: once for what they set, not in each call."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._fuse import FusedFunction
from stateful import described, module_of
from sweeps import sweep

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


CACHES = [
    "c.last = np.arange(3.0) if c.last is None else c.last; return x * c.last + np.ones(3)",
    "c.named.setdefault(x.shape, [np.arange(3.0), 2]); return x * c.named[x.shape][0]",
    "c.last = 'warned'; return x * 2, 'a', 1.5",
    "seen.add(x.shape); return x * 2",
    "c.last = c.last or 1; return np.partition(x, c.last) * 2",
    "c.last = c.last or 1; return x * a",
]


def test_caches_cost_one_trace():
    def check(body):
        module = module_of("pass")
        exec(f"seen = set()\ndef f(x, a):\n    {body}\n", vars(module))
        fused = kf.fuse(module.f)
        for a in (0.5, 1.5, 2.5):
            x = np.linspace(-a, a, 3)
            assert described(fused(x, a)) == described(module.f(x, a))
        assert fused._cached() == 1
        assert not fused._targets.are_known

    sweep(check, [(body,) for body in CACHES])


# Bodies of a module's `forward(self, x)`, which has `y` and returns its sum.
STEPS = [
    "self.step += 1",
    "self.step += 1; y = y * (1.0 / self.step)",
    "self.step, self.last = self.step + 2, self.step",
    "self.cache['n'] = self.cache.get('n', 0) + 1; y = y * self.cache['n']",
    "self.counts[1] += 1; y = y * self.counts[1]",
    "self.inner.n += 1; y = y + self.inner.n",
    "self.rate = self.rate * 0.5; y = y * self.rate",
    "self.mean = 0.9 * self.mean + 0.1 * x.mean().detach()",
    "self.step += 1; self.mean = 0.9 * self.mean + y.mean().detach() / self.step",
    "self.cache['y'] = y",
    "self.log.append(y.sum().detach())",
    "self.log.append(y); self.cache.setdefault('log', []).extend([1, y.sum()]); self.log += [x]",
    "self.step += 1; self.log.append((self.step, y.sum() * self.step))",
    "self.copy = 0.9 * self.copy + 0.1 * y.detach().mean(0) if hasattr(self, 'copy') else y.detach().mean(0)",
    "self.buffer.mul_(0.9).add_(y.detach().mean(0), alpha=0.1); self.seen += 1",
    "self.buffer = 0.9 * self.buffer + y.detach().mean(0); self.seen = self.seen + 1",
    "self.buffer += y.detach().mean(0)",
]


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


def test_training_steps_are_not_traced_again(traced, some):
    torch = pytest.importorskip("torch")

    def check(body, grad):
        eager, net = stepping(body), stepping(body)
        fused = kf.fuse(net)
        for i, n in enumerate((3, 3, 3, 3, 3, 5, 5, 6, 7, 3)):
            if i in (3, 7):
                traced.clear()
            found = []
            for module, function in ((eager, eager), (net, fused)):
                generator = torch.Generator().manual_seed(i)
                x = torch.randn(n, 4, dtype=torch.float64, generator=generator, requires_grad=grad)
                module.zero_grad()
                with torch.set_grad_enabled(grad):
                    y = function(x)
                if grad:
                    y.backward()
                found.append([y.detach(), x.grad, module.linear.weight.grad, held_by(module)])
            torch.testing.assert_close(found[1], found[0])
            if i in (4, 9):
                assert not traced

    sweep(check, some(itertools.product(STEPS, (True, False)), 6))


def test_counters_in_arguments_are_no_reason_to_trace_again(traced):
    def check(body, wrap):
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

    bodies = "d['n'] += 1; return x * d['n']", "d['in']['n'] += 1; d['l'][0] += 2; return x * 2"
    wraps = lambda f: f, lambda f: kf.value_and_grad(lambda x, d: f(x, d).sum())
    sweep(check, itertools.product(bodies, wraps))


# What functions do with a list to which all calls append, and that is read in some.
READ = [
    "y = y * len(h)",
    "y = y * 2 if len(h) > 4 else y",
    "y = y if h else y * 2",
    "y = y + h[-1].sum()",
    "y = y + sum(v.sum() for v in h[-2:])",
    "y = y + 0 * x\n    for v in h: y = y + v.sum()",
    "y = y * 2 if h[0] is x else y * 3",
    "y = y * 2 if any(v is x for v in h) else y * 3",
    "y = y + np.stack([v[:2] for v in h]).sum()",
    "y = y + len([*h, 1])",
    "y = y + len([1] + h)",
    "y = y + len(list(h)) + len(h.copy())",
    "y = y + h.pop(0).sum()",
    "y = y + len(h); h.clear()",
    "import heapq; k = []; heapq.heappush(k, len(h)); y = y + k[0]",
    "y = y + sorted(h, key=lambda v: v.shape)[0].sum()",
    "return y, h",
    "d['h'] = h",
    "d['h'] = (h, 1)",
    "(lambda values: d.__setitem__('n', len(values)))(h)",
    "\n    try: y = y * len(h)\n    except BaseException: y = y * 0",
]
FIRST = ("", "if n > 2: ")  # always, or after two calls that only append; `n` is the number of the call


def test_lists_that_are_read_are_whole(some):
    def check(body, first, parameters):
        found = []
        for fuse in (lambda f: f, kf.fuse):
            scope: dict[str, Any] = {"np": np, "h": [], "d": {}}
            text = f"def f({parameters}):\n    y = x * 2\n    h.append(x + 1)\n    {first}{body}\n    return y\n"
            exec(text, scope)
            f = fuse(scope["f"])
            for n in range(6):
                given = (scope["h"],) if parameters.endswith("h") else ()
                y = f(np.linspace(0, 1, 3) + n, n, *given)
                found.append(described([y, scope["h"], scope["d"]]))
        assert found[:6] == found[6:]

    rows = itertools.product(READ, FIRST, ("x, n", "x, n, h"))
    sweep(check, some([row for row in rows if not row[1] or "\n" not in row[0]], 16))


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
