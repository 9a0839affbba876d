#include "kernels/relu_layernorm_fused.cuh"
#include "kernels/relu_layernorm_unfused.cuh"

namespace kfusion::cuda {
template void fused_relu_layernorm_of<DType::kFloat32>(const RowProblem&, int, Stream);
template void unfused_relu_layernorm_of<DType::kFloat32>(const RowProblem&, int, Stream);
}  // namespace kfusion::cuda
