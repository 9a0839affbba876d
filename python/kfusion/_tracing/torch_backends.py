"""Where torch has several kernels for one function: which of them library calls ask for first."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

_HOPPER = 9  # compute capability of the first GPUs whose tensor cores cuDNN's attention feeds asynchronously


def chosen(function: Callable[..., Any], name: str, device: str) -> Callable[..., Any]:
    """`function`, or what calls it with its quickest kernel on such a device.

    Args:
        function: torch's.
        name: for people, "torch.scaled_dot_product_attention".
        device: "cpu" or "cuda:0".
    """
    is_attention = name == "torch.scaled_dot_product_attention" and device.startswith("cuda")
    return functools.partial(_attention, function) if is_attention and _prefers_cudnn(device) else function


@functools.cache
def _prefers_cudnn(device: str) -> bool:
    torch = sys.modules["torch"]
    return bool(torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] >= _HOPPER)


def _attention(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """With cuDNN's kernel where it takes the arguments (half types), else in torch's own order."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        return function(*args, **kwargs)
