// The entry point; the kernels are built in one file per dtype.
#include "kernels/relu_layernorm_fused.cuh"

namespace kfusion::cuda {

extern template void fused_relu_layernorm_of<device::half_t>(const RowProblem&, int, Stream);
extern template void fused_relu_layernorm_of<device::bfloat16_t>(const RowProblem&, int, Stream);
extern template void fused_relu_layernorm_of<float>(const RowProblem&, int, Stream);
extern template void fused_relu_layernorm_of<double>(const RowProblem&, int, Stream);

void fused_relu_layernorm(const RowProblem& p, int device, Stream stream) {
  if (p.rows == 0 || p.cols == 0) return;
  in_launches(p, [&](const RowProblem& part) {
    with_type(p.dtype, [&]<class T>(T*) { fused_relu_layernorm_of<T>(part, device, stream); });
  });
}

}  // namespace kfusion::cuda
