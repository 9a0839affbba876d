// The entry points of ReLU + LayerNorm: from a problem to launches of one dtype's kernels.
#include "kernels/relu_layernorm.hpp"

#include <algorithm>
#include <limits>

namespace kfusion::cuda {
namespace {

constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();

/// `p` for indices [begin, begin + count) of its outermost axis.
RowProblem part_of(const RowProblem& p, std::int64_t begin, std::int64_t count) {
  RowProblem part = p;
  part.rows = p.rows / p.outer_shape[0] * count;
  part.outer_shape[0] = count;
  part.x.data += begin * p.x.outer_strides[0];
  part.y.data += begin * p.y.outer_strides[0];
  return part;
}

/// `p`, whose outermost axis has extent 1, without that axis.
RowProblem inner_of(RowProblem p) {
  p.outer_ndim -= 1;
  std::copy_n(p.outer_shape + 1, p.outer_ndim, p.outer_shape);
  for (RowOperand* m : {&p.x, &p.y}) std::copy_n(m->outer_strides + 1, p.outer_ndim, m->outer_strides);
  return p;
}

/// Calls f(p), or f for parts of it where kernels could not divide row numbers in 32 bits.
template <class F>
void in_launches(const RowProblem& p, const F& f) {
  if (p.outer_ndim <= 1 || p.rows <= kMaxRows) return f(p);
  const std::int64_t inner = p.rows / p.outer_shape[0], step = std::max<std::int64_t>(kMaxRows / inner, 1);
  for (std::int64_t i = 0; i < p.outer_shape[0]; i += step) {
    const RowProblem part = part_of(p, i, std::min(step, p.outer_shape[0] - i));
    in_launches(inner <= kMaxRows ? part : inner_of(part), f);
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
    default:
      return;  // no other dtype is let in
  }
}

}  // namespace

void fused_relu_layernorm(const RowProblem& p, int device, Stream stream) { run(p, device, stream, true); }
void unfused_relu_layernorm(const RowProblem& p, int device, Stream stream) { run(p, device, stream, false); }

}  // namespace kfusion::cuda
