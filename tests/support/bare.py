"""What a wheel must do where there is nothing but NumPy: no compiler, no GPU. `python tests/support/bare.py`."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import kfusion as kf


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def in_threads(x):
    """One function by many threads at once, of several shapes: each traces, looks up and runs while others do."""
    fused = kf.fuse(lambda x, a: softmax(x * a))

    def once(i):
        part = x[: 1 + i % 7, : 16 + i % 5]
        np.testing.assert_allclose(fused(part, 1.5 + i % 3), softmax(part * (1.5 + i % 3)), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(kf.fuse(lambda x: x + i)(part), part + i, rtol=1e-6)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(once, range(400)))


def main() -> None:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # importing a module may have turned it on
    assert not (has_gil and "free-threading" in sys.version), "importing kfusion or NumPy turned the GIL on"
    x = np.random.default_rng(0).standard_normal((257, 1023), dtype=np.float32)
    fused = kf.fuse(softmax)
    np.testing.assert_allclose(fused(x), softmax(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(fused.unfused(x), softmax(x), rtol=1e-5, atol=1e-7)
    in_threads(x)
    w = np.ones((1023, 5), np.float32)
    gradient = kf.grad(lambda w, x: (x @ w).sum())(w, x)
    np.testing.assert_allclose(gradient, np.repeat(x.sum(0)[:, None], 5, 1), rtol=1e-3, atol=1e-3)
    plan = kf.plan(softmax, kf.spec((4096, 4096)), device="H200", executors="available")
    assert len(plan.groups) == 1, plan
    assert "__global__" in fused.source(x)
    try:
        kf.to_device(x)
    except kf.DeviceError:
        print("no GPU, and no crash")
    version = [sys.executable, "-m", "kfusion", "--version"]
    assert kf.__version__ in subprocess.run(version, check=True, capture_output=True, text=True).stdout
    print(f"kfusion {kf.__version__} on Python {sys.version.split()[0]} from {kf.__file__}: works")


if __name__ == "__main__":
    main()
