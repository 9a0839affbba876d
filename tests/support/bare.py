"""What a wheel must do where there is nothing but NumPy: no compiler, no GPU. `python tests/support/bare.py`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import kfusion as kf


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def main() -> None:
    x = np.random.default_rng(0).standard_normal((257, 1023), dtype=np.float32)
    fused = kf.fuse(softmax)
    np.testing.assert_allclose(fused(x), softmax(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(fused.unfused(x), softmax(x), rtol=1e-5, atol=1e-7)
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
