#include "kernels/relu_layernorm_fused.cuh"

template void kfusion::cuda::fused_relu_layernorm_of<kfusion::device::half_t>(const kfusion::RowProblem&, int, kfusion::cuda::Stream);
