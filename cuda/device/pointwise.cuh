// The pointwise kernel. A block takes one tile: kUnroll vectors a thread, all loaded before the first is used, stored
// with 16 bytes a thread where the arrays allow it.
#pragma once
#include "device/partial.cuh"
#include "device/vector.cuh"

namespace kfusion::device {

/// A thread's vectors from `first` on. kFull: all elements of the block's tile exist, so that nothing is asked and the
/// loads follow each other (0.94 of the copy rate became 1.0 on an H200).
template <bool kFull, class F, int kUnroll>
KF_DEVICE void tile(const F& f, typename F::Index first, typename F::Index step) {
  const auto place = [&](int u) {
    typename F::At at = f.place(first + u * step);
    if constexpr (kFull) at.count = F::kWidth;
    return at;
  };
  const typename F::Line line = f.line(0);
  const typename F::Values values = f.begin(line, place(0));
  typename F::Held held[kUnroll];
  typename F::Partial0 nothing;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) held[u] = f.load(line, place(u));
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const typename F::At at = place(u);
    if (kFull || at.count > 0) f.sweep(Sweep<0>(), line, at, held[u], f.fetch(Sweep<0>(), line, at), values, nothing);
  }
}

/// Block: any number of threads. No barrier. Bytes: each operand once. F is a generated struct; see rows.cuh.
template <class F, int kUnroll>
KF_DEVICE void pointwise(const F& f) {
  using Index = typename F::Index;
  const Index step = static_cast<Index>(blockDim.x) * F::kWidth,
              begin = static_cast<Index>(blockIdx.x) * (kUnroll * step);
  const Index first = begin + static_cast<Index>(threadIdx.x) * F::kWidth;
  if (static_cast<Index>(f.elements()) - begin >= kUnroll * step) {
    tile<true, F, kUnroll>(f, first, step);
  } else {
    tile<false, F, kUnroll>(f, first, step);
  }
}

}  // namespace kfusion::device
