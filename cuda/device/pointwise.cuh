// The pointwise kernel. A block takes one tile: kUnroll vectors a thread, all loaded before the first is used, stored
// with 16 bytes a thread where the arrays allow it.
#pragma once
#include "device/partial.cuh"
#include "device/vector.cuh"

namespace kfusion::device {

/// Block: any number of threads. No barrier. Bytes: each operand once. F is a generated struct; see rows.cuh.
template <class F, int kUnroll>
KF_DEVICE void pointwise(const F& f) {
  using Index = typename F::Index;
  const Index step = static_cast<Index>(blockDim.x) * F::kWidth;
  const Index first = static_cast<Index>(blockIdx.x) * (kUnroll * step) + static_cast<Index>(threadIdx.x) * F::kWidth;
  const typename F::Line line = f.line(0);
  const typename F::Values values = f.begin(line, f.place(first));
  typename F::Held held[kUnroll];
  typename F::Partial0 nothing;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) held[u] = f.load(line, f.place(first + u * step));
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const auto at = f.place(first + u * step);
    if (at.count > 0) f.sweep(Sweep<0>(), line, at, held[u], f.fetch(Sweep<0>(), line, at), values, nothing);
  }
}

}  // namespace kfusion::device
