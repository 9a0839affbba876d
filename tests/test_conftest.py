"""Which warnings are no errors."""

from __future__ import annotations

import warnings

import pytest


def warn() -> None:
    """As torch does where a process's first product is in the thread of a backward pass."""
    text = "Attempting to run cuBLAS, but there was no current CUDA context! Attempting to set the primary context..."
    warnings.warn(text, stacklevel=2)


@pytest.mark.cuda  # and runs everywhere
def test_torch_s_first_product_on_a_gpu():
    warn()


def test_torch_s_first_product_elsewhere():
    with pytest.raises(UserWarning, match="cuBLAS"):
        warn()
