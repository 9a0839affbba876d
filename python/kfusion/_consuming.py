"""`kfusion.cross_entropy_`: a loss whose gradient takes the place of the logits."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

from ._autograd import require_first
from ._graph.source import trace_error
from ._graph.structure import leaves
from ._ops import primitives as p
from ._ops.chunk_products import wide_of
from ._ops.logit_chunks import fused
from ._ops.losses import require_integer, require_reduction, require_smoothing
from ._ops.operation import Array, Eager, require_one_kind
from ._ops.views import astype, broadcast_to
from ._spec import FLOATS, INTEGERS, is_array, spec_of

_WHO = "kfusion.cross_entropy_"


def cross_entropy_(
    logits: Any,
    targets: Any,
    *,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Any:
    """Cross entropy of softmax(logits) against class numbers, whose gradient is written over the logits.

        loss = cross_entropy(logits, targets);  logits[...] = d loss / d logits

    Logits of torch that require grad stay as they are until the backward pass, which writes there and passes them on.
    So a step needs no second array of their size; they are read twice and written once.

    Args:
        logits: floats, (..., classes), writable; of torch, no leaf that requires grad, nor a view of one in use.
        targets: int32 or int64, of shape logits.shape[:-1].
        ignore_index: as of `cross_entropy`.
        label_smoothing: as of `cross_entropy`.
        reduction: as of `cross_entropy`; of "none" the gradient is that of the sum, but in torch's backward pass.

    Returns:
        What `cross_entropy` gives, of logits' dtype; float32 for half types under torch.autocast.

    Raises:
        ValueError: as of `cross_entropy`, or logits are read-only.
        TypeError: as of `cross_entropy`, or an argument is a traced value.
        RuntimeError: logits are a leaf that requires grad; by a second backward pass: the first one wrote over them.

    Source: writing the gradient over the logits: Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training",
        2024.
    """
    require_reduction("cross_entropy_", reduction)
    require_smoothing("cross_entropy_", label_smoothing)
    require_integer("cross_entropy_", "ignore_index", ignore_index)
    if any(hasattr(type(v), "__kfusion_traced__") for v in leaves((logits, targets))):
        raise trace_error(f"{_WHO} is no function of traced values", "call it on arrays, or write kf.cross_entropy")
    _require_fitting(logits, targets)
    options = {"ignore_index": ignore_index, "label_smoothing": float(label_smoothing)}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(logits, torch.Tensor):
        if logits.requires_grad and torch.is_grad_enabled():
            if logits.is_leaf:
                raise RuntimeError(f"{_WHO}: logits are a leaf that requires grad, which must not be written to")
            return _function(torch).apply(logits, targets, options, reduction)
        with torch.no_grad():
            return _at_once(logits.detach(), targets, options, reduction)
    return _at_once(logits, targets, options, reduction)


def _require_fitting(logits: Any, targets: Any) -> None:
    """Raises what is wrong with the arguments before anything is computed, or written."""
    for name, value, kinds, wanted in (
        ("logits", logits, FLOATS, "an array of floats"),
        ("targets", targets, INTEGERS, "an array of int32 or int64"),
    ):
        if not is_array(value):
            raise TypeError(f"{_WHO}: {name} must be {wanted}, got {type(value).__name__}")
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in kinds:
            raise TypeError(f"{_WHO}: {name} must be {wanted}, got one of {dtype}")
    torch = sys.modules.get("torch")
    if torch and isinstance(logits, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(logits):
        what = "logits are a tensor of torch.func (grad, vmap, ...), which cannot be written to"
        raise TypeError(f"{_WHO}: {what}: take kfusion.grad of kfusion.cross_entropy")
    require_one_kind(_WHO, {"logits": logits, "targets": targets})
    shape, rows = tuple(targets.shape), tuple(logits.shape)
    if not rows:
        raise ValueError(f"{_WHO}: logits must have an axis of classes, got none")
    if shape != rows[:-1]:
        raise ValueError(f"{_WHO}: targets must have shape {rows[:-1]}, got {shape}")
    _require_writable(logits)


def _require_writable(logits: Any) -> None:
    flags = getattr(logits, "flags", None)
    if getattr(flags, "writeable", True) is False:
        raise ValueError(f"{_WHO}: logits must be writable, got a read-only array")
    strides = logits.stride() if hasattr(logits, "stride") else getattr(logits, "strides", None) or ()
    if any(step == 0 and n > 1 for step, n in zip(strides, logits.shape, strict=False)):
        raise ValueError(f"{_WHO}: logits must have memory for each element, got strides {tuple(strides)}: copy them")


def _at_once(logits: Any, targets: Any, options: dict[str, Any], reduction: str) -> Any:
    loss, *state = _forward(logits, targets, options, reduction)
    _turn(logits, targets, state, None, options)
    return loss


def _forward(logits: Any, targets: Any, options: dict[str, Any], reduction: str) -> tuple[Any, ...]:
    """The loss, and what `_turn` needs: three numbers of each row, and what each row counts."""
    losses, *rows = fused()["row_statistics"](logits, None, None, targets, None, **options)
    dtype = spec_of(logits, _WHO).dtype
    given = wide_of(dtype) if _casts(logits) else dtype
    loss, share = _reduce()(losses, targets, options["ignore_index"], reduction, given)
    return loss, *rows, share


def _turn(logits: Any, targets: Any, state: Any, g: Any, options: dict[str, Any]) -> None:
    largest, share, own, scale = state
    share, own = _scaled()(share, own, scale, g)
    smoothing = options["label_smoothing"]
    fused()["turned"](logits, None, None, targets, largest, share, own, label_smoothing=smoothing, out=logits)


def _casts(logits: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(logits, torch.Tensor):
        return False
    return bool(torch.is_autocast_enabled(logits.device.type))


def reduced(losses: Array, targets: Array, ignore_index: int | None, reduction: str, dtype: str) -> tuple[Array, Array]:
    """The loss, and by how much each row's counts in it."""
    one = astype(losses._tracer.lift(1.0, losses._library), losses._dtype)
    if reduction != "mean":
        return astype(p.sum(losses) if reduction == "sum" else losses, dtype), one
    counted = broadcast_to(one, losses.shape)
    if ignore_index is not None:
        counted = astype(p.not_equal(targets, ignore_index), losses._dtype)
    count = p.sum(counted)
    mean = p.where(p.equal(count, 0.0), math.nan, p.sum(losses) / p.maximum(count, 1.0))
    return astype(mean, dtype), 1.0 / p.maximum(count, 1.0)


def scaled(share: Array, own: Array, scale: Array, g: Array | None) -> tuple[Array, Array]:
    """What a row's logits are multiplied with, times the loss's gradient."""
    factor = scale if g is None else scale * astype(g, scale._dtype)
    return share * factor, own * factor


@functools.cache
def _reduce() -> Any:
    return Eager.fuse(reduced)


@functools.cache
def _scaled() -> Any:
    return Eager.fuse(scaled)


@functools.cache
def _function(torch: Any) -> Any:
    class Consuming(torch.autograd.Function):  # type: ignore[misc]
        """A loss whose backward pass writes over what it is of."""

        @staticmethod
        def forward(ctx: Any, logits: Any, targets: Any, options: Any, reduction: str) -> Any:
            loss, *state = _forward(logits.detach(), targets, options, reduction)
            ctx.save_for_backward(logits, targets, *state)
            ctx.options = options
            ctx.is_spent = False
            return loss

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            require_first(torch, _WHO)
            if ctx.is_spent:
                raise RuntimeError(f"{_WHO}: a second backward pass: the first one wrote over the logits")
            ctx.is_spent = True
            logits, targets, *state = ctx.saved_tensors
            z = logits.detach()
            _turn(z, targets, state, g, ctx.options)
            torch.autograd.graph.increment_version(z)
            return z, None, None, None

    return Consuming
