"""ReLU + LayerNorm as the CuPy experiment that this project began with has it: array calls, and one kernel by hand.

Written anew from its description. The one kernel gives each row a block of threads, which reads the row three times
(the mean, the squared distances from it, the result) and adds up in trees through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy as cp
import numpy as np

_EPS = 1e-5
_THREADS = 256

_KERNEL = r"""
extern "C" __global__ void relu_layernorm_rows(const float* x, float* y, long long cols, float eps) {
  __shared__ float parts[256];
  const float* row = x + blockIdx.x * cols;
  float mean = 0, var = 0;
  for (int step = 0; step < 2; ++step) {
    float sum = 0;
    for (long long i = threadIdx.x; i < cols; i += blockDim.x) {
      const float r = row[i] > 0 ? row[i] : 0;
      sum += step == 0 ? r : (r - mean) * (r - mean);
    }
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
      if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
      __syncthreads();
    }
    (step == 0 ? mean : var) = parts[0] / cols;
    __syncthreads();
  }
  const float scale = 1 / sqrtf(var + eps);
  for (long long i = threadIdx.x; i < cols; i += blockDim.x) {
    const float r = row[i] > 0 ? row[i] : 0;
    y[blockIdx.x * cols + i] = (r - mean) * scale;
  }
}
"""


def unfused(name: str) -> Callable[..., Any]:
    """One call of CuPy after the other: relu, mean, var, centre, scale."""
    _require(name)

    def run(x: Any) -> Any:
        r = cp.maximum(x, 0)
        mean = cp.mean(r, axis=-1, keepdims=True)
        var = cp.var(r, axis=-1, keepdims=True)
        centred = r - mean
        return centred / cp.sqrt(var + np.float32(_EPS))

    return run


def fused(name: str) -> Callable[..., Any]:
    """One kernel, a block of threads to a row."""
    _require(name)
    kernel = cp.RawKernel(_KERNEL, "relu_layernorm_rows")

    def run(x: Any) -> Any:
        if x.dtype != np.float32 or not x.flags.c_contiguous:
            raise TypeError("this kernel takes contiguous float32 only")
        y = cp.empty_like(x)
        kernel((x.shape[0],), (_THREADS,), (x, y, np.int64(x.shape[1]), np.float32(_EPS)))
        return y

    return run


def _require(name: str) -> None:
    if name != "relu_layernorm":
        raise TypeError("the experiment has ReLU + LayerNorm only")
