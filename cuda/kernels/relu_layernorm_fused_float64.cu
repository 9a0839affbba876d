#include "kernels/relu_layernorm_fused.cuh"

template void kfusion::cuda::fused_relu_layernorm_of<double>(const kfusion::RowProblem&, int, kfusion::cuda::Stream);
