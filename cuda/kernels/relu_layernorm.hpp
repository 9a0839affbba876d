// ReLU + LayerNorm on the device, one instantiation per dtype, so that the dtypes compile side by side.
#pragma once
#include "host/cuda.hpp"

namespace kfusion::cuda {

/// `p` has rows and columns, and fewer than 2^31 rows where its leading axes do not collapse into one.
template <DType kType>
void fused_relu_layernorm_of(const RowProblem& p, int device, Stream stream);
template <DType kType>
void unfused_relu_layernorm_of(const RowProblem& p, int device, Stream stream);

}  // namespace kfusion::cuda
