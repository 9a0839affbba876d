// Operands of framed rows that all rows share (weights), in shared memory, so that they need not be shifted for each
// row.
//
// An entry is what all rows share of one column. Entries lie in planes by their number modulo the width W of vectors:
// plane p has entries p, p + W, p + 2 W, ... So wherever a row's vectors begin, element j of a vector is in one plane
// for all lanes, and lanes find it in neighbouring banks. With 2 W - 1 planes (kTwice), element j is j planes after
// element 0, at an address that is static but for the first one.
#pragma once
#include "device/framed.cuh"

namespace kfusion::device {

/// Values of one column, as floats.
template <int kOperands>
struct alignas(kOperands % 2 == 0 ? 8 : 4) Entry {
  u32 word[kOperands];  // not floats and memcpy, which would go byte by byte
};

/// Planes of kApart entries each, of vectors of kWidth elements.
template <int kOperands, int kWidth, int kApart, bool kTwice>
struct Planes {
  using Own = Entry<kOperands>;
  static constexpr int kCount = kTwice ? 2 * kWidth - 1 : kWidth,
                       kBytes = kCount * kApart * static_cast<int>(sizeof(Own));
  Own* entries;

  /// Entries of vectors `from` ... below `to`, from `memory` on; all threads of the block.
  template <class F>
  KF_DEVICE void fill(const F& f, char* memory, int from, int to) {
    entries = reinterpret_cast<Own*>(memory) - from;
    const int end = minimum(to * kWidth, static_cast<int>(f.elements()));
    const auto line = f.line(0);
#pragma unroll 4
    for (int i = from * kWidth + static_cast<int>(threadIdx.x); i < end; i += blockDim.x)
      put(i, f.entry(line, i), from);
  }
  /// Operand kOperand, whose row is `row`, of the vector at a place of framed rows. Edges come from global memory.
  template <int kOperand, int kN, class S, class Index>
  KF_DEVICE Vector<float, kN> load(const S* row, const Frame<Index>& frame, const Place<Index, 1>& at) const {
    Vector<float, kN> v;
    if constexpr (kN == 1) {
      v.word[0] = __float_as_uint(get(load_whole<Use::kAgain, S, 1>(row + at.first, at.count > 0), 0));
    } else {
      const Own* vector = entries + static_cast<int>(at.from - frame.head) / kWidth + at.further / kWidth;
#pragma unroll
      for (int j = 0; j < kN; ++j) v.word[j] = vector[place(frame.head, j)].word[kOperand];
    }
    return v;
  }

 private:
  static KF_DEVICE int place(int first, int j) {
    const int element = first + j;
    return kTwice ? first * kApart + j * kApart : element % kWidth * kApart + element / kWidth;
  }
  KF_DEVICE void put(int element, const Own& entry, int from) const {
    const int plane = element % kWidth, place = element / kWidth;
    entries[plane * kApart + place] = entry;
    if (kTwice && plane < kWidth - 1 && place > from) entries[(plane + kWidth) * kApart + place - 1] = entry;
  }
};

}  // namespace kfusion::device
