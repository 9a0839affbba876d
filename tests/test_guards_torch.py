"""Settings of torch's that a function asks for, and elements of arrays that it looks at, as `test_guards`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import kfusion as kf
from kfusion._graph.source import TraceError
from state_reads import Case, cases, differs
from tracing import Traces

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.native

_ASKED = {
    "torch.is_grad_enabled()": ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
    "torch.get_default_dtype() is torch.float64": (
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_dtype(torch.float32)",
    ),
    "torch.get_default_device().type == 'meta'": (
        "torch.set_default_device('meta')",
        "torch.set_default_device('cpu')",
    ),
    "torch.are_deterministic_algorithms_enabled()": (
        "torch.use_deterministic_algorithms(True)",
        "torch.use_deterministic_algorithms(False)",
    ),
    "torch.is_deterministic_algorithms_warn_only_enabled()": (
        "torch.use_deterministic_algorithms(True, warn_only=True)",
        "torch.use_deterministic_algorithms(False)",
    ),
    "torch.get_deterministic_debug_mode()": (
        "torch.set_deterministic_debug_mode(1)",
        "torch.set_deterministic_debug_mode(0)",
    ),
    "torch.get_float32_matmul_precision() == 'high'": (
        "torch.set_float32_matmul_precision('high')",
        "torch.set_float32_matmul_precision('highest')",
    ),
    "torch.get_num_threads() == 1": (
        "n = torch.get_num_threads(); torch.set_num_threads(1)",
        "torch.set_num_threads(n)",
    ),
    "torch.is_autocast_enabled('cpu')": (
        "torch.set_autocast_enabled('cpu', True)",
        "torch.set_autocast_enabled('cpu', False)",
    ),
    "torch.is_autocast_cpu_enabled()": (
        "torch.set_autocast_enabled('cpu', True)",
        "torch.set_autocast_enabled('cpu', False)",
    ),
    "torch.get_autocast_dtype('cpu') is torch.float16": (
        "torch.set_autocast_enabled('cpu', True); torch.set_autocast_dtype('cpu', torch.float16)",
        "torch.set_autocast_enabled('cpu', False); torch.set_autocast_dtype('cpu', torch.bfloat16)",
    ),
    "torch.is_anomaly_enabled()": (
        "torch.autograd.set_detect_anomaly(True)",
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "torch.is_warn_always_enabled()": ("torch.set_warn_always(True)", "torch.set_warn_always(False)"),
    "torch.backends.cudnn.enabled": ("torch.backends.cudnn.enabled = False", "torch.backends.cudnn.enabled = True"),
    "torch.backends.cudnn.benchmark": (
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cudnn.benchmark = False",
    ),
    "torch.backends.cudnn.deterministic": (
        "torch.backends.cudnn.deterministic = True",
        "torch.backends.cudnn.deterministic = False",
    ),
    "torch.backends.mkldnn.enabled": ("torch.backends.mkldnn.enabled = False", "torch.backends.mkldnn.enabled = True"),
    "torch.backends.cuda.matmul.allow_tf32": (
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cuda.matmul.allow_tf32 = False",
    ),
    "torch.backends.cuda.flash_sdp_enabled()": (
        "torch.backends.cuda.enable_flash_sdp(False)",
        "torch.backends.cuda.enable_flash_sdp(True)",
    ),
    "torch.backends.mha.get_fastpath_enabled()": (
        "torch.backends.mha.set_fastpath_enabled(False)",
        "torch.backends.mha.set_fastpath_enabled(True)",
    ),
    "torch.initial_seed() == 5": ("torch.manual_seed(5)", "torch.manual_seed(6)"),
    "b.enabled": ("b.enabled = False", "b.enabled = True"),
    "cudnn.enabled": ("cudnn.enabled = False", "cudnn.enabled = True"),
    "is_grad_enabled()": ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
    "ask()": ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
    "c.ask()": ("torch.set_grad_enabled(False)", "torch.set_grad_enabled(True)"),
}
_NAMES = (
    "import torch\nfrom torch import is_grad_enabled\nask = torch.is_grad_enabled\nb = torch.backends.cudnn\n"
    "from torch.backends import cudnn\nclass C: pass\nc = C(); c.ask = ask\n"
)


def _case(before: str, body: str, *changes: str) -> Case:
    lines = body.splitlines()
    return Case("\n".join([before, "def f(x):", *(f"    {line}" for line in lines)]) + "\n", changes)


ASKED = {ask: _case(_NAMES, f"return x * 2 if {ask} else x", *changes) for ask, changes in _ASKED.items()}
ASKED["a tensor that is made of a dtype"] = _case(
    _NAMES, "return x * torch.ones(3).to(torch.float32)", *_ASKED["torch.get_default_dtype() is torch.float64"]
)


def _looks(before: str, *changes: str) -> dict[str, Case]:
    bodies = {
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
        "sum": "return x * 2 if t.sum() > len(t) * 1.5 else x - t[:3]",
        "count": "return x * int((t > 2).sum()) + t[:3]",
        "selected": "return x * t[t > 2].shape[0] + t[:3]",
        "range": "for _ in range(int(t[0])):\n    x = x + t[:3]\nreturn x",
        "iteration": "for v in t[:2]:\n    if v > 1.5: x = x * 2\nreturn x + t[:3]",
        "contains": "return x * 2 if 3 in t else x + t[:3]",
        "text": "return x * len(str(float(t[0]) + 8)) + t[:3]",
        "by a function": "return x * g(t) + t[:3]",
        "by an object": "return x * c.get() + t[:3]",
        "in a branch": "if len(x) > 2:\n    return x * 2 if t[0] > 1.5 else x\nreturn x * t[:3]",
        "another": "u = t\nreturn x * 2 + t[:3] if u[0] > 1.5 else x - t[:3]",
        "an operand twice": "for v in (1, x):\n    s = v * t[:3]\n    if v is not x and s[0] > 1: s = s * 3\nreturn s",
    }
    defs = "def g(t): return 3 if t[0] > 1.5 else 2\nclass C:\n    def get(self): return g(self.t)\nc = C(); c.t = t"
    return {name: _case(f"{before}\n{defs}", body, *changes) for name, body in bodies.items()}


_FILLS = ("t[:] = 3.0", "t[:] = 1.0", "t[0] = 2.0", "t[1] = 2.0; t[2] = 2.0")
LOOKED_AT = {
    f"{kind}: {name}": case
    for kind, before, changes in (
        ("NumPy", "t = np.ones(3)", _FILLS),
        ("NumPy, 5,000", "t = np.ones(5000)", _FILLS),
        ("NumPy, float32 of two axes", "t = np.ones((30, 3), np.float32)[:, 0]", _FILLS),
        ("torch", "import torch\nt = torch.ones(3)", _FILLS),
        ("torch, 5,000", "import torch\nt = torch.ones(5000)", _FILLS),
        ("torch by .data", "import torch\nt = torch.ones(3)", tuple(f.replace("t[", "t.data[") for f in _FILLS)),
        ("torch by .numpy()", "import torch\nt = torch.ones(3)", tuple(f.replace("t[", "t.numpy()[") for f in _FILLS)),
        (
            "torch, 5,000, by .data",
            "import torch\nt = torch.ones(5000)",
            tuple(f.replace("t[", "t.data[") for f in _FILLS),
        ),
    )
    for name, case in _looks(before, *changes).items()
}

X = [1.5, -2.0, 0.25]


@pytest.fixture(autouse=True)
def settings_as_before():
    """Both programs change a setting, one after the other: what the second one finds is not what was there."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_default_device(None)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", ASKED)
def test_settings(name, monkeypatch):
    # torch's own tests, which other tests of the process import, forbid to set some of them.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    assert not differs(ASKED[name], torch.tensor(X))


@pytest.mark.parametrize("name", LOOKED_AT)
def test_elements(name):
    assert not differs(LOOKED_AT[name], torch.tensor(X) if name.startswith("torch") else np.array(X))


@pytest.mark.parametrize("trains", [False, True])
def test_a_clock_around_what_draws(trains):
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


_OF_TORCH = cases("state_sets_torch.txt")


@pytest.mark.parametrize("name", _OF_TORCH)
def test_as_the_plain_function(name):
    threads = torch.get_num_threads()
    assert not differs(_OF_TORCH[name], torch.tensor([1.5, -2.0, 0.25]), torch=torch)
    torch.set_num_threads(threads)
