"""The functions that are measured, each written once; a docstring's first line is its formula."""

from __future__ import annotations

from typing import Any

import kfusion as kf

# ---- rows: named kernels ----

relu_layernorm = kf.fused_relu_layernorm
layernorm = kf.fused_layernorm
rmsnorm = kf.fused_rmsnorm
softmax = kf.fused_softmax

# ---- products ----


def product_gelu(x: Any) -> Any:
    """gelu(x x), by tanh."""
    return kf.gelu(x @ x, approximate="tanh")


# ---- chains of the lesson ----


def five_ops(x: Any) -> Any:
    """sigmoid(relu((x + 1) 2) - 0.5)."""
    return kf.sigmoid(kf.relu((x + 1.0) * 2.0) - 0.5)


def five_ops_of_two(x: Any, y: Any) -> Any:
    """sigmoid(relu((x + y) 2) - 1)."""
    return kf.sigmoid(kf.relu((x + y) * 2.0) - 1.0)


def pointwise_chain(x: Any, w: Any, b: Any) -> Any:
    """relu(x w + b) 0.5."""
    return kf.relu(x * w + b) * 0.5


def mul_add_relu(x: Any, bias: Any) -> Any:
    """relu(2 x + bias)."""
    return kf.relu(x * 2 + bias)


def gelu(x: Any) -> Any:
    """gelu(x)."""
    return kf.gelu(x)


def add_transposed(x: Any, y: Any) -> Any:
    """x.T + y."""
    return kf.transpose(x) + y


# ---- chains for the CPU: from no arithmetic to much of it ----


def light(x: Any, y: Any) -> Any:
    """2x + 3y."""
    return 2 * x + 3 * y


def exp_chain(x: Any, y: Any) -> Any:
    """exp(x) y + 1."""
    return kf.exp(x) * y + 1


def tanh_chain(x: Any, y: Any) -> Any:
    """tanh(x) y."""
    return kf.tanh(x) * y


def gelu_chain(x: Any, y: Any, b: Any) -> Any:
    """gelu(x y + b)."""
    return kf.gelu(x * y + b)


def sine(x: Any) -> Any:
    """sin(x)."""
    return kf.sin(x)


def log_chain(x: Any, y: Any) -> Any:
    """log(relu(x + y) + 1)."""
    return kf.log(kf.relu(x + y) + 1)


def twenty_ops(x: Any, y: Any) -> Any:
    """x = x y + 0.1 k, for k = 0..9."""
    for k in range(10):
        x = x * y + 0.1 * k
    return x


# ---- reductions ----


def sum_rows(x: Any) -> Any:
    """sum over axis -1."""
    return x.sum(-1)


def sum_columns(x: Any) -> Any:
    """sum over axis 0."""
    return x.sum(0)


def sum_all(x: Any) -> Any:
    """sum of all."""
    return x.sum()


def max_rows(x: Any) -> Any:
    """max over axis -1."""
    return kf.max(x, -1)


def max_all(x: Any) -> Any:
    """max of all."""
    return kf.max(x)


def var_rows(x: Any) -> Any:
    """var over axis -1."""
    return kf.var(x, -1)


def var_columns(x: Any) -> Any:
    """var over axis 0."""
    return kf.var(x, 0)
