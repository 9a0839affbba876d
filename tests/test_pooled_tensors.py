"""Large results on the CPU are tensors over recycled memory: as any other to their user, and never two at once."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

import kfusion as kf
from kfusion import _core

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.native

N = 2_000_003  # floats: 8 MB


@kf.fuse
def twice(x: Any) -> Any:
    return x * 2


@pytest.fixture
def x() -> Any:
    return torch.arange(N, dtype=torch.float32)


def test_memory_comes_again(x: Any) -> None:
    _core.empty_cache()
    y = twice(x)
    address = y.data_ptr()
    assert address % 64 == 0
    z = twice(x)
    assert z.data_ptr() != address
    torch.testing.assert_close(y, z, rtol=0, atol=0)
    del y
    assert twice(x).data_ptr() == address


def test_views_and_storages_hold_it(x: Any) -> None:
    for hold in (lambda y: y[5:], lambda y: y.untyped_storage(), lambda y: y.numpy(), lambda y: y.requires_grad_() * 1):
        y = twice(x)
        address, held = y.data_ptr(), hold(y)
        del y
        others = [twice(x) for _ in range(3)]
        if not isinstance(held, torch.Tensor) or held.data_ptr() == address + 20:
            assert all(o.data_ptr() != address for o in others)


def test_is_a_tensor_like_any_other(x: Any) -> None:
    y = twice(x)
    assert type(y) is torch.Tensor
    assert (y.is_contiguous(), y.is_leaf, y.requires_grad) == (True, True, False)
    assert (y.dtype, y.device.type) == (x.dtype, "cpu")
    y.add_(1)
    torch.testing.assert_close(y, x * 2 + 1, rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(y), y, rtol=0, atol=0)
    file = io.BytesIO()
    torch.save(y, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file), y, rtol=0, atol=0)
    shared = twice(x).share_memory_()
    assert shared.is_shared()
    torch.testing.assert_close(shared, x * 2, rtol=0, atol=0)
    assert y.resize_(10).shape == (10,)


def test_layouts() -> None:
    for x in (torch.randn(3000, 1000).t(), torch.randn(4, 64, 80, 80).to(memory_format=torch.channels_last)):
        y = twice(x)
        assert y.stride() == x.stride()
        torch.testing.assert_close(y, x * 2, rtol=0, atol=0)


def test_gradients_are_the_callers(x: Any) -> None:
    x.requires_grad_()
    twice(x).sum().backward()
    first = x.grad
    x.grad = None
    twice(x).sum().backward()
    assert first.data_ptr() != x.grad.data_ptr()
    torch.testing.assert_close(first, torch.full_like(first, 2.0), rtol=0, atol=0)
