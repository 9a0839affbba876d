// The entry points of ReLU + LayerNorm: from a problem to launches of one dtype's kernels.
#include "kernels/relu_layernorm.hpp"

#include <algorithm>
#include <limits>

namespace kfusion::cuda {
namespace {

/// Calls f(p), or f for each index of the outermost axis where kernels could not divide row numbers in 32 bits.
template <class F>
void in_launches(const RowProblem& p, const F& f) {
  if (p.outer_ndim <= 1 || p.rows <= std::numeric_limits<std::int32_t>::max()) return f(p);
  RowProblem part = p;
  part.rows /= p.outer_shape[0];
  part.outer_ndim -= 1;
  for (RowOperand* m : {&part.x, &part.y}) std::copy_n(m->outer_strides + 1, part.outer_ndim, m->outer_strides);
  std::copy_n(p.outer_shape + 1, part.outer_ndim, part.outer_shape);
  for (std::int64_t i = 0; i < p.outer_shape[0]; ++i) {
    in_launches(part, f);
    part.x.data += p.x.outer_strides[0];
    part.y.data += p.y.outer_strides[0];
  }
}

template <DType kType>
void run(const RowProblem& p, int device, Stream stream, bool fused) {
  in_launches(p, [&](const RowProblem& part) {
    fused ? fused_relu_layernorm_of<kType>(part, device, stream)
          : unfused_relu_layernorm_of<kType>(part, device, stream);
  });
}

void run(const RowProblem& p, int device, Stream stream, bool fused) {
  if (p.rows == 0 || p.cols == 0) return;
  switch (p.dtype) {
    case DType::kFloat16:
      return run<DType::kFloat16>(p, device, stream, fused);
    case DType::kBFloat16:
      return run<DType::kBFloat16>(p, device, stream, fused);
    case DType::kFloat32:
      return run<DType::kFloat32>(p, device, stream, fused);
    case DType::kFloat64:
      return run<DType::kFloat64>(p, device, stream, fused);
  }
}

}  // namespace

void fused_relu_layernorm(const RowProblem& p, int device, Stream stream) { run(p, device, stream, true); }
void unfused_relu_layernorm(const RowProblem& p, int device, Stream stream) { run(p, device, stream, false); }

}  // namespace kfusion::cuda
