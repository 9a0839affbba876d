#include "kernels/relu_layernorm_unfused.cuh"

template void kfusion::cuda::unfused_relu_layernorm_of<kfusion::device::half_t>(const kfusion::RowProblem&, int, kfusion::cuda::Stream);
