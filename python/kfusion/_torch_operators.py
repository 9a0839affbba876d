"""`kfusion.register_torch_ops`: torch is imported by those who call it."""

from __future__ import annotations


def register_torch_ops() -> tuple[str, ...]:
    """Makes the named kernels operators of torch, once: `torch.ops.kfusion.softmax(x, -1)` is `fused_softmax(x, -1)`.

    They have gradients, and results of tensors without data, so that torch.compile with any backend, torch.export and
    torch.func keep them as they are. Traced functions of kfusion take them apart. Each has an operator of its
    gradients, too: `softmax_backward`. `torch.compile(..., backend="kfusion")` calls this itself.

    Returns:
        The names of the operators: "kfusion::softmax" and so on.

    Raises:
        ImportError: torch is not installed.
    """
    from ._torch_compile.library import register

    return register()
