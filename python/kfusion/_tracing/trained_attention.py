"""Attention whose gradients are asked for: torch's own, with the logarithms of the rows' sums beside its result.

Its gradients read these and the result, so that a backward pass does not compute attention again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .._graph.values import place_of
from . import library_attention
from .library_attention import ORDER

NAME = "torch.attention_with_sums"  # as cpp/kfusion/grad/gathers.cpp knows it
_MOST_OF_A_HEAD = 128
_FEW_SCORES = 1024


def trained(query: Any, key: Any, value: Any, causal: bool, scale: Any) -> tuple[Any, ...]:
    """(softmax(query key^T * scale) value,); () where no gradient is asked for, or torch has no such function."""
    tracer = query._tracer
    if not tracer.differentiates or not (scale is None or type(scale) in (int, float)):
        return ()
    key, value = (tracer.lift(v, "torch") for v in (key, value))
    if not _has_function(query, key, value, place_of(tracer.inputs) != "cpu", causal):
        return ()
    batch, heads, rows, depth = query.shape
    types = [(query._dtype, (batch, rows, heads, depth)), (_dtype_of_sums(query), (batch, heads, rows))]
    result, _ = tracer.library_call(NAME, Attention(causal, scale), [query, key, value], types)
    return (tracer.view("transpose", result, ORDER),)


def _has_function(query: Any, key: Any, value: Any, is_cuda: bool, causal: bool) -> bool:
    if not query._dtype == key._dtype == value._dtype or not query.ndim == key.ndim == value.ndim == 4:
        return False
    batch, heads, rows, depth = query.shape
    keys = key.shape[2]
    if key.shape != value.shape or tuple(key.shape) != (batch, heads, keys, depth) or (causal and rows != keys):
        return False
    if rows * keys <= (_FEW_SCORES if is_cuda else 2 * depth * (rows + keys)):  # which kernels store
        return False
    is_half = query._dtype in ("float16", "bfloat16")
    return batch * heads > 0 and (not is_cuda or (is_half and depth % 8 == 0 and depth <= _MOST_OF_A_HEAD))


def _dtype_of_sums(query: Any) -> str:
    return "float64" if query._dtype == "float64" else "float32"


class Attention:
    """Attention as steps of a plan run it: the result, whose heads are behind the positions, and the logarithms of
    sums.
    """

    gives_own = True  # tensors that nobody else has: they are results without a copy

    def __init__(self, causal: bool, scale: float | None) -> None:
        self._causal = causal
        self._scale = scale

    def __call__(self, query: Any, key: Any, value: Any) -> list[Any]:
        """Takes tensors."""
        made = self._forward(*self._given(query, key, value))
        seen = made[0].permute(ORDER), made[1].reshape(query.shape[:3])
        return [t.detach() for t in seen]  # as no views: autograd asks more of these

    def gradients(self, query: Any, key: Any, value: Any, result: Any, sums: Any, gradient: Any) -> Sequence[Any]:
        """Takes tensors, gives the gradients of all three; the result and its gradient are as `__call__` gives it, and
        so are these.
        """
        torch = sys.modules["torch"]
        aten, given = torch.ops.aten, self._given(query, key, value)
        result, gradient = (_of_dense_rows(x.contiguous()).permute(ORDER) for x in (result, gradient))
        ends = 0.0, self._causal
        rows, keys = query.shape[2], key.shape[2]
        if not query.is_cuda:
            made = aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradient, *given, result, sums, *ends, scale=self._scale
            )
        elif self._is_cudnns(*given):
            unread = torch.empty((), dtype=torch.int64, device=query.device)  # of dropout
            made = aten._scaled_dot_product_cudnn_attention_backward(
                gradient, *given, result, sums.unsqueeze(-1), unread, unread, None, None, None, rows, keys,
                library_attention.NO_DROPOUT, self._causal, scale=self._scale,
            )  # fmt: skip
        else:
            state = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of a generator that draws nothing
            made = aten._scaled_dot_product_flash_attention_backward(
                gradient, *given, result, sums, None, None, rows, keys, *ends, state, state[0], scale=self._scale
            )
        return [g.permute(ORDER) for g in made]

    def _given(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """The three as torch's kernels read them, and so that torch's result lies in memory as ours: its backward
        kernels take results and gradients of no other order than its forward kernels give, which is that of the
        queries.
        """
        query, key, value = map(_of_dense_rows, (query, key, value))
        layouts = ((tuple(x.shape), x.stride(), x.dtype) for x in (query, key, value))
        if query.is_cuda and not library_attention.gives_heads_behind(self._is_cudnns(query, key, value), *layouts):
            query = query.permute(ORDER).contiguous().permute(ORDER)
        return query, key, value

    def _forward(self, *given: Any) -> Sequence[Any]:
        """What torch's own function gives, by the kernels that it would take."""
        if given[0].is_cuda:
            return library_attention.of_gpu(self._is_cudnns(*given), given, self._causal, self._scale)
        run = sys.modules["torch"].ops.aten._scaled_dot_product_flash_attention_for_cpu
        made: Sequence[Any] = run(*given, 0.0, self._causal, scale=self._scale)
        return made

    def _is_cudnns(self, query: Any, key: Any, value: Any) -> bool:
        """Whether torch would take cuDNN's kernels."""
        choice = sys.modules["torch"]._fused_sdp_choice
        return bool(choice(query, key, value, None, 0.0, self._causal, scale=self._scale) == library_attention.CUDNN)


def _of_dense_rows(x: Any) -> Any:
    """x, copied where torch's kernels, which its own function chooses by this, would read something else."""
    is_dense = x.stride(-1) == 1 and (not x.is_cuda or not (x.data_ptr() % 16 or any(s % 8 for s in x.stride()[:-1])))
    return x if is_dense else x.clone(memory_format=sys.modules["torch"].contiguous_format)  # contiguous() may be x
