"""What a function reads and sets of Python's state, settings of torch's that it asks for, and elements of arrays that
it looks at: calls do what the plain function does, or an error says why they cannot.
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest

import kfusion as kf
from kfusion._graph.source import TraceError
from state_reads import Case, cases, differs
from sweeps import sweep
from tracing import Traces

pytestmark = pytest.mark.native

CASES = cases() | cases("state_sets.txt")
X = [1.5, -2.0, 0.25]


def require_same(name, case, x, **given):
    """Both programs change settings, one after the other."""
    kept = np.geterr()
    try:
        assert not differs(case, x, **given)
    finally:
        np.seterr(**kept)
        for module in ("kf_case", "kf_case_m"):
            sys.modules.pop(module, None)


def test_as_the_plain_function(some):
    known = [name for name in CASES if find_spec("pandas") or "pandas" not in CASES[name].text]
    sweep(require_same, [(name, CASES[name], np.array(X)) for name in some(known, 60)])


# ---- what an argument's class holds ----

_CLASS = """
k = 2.0
class C:
    scale, n, b = 1.0, 0, 0
    @property
    def asked(self): return k
    def made(self, x): return x * k
def sets(c, x):
    c.b += 1
    return x * c.scale * c.b
def sets_class(c, x):
    type(c).n += 1
    return x * c.n
"""
OF_CLASSES = [
    ("lambda c, x: x * c.scale", "C.scale = 3.0"),
    ("lambda c, x: x * c.asked", "k = 3.0"),
    ("lambda c, x: c.made(x)", "k = 3.0"),
    ("lambda c, x: c.made(x)", "C.made = lambda self, x: x * 10"),
    ("sets", "C.scale = 3.0"),
    ("sets_class", "C.n = 7"),
]


GIVEN = [(*case, given) for case in OF_CLASSES for given in ("c", "[c]")] + [(*OF_CLASSES[0], "C")]


@pytest.mark.parametrize(("function", "change", "given"), GIVEN)
def test_what_the_class_of_an_argument_holds(function, change, given):
    seen = []
    for fuse in (kf.fuse, lambda f: f):
        scope = {}
        exec(_CLASS, scope)
        exec(f"c = C(); f = {function}; g = lambda c, x: f(c[0] if isinstance(c, list) else c, x)", scope)
        call, argument, results = fuse(scope["g"]), eval(given, scope), []
        for text in ("", "", change, "", change.replace("3.0", "5.0")):
            exec(text, scope)
            results.append(call(argument, np.array(X)).tolist())
        seen.append((results, scope["C"].n))
    assert seen[0] == seen[1]


# ---- torch's settings ----

_NAMES = (
    "import torch\nfrom torch import is_grad_enabled\nask = torch.is_grad_enabled\nb = torch.backends.cudnn\n"
    "from torch.backends import cudnn\nclass C: pass\nc = C(); c.ask = ask\n"
)
_AUTOCAST = "torch.set_autocast_enabled('cpu', {})"
_AUTOCAST_TO = "torch.set_autocast_dtype('cpu', torch.{0}); torch.set_autocast_enabled('cpu', '{0}' == 'float16')"
# What is asked, what changes the answer, and by what.
ASKED = [
    *((a, "torch.set_grad_enabled({})", "False", "True") for a in ("is_grad_enabled()", "ask()", "c.ask()")),
    ("torch.get_default_dtype() is torch.float64", "torch.set_default_dtype(torch.{})", "float64", "float32"),
    ("x * torch.ones(3).to(torch.float32)", "torch.set_default_dtype(torch.{})", "float64", "float32"),
    ("torch.get_default_device().type == 'meta'", "torch.set_default_device('{}')", "meta", "cpu"),
    ("torch.are_deterministic_algorithms_enabled()", "torch.use_deterministic_algorithms({})", "True", "False"),
    (
        "torch.is_deterministic_algorithms_warn_only_enabled()",
        "torch.use_deterministic_algorithms({0}, warn_only={0})",
        "True",
        "False",
    ),
    ("torch.get_deterministic_debug_mode()", "torch.set_deterministic_debug_mode({})", "1", "0"),
    ("torch.get_float32_matmul_precision() == 'high'", "torch.set_float32_matmul_precision('{}')", "high", "highest"),
    ("torch.get_num_threads() == 1", "torch.set_num_threads({})", "1", "2"),
    ("torch.is_autocast_enabled('cpu')", _AUTOCAST, "True", "False"),
    ("torch.is_autocast_cpu_enabled()", _AUTOCAST, "True", "False"),
    ("torch.get_autocast_dtype('cpu') is torch.float16", _AUTOCAST_TO, "float16", "bfloat16"),
    ("torch.is_anomaly_enabled()", "torch.autograd.set_detect_anomaly({})", "True", "False"),
    ("torch.is_warn_always_enabled()", "torch.set_warn_always({})", "True", "False"),
    ("torch.backends.cuda.flash_sdp_enabled()", "torch.backends.cuda.enable_flash_sdp({})", "False", "True"),
    ("torch.backends.mha.get_fastpath_enabled()", "torch.backends.mha.set_fastpath_enabled({})", "False", "True"),
    ("torch.initial_seed() == 5", "torch.manual_seed({})", "5", "6"),
    *((f"{m}.enabled", f"{m}.enabled = {{}}", "False", "True") for m in ("b", "cudnn", "torch.backends.mkldnn")),
    *(
        (name, f"{name} = {{}}", "True", "False")
        for name in (
            "torch.backends.cudnn.benchmark",
            "torch.backends.cudnn.deterministic",
            "torch.backends.cuda.matmul.allow_tf32",
        )
    ),
]


def _case(before: str, body: str, *changes: str) -> Case:
    lines = body.splitlines()
    return Case("\n".join([before, "def f(x):", *(f"    {line}" for line in lines)]) + "\n", changes)


def test_settings(monkeypatch, some):
    torch = pytest.importorskip("torch")
    # torch's own tests, which other tests of the process import, forbid to set some of them.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    threads = torch.get_num_threads()

    def check(ask, change, *texts):
        try:
            body = f"return {ask}" if ask.startswith("x") else f"return x * 2 if {ask} else x"
            require_same(ask, _case(_NAMES, body, *map(change.format, texts)), torch.tensor(X))
        finally:
            torch.set_num_threads(threads)
            torch.set_default_device(None)
        assert not torch.is_autocast_enabled("cpu")

    sweep(check, some(ASKED, 8))


# ---- elements of arrays ----

BODIES = {
    "if": "return x * 2 if t[0] > 1.5 else x",
    "if and operand": "return x * t[0] if t[0] > 1.5 else x * t[1]",
    "if and whole operand": "y = x + t[:3]\nreturn y * 2 if t[0] > 1.5 else y",
    "operand before": "y = x * t[:3]\nif t[1] > 1.5: y = y + 1\nreturn y",
    "float": "return x * float(t[0])",
    "float and operand": "return x * t[:3] * float(t[0])",
    "int": "return x[: int(t[0])] * 1",
    "index": "return x[t[0] > 2 :] * 1",
    "item": "return x * t[2].item()",
    "item and operand": "return x * t[2].item() + t[:3]",
    "tolist": "return x * t.tolist()[0]",
    "all": "return x * 2 if (t[:3] > 1.5).all() else x - t[:3]",
    "any": "return x * 2 if (t > 2.5).any() else x - t[:3]",
    "max": "return x * t.max() + t[:3]",
    "sum": "return x * 2 if t.sum() > len(t) * 1.5 else x - t[:3]",
    "count": "return x * int((t > 2).sum()) + t[:3]",
    "selected": "return x * t[t > 2].shape[0] + t[:3]",
    "range": "for _ in range(int(t[0])):\n    x = x + t[:3]\nreturn x",
    "iteration": "for v in t[:2]:\n    if v > 1.5: x = x * 2\nreturn x + t[:3]",
    "contains": "return x * 2 if 3 in t else x + t[:3]",
    "text": "return x * len(str(float(t[0]) + 8)) + t[:3]",
    "reshaped": "return x.reshape(int(t[0]) | 1, -1) * 1",
    "computed": "return x * (t * 2).sum()",
    "by a function": "return x * g(t) + t[:3]",
    "by an object": "return x * c.get() + t[:3]",
    "in a branch": "if len(x) > 2:\n    return x * 2 if t[0] > 1.5 else x\nreturn x * t[:3]",
    "another": "u = t\nreturn x * 2 + t[:3] if u[0] > 1.5 else x - t[:3]",
    "an operand twice": "for v in (1, x):\n    s = v * t[:3]\n    if v is not x and s[0] > 1: s = s * 3\nreturn s",
}
OF_TORCH = {
    "copied": "u = torch.zeros(2)\nu.copy_(t[:2])\nreturn x * u.sum()",
    "narrow": "return torch.narrow(x, 0, t[0].long() - 1, 1) * 1",
    "nonzero": "return x * (t > 2).nonzero().shape[0]",
}
_DEFS = "def g(t): return 3 if t[0] > 1.5 else 2\nclass C:\n    def get(self): return g(self.t)\nc = C(); c.t = t"
# What makes the array, and what it is changed by.
ARRAYS = [
    ("t = np.ones(3)", "t"),
    ("t = np.ones(5000)", "t"),
    ("t = np.ones((30, 3), np.float32)[:, 0]", "t"),
    ("import torch\nt = torch.ones(3)", "t"),
    ("import torch\nt = torch.ones(5000)", "t"),
    ("import torch\nt = torch.ones(3)", "t.data"),
    ("import torch\nt = torch.ones(3)", "t.numpy()"),
    ("import torch\nt = torch.ones(5000)", "t.data"),
]
LOOKED_AT = [(n, made, by) for made, by in ARRAYS for n in (BODIES if made.startswith("t") else BODIES | OF_TORCH)]


def test_elements(some):
    torch = pytest.importorskip("torch")

    def check(name, made, by):
        fills = (f"{by}[:] = 3.0", f"{by}[:] = 1.0", f"{by}[0] = 2.0", f"{by}[1] = 2.0; {by}[2] = 2.0")
        case = _case(f"{made}\n{_DEFS}", (BODIES | OF_TORCH)[name], *fills)
        require_same(name, case, np.array(X) if made.startswith("t") else torch.tensor(X))

    sweep(check, some(LOOKED_AT, 50))


def test_a_buffer_that_decides():
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))
            self.register_buffer("scale", torch.tensor(1.0))

        def forward(self, x):
            return x * self.weight * 2 if self.scale > 1.5 else x * self.weight

    module, x = Scaled(), torch.randn(3)
    fused = kf.fuse(module)
    for value in (1.0, 3.0, 1.0, 2.0):
        module.load_state_dict({"weight": torch.randn(3), "scale": torch.tensor(value)})
        y = fused(x)
        torch.testing.assert_close(y, module(x))
        torch.testing.assert_close(torch.autograd.grad(y.sum(), module.weight)[0], x * 2 if value > 1.5 else x)


@pytest.mark.parametrize("trains", [False, True])
def test_a_clock_around_what_draws(trains):
    torch = pytest.importorskip("torch")
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train(trains)
    times = []

    def timed(x):
        start = time.perf_counter()
        y = layer(x)
        times.append(time.perf_counter() - start)
        return y

    def timed_alone(x):
        time.perf_counter()
        return layer(x)

    x = torch.randn(2, 4, 8)
    with pytest.raises(TraceError, match="time"):
        kf.fuse(timed)(x)
    y = kf.fuse(timed_alone)(x)
    assert trains or torch.allclose(y, layer(x), atol=1e-5)


def test_arrays_that_are_operands_alone_change_without_another_trace():
    class Layer:
        def __init__(self):
            self.w, self.b, self.none, self.traces = np.ones((4, 4)), np.ones(4), None, Traces()

        def __call__(self, x):
            self.traces()
            y = x.reshape(-1, self.w.shape[0]) @ self.w
            if self.none is not None:
                y = y + self.none
            return np.maximum(y, self.b) * 2

    layer, plain = Layer(), Layer()
    fused = kf.fuse(layer)
    for _ in range(4):
        x = np.random.default_rng().normal(size=(3, 4))
        np.testing.assert_allclose(fused(x), plain(x))
        for known in (layer, plain):
            known.w += 0.5
            known.b -= 0.5
    assert len(layer.traces) == 1


def test_a_size_among_the_arguments_is_no_number():
    torch = pytest.importorskip("torch")
    f = kf.fuse(lambda x, b: torch.nn.functional.layer_norm(x + b, b.shape))
    x, b = torch.randn(3, 5), torch.randn(5)
    torch.testing.assert_close(f(x, b), torch.nn.functional.layer_norm(x + b, b.shape))


def test_what_functions_do_with_torchs_objects(some):
    torch = pytest.importorskip("torch")
    known, threads = cases("state_sets_torch.txt"), torch.get_num_threads()
    try:
        sweep(
            lambda name: require_same(name, known[name], torch.tensor(X), torch=torch), [(n,) for n in some(known, 12)]
        )
    finally:
        torch.set_num_threads(threads)
