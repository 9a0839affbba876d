// One pointwise kernel over many sets of dense arrays: a block takes a part of one set.
#pragma once
#include "device/pointwise.cuh"

namespace kfusion::device {

/// Sets in device memory: the number of each one's first part, then, from a multiple of 8 bytes on, each one's
/// addresses and its number of elements.
struct Sets {
  const char* table;
  int sets, part;  ///< elements of a part
};

/// What a block has: some elements of the arrays of one set.
struct Part {
  const i64* set;
  i64 first, elements;

  /// Array i of the set, from the part's first element on.
  template <class T>
  KF_DEVICE T* array(int i) const {
    return reinterpret_cast<T*>(set[i]) + first;
  }
};

/// The part of this block, of sets of kArrays arrays.
template <int kArrays>
KF_DEVICE Part part_of_block(const Sets& s) {
  const int* const firsts = reinterpret_cast<const int*>(s.table);
  const int part = static_cast<int>(blockIdx.x);
  int low = 0, high = s.sets;  // the last set that begins at `part` or before
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (firsts[middle] <= part)
      low = middle;
    else
      high = middle;
  }
  Part p;
  p.set = reinterpret_cast<const i64*>(s.table + (s.sets + 1) / 2 * 8) + static_cast<i64>(low) * (kArrays + 1);
  p.first = static_cast<i64>(part - firsts[low]) * s.part;
  const i64 rest = p.set[kArrays] - p.first;
  p.elements = rest < s.part ? rest : s.part;
  return p;
}

/// All elements of F, tile by tile. Block: any number of threads. No barrier. Bytes: each operand once.
template <class F, int kUnroll>
KF_DEVICE void each(const F& f) {
  using Index = typename F::Index;
  const Index step = static_cast<Index>(blockDim.x) * F::kWidth, own = static_cast<Index>(threadIdx.x) * F::kWidth,
              elements = static_cast<Index>(f.elements());
  Index begin = 0;
  for (; elements - begin >= kUnroll * step; begin += kUnroll * step) tile<true, F, kUnroll>(f, begin + own, step);
  if (begin < elements) tile<false, F, kUnroll>(f, begin + own, step);
}

}  // namespace kfusion::device
