"""Runs every GPU kernel once on small arrays, for tools that watch each access (compute-sanitizer); see .ci/gpu."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np

import kfusion as kf
import reference

# Part of a warp, a warp, a block, a cluster and chunks of a cluster; whole slots of 16 bytes and not.
WIDTHS = (1, 8, 33, 64, 256, 1000, 1024, 1023, 4096, 9000, 40000, 131072, 600_000)


def main() -> None:
    rng = np.random.default_rng()
    for dtype, cols, rows in itertools.product(
        (np.float16, ml_dtypes.bfloat16, np.float32, np.float64), WIDTHS, (1, 3)
    ):
        x = rng.standard_normal((rows, cols)).astype(dtype)
        p = rng.standard_normal(cols).astype(dtype)
        for parameters in ((), (p, p.astype(np.float32))):
            want = reference.relu_layernorm(x, *parameters)
            for f in (kf.fused_relu_layernorm, kf.unfused_relu_layernorm):
                got = f(kf.to_device(x), *(kf.to_device(a) for a in parameters)).numpy().astype(np.float64)
                error = np.abs(got - want).max()
                assert error <= 100 * float(ml_dtypes.finfo(dtype).eps), (f.__name__, dtype, x.shape, error)
    print("every kernel ran")


if __name__ == "__main__":
    main()
