"""What other tools have for the work of a fused kernel: facts of their documentation, each with its source. None was
measured, and where nothing is said, nothing is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import Group, Load


@dataclass(frozen=True)
class Fact:
    """short: for a table's column. text: a sentence. one_call: whether a call of the array library does all of it."""

    short: str
    text: str
    source: str
    one_call: bool = False


FACTS = {
    "attention": Fact(
        "torch: attention",
        "torch.nn.functional.scaled_dot_product_attention is one kernel where a backend takes its arguments "
        "(FlashAttention, memory-efficient, cuDNN); torch.compile puts it in place of some patterns of attention "
        "written out.",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        one_call=True,
    ),
    "function": Fact(
        "torch: one call",
        "torch has a function for the whole: sum, layer_norm, rms_norm, softmax, gelu and their like.",
        "https://docs.pytorch.org/docs/stable/nn.functional.html",
        one_call=True,
    ),
    "loops": Fact(
        "compilers fuse it",
        "torch.compile (TorchInductor) and XLA generate one kernel for elementwise work and the reductions that it "
        "leads to; the array libraries call by call have none.",
        "Ansel et al., PyTorch 2, ASPLOS 2024, section 4.3; https://openxla.org/xla/gpu_architecture",
    ),
    "product": Fact(
        "the library's product",
        "It is one product of the library's, cuBLAS's on NVIDIA GPUs.",
        "https://docs.nvidia.com/cuda/cublas/",
        one_call=True,
    ),
    "product+bias": Fact(
        "torch: linear",
        "torch.nn.functional.linear and addmm take a bias with the product, as an epilogue of cuBLASLt where that has "
        "one.",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.linear.html; "
        "https://docs.nvidia.com/cuda/cublas/#cublasltepilogue-t",
        one_call=True,
    ),
    "product+activation": Fact(
        "cuBLASLt: epilogue",
        "cuBLASLt has relu and gelu, with a bias, as epilogues of a product; torch's functions for them are two calls.",
        "https://docs.nvidia.com/cuda/cublas/#cublasltepilogue-t",
    ),
    "product+residual": Fact(
        "library: addmm",
        "cuBLAS computes alpha A B + beta C, cuBLASLt with a bias too; torch.addmm and baddbmm call it. A product and "
        "an addition written as two calls are two kernels where nobody rewrites them.",
        "https://docs.nvidia.com/cuda/cublas/#cublas-t-gemm; "
        "https://docs.pytorch.org/docs/stable/generated/torch.addmm.html",
        one_call=True,
    ),
    "product+maps": Fact(
        "max-autotune may",
        "torch.compile fuses elementwise work into its own templates of products only with max_autotune and "
        "epilogue_fusion, and keeps them where they are faster than the library's product; by default the product is "
        "the library's, and what follows is another kernel.",
        "https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    ),
    "products": Fact(
        "none known",
        "Several products of one left factor and what follows them: no function of torch's computes them as one "
        "kernel. By hand, the weights are joined to one matrix, and a second kernel follows.",
        "https://docs.pytorch.org/docs/stable/nn.functional.html",
    ),
    "product+reduction": Fact(
        "by hand, for losses",
        "A product that is reduced and never stored: hand-written kernels do so for linear + cross entropy, "
        "Cut Cross-Entropy without logits, Liger-Kernel by chunks of them; torch 2.13 has linear_cross_entropy.",
        "Wijmans et al., arXiv:2411.09009; Hsu et al., arXiv:2410.10989; "
        "https://docs.pytorch.org/docs/stable/nn.functional.html",
    ),
    "convolution": Fact(
        "the library's",
        "It is one convolution of the library's, cuDNN's on NVIDIA GPUs.",
        "https://docs.nvidia.com/deeplearning/cudnn/",
        one_call=True,
    ),
    "convolution+maps": Fact(
        "cuDNN: bias, relu",
        "cuDNN has convolution + bias + addition + activation as one call "
        "(cudnnConvolutionBiasActivationForward); torch in eager mode calls it for few cases.",
        "https://docs.nvidia.com/deeplearning/cudnn/",
    ),
    "library_call": Fact("it is the library's", "A call of the array library, run as it is.", "", one_call=True),
}

_LOOPS = ("pointwise", "rows", "columns", "full_reduction")
_ONE_FUNCTION = frozenset(
    (
        *("layernorm", "layer_norm", "rmsnorm", "rms_norm", "groupnorm", "group_norm"),
        *("softmax", "log_softmax", "gelu", "silu", "logsumexp"),
    )
)
_SUMS = {(True,): "product+bias", (False,): "product+residual", (False, True): "product+residual"}  # of biases or not
_SUFFIX = re.compile(r"_\d+$")


def fact_of(group: Group) -> Fact | None:
    """What is known of the work of a kernel; None where nothing is."""
    return FACTS.get(_key(group))


def _key(group: Group) -> str:
    if group.kind in _LOOPS:
        composites = {stage.partition(".")[0] for stage in group.stages}
        is_whole = len(composites) == 1 and _SUFFIX.sub("", composites.pop()) in _ONE_FUNCTION
        return "function" if is_whole or len(group.stages) == 1 else "loops"
    if group.kind == "matmul":
        return _product(group)
    if group.kind == "conv2d":
        return "convolution" if len(set(_computing(group.ops))) == 1 else "convolution+maps"
    return {"contraction_reduction": "product+reduction"}.get(group.kind, group.kind)


def _product(group: Group) -> str:
    ops = Counter(_computing(group.ops))
    if ops.pop("matmul", 0) > 1:
        return "products"
    if not ops:
        return "product"
    if set(ops) == {"add"}:
        added = tuple(sorted(map(_is_bias, group.loads[2:])))  # of a number there is none
        return _SUMS.get(added, "product+maps") if len(added) == ops["add"] else "product+maps"
    after = {_SUFFIX.sub("", stage).partition(".")[0] for stage in group.stages} - {"linear", "matmul"}
    return "product+activation" if after <= {"add", "relu", "gelu"} and after & {"relu", "gelu"} else "product+maps"


def _is_bias(load: Load) -> bool:
    """Whether what is added has fewer elements than the result: the same for each row."""
    return any(stride == 0 and n > 1 for stride, n in zip(load.strides, load.shape, strict=True))


def _computing(ops: Iterable[str]) -> list[str]:
    """The ops without those that only move or round."""
    return [op for op in ops if op not in ("cast", "reshape", "transpose", "broadcast", "slice", "concatenate")]
