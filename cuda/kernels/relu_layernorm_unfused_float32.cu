#include "kernels/relu_layernorm_unfused.cuh"

template void kfusion::cuda::unfused_relu_layernorm_of<float>(const kfusion::RowProblem&, int, kfusion::cuda::Stream);
