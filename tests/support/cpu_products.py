"""What the tests of products and of attention on the CPU share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kfusion as kf
from kfusion import _core


def require_blas() -> None:
    """Skips the module that calls it where blocks cannot be computed."""
    if _core.blas_threads() is None:
        pytest.skip("this process has no BLAS that blocks could be computed by", allow_module_level=True)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """For modules that import it: memory begins as NaN."""
    _core.poison_memory(True)
    yield
    _core.poison_memory(False)


def forced(f: Callable[..., Any]) -> kf.FusedFunction:
    """Run by blocks, whatever is predicted to be faster."""
    return kf.FusedFunction(f, {"executors": ["cpu_products", "cpu"]})
