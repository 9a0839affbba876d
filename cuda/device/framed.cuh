// Framed rows: rows that begin anywhere, in vectors that lie at multiples of their size in memory, not in the row.
//
// All vectors of a row's body are whole, so that nothing is asked of their elements. What is left at both ends, the
// edges, are vectors of one element, one a lane. An operand that lies otherwise (a weight, which does not move with the
// rows) is read in the three aligned halves of vectors that a shifted vector lies across; the body ends so early that
// all are the row's own.
#pragma once
#include "device/vector.cuh"

namespace kfusion::device {

template <class Index>
struct Frame {
  int head;    ///< elements in front of the body
  Index body;  ///< elements in vectors
};

/// The frame of a row at `row`. kBefore, kBehind: at least so many elements are no part of the body.
template <int kN, int kBefore, int kBehind, class T, class Index>
KF_DEVICE Frame<Index> frame_of(const T* row, Index elements) {
  const int shift = static_cast<int>(reinterpret_cast<u64>(row) / sizeof(T)),
            head = kBefore + (-(shift + kBefore) & (kN - 1));
  const Index rest = elements - kBehind - head;
  return {head, rest > 0 ? rest & ~static_cast<Index>(kN - 1) : 0};
}
/// The most elements that are no part of a body.
constexpr int edges_of(int width, int before, int behind) { return 2 * (width - 1) + before + behind; }

/// The most that are, in a row of so many.
KF_DEVICE i64 most_of_body(i64 elements, int width, int behind) {
  return elements > behind ? (elements - behind) / width * width : 0;
}

/// The vector from element `first` of the body on.
template <class Index>
KF_DEVICE Place<Index, 1> framed_place(const Frame<Index>& frame, Index first, int width) {
  const Index at = frame.head + first;
  return {at, first < frame.body ? width : 0, {at}, at};
}
/// Element `i` of those that are no part of the body.
template <class Index>
KF_DEVICE Place<Index, 1> edge_place(const Frame<Index>& frame, Index elements, int i) {
  const Index behind = i + frame.body, at = i < frame.head ? i : behind;
  return {at, behind < elements ? 1 : 0, {at}, at};
}

/// The vector at a place of an operand that is not of the frame.
template <int kN, class T, class Index>
KF_DEVICE Vector<T, kN> load_shifted(const T* row, const Frame<Index>& frame, const Place<Index, 1>& at) {
  constexpr int kPiece = kN / 2, kBytes = Vector<T, kN>::kBytes / 2, kWords = Vector<T, kN>::kWords;
  if constexpr (kN == 1) {
    return load_whole<Use::kAgain, T, 1>(row + at.first, at.count > 0);
  } else if constexpr (kBytes < 4) {
    return load_elements<T, kN>(at, [&](int j) { return row + at.first + j; });
  } else {
    const int shift = static_cast<int>(reinterpret_cast<u64>(row + frame.head)) & (kBytes - 1);
    const T* lower = row - shift / static_cast<int>(sizeof(T));
    const T *first = at.in(lower), *third = at.in(lower + (shift > 0 ? 2 * kPiece : kPiece));
    const Vector<T, kPiece> pieces[] = {load_whole<Use::kAgain, T, kPiece>(first, at.count > 0),
                                        load_whole<Use::kAgain, T, kPiece>(first + kPiece, at.count > 0),
                                        load_whole<Use::kAgain, T, kPiece>(third, at.count > 0)};
    u32 word[3 * kWords / 2];
    memcpy(word, pieces, sizeof word);
    if constexpr (kBytes == 8 && sizeof(T) < 8) {
#pragma unroll
      for (int i = 0; i <= kWords; ++i) word[i] = shift & 4 ? word[i + 1] : word[i];
    }
    Vector<T, kN> v;
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      v.word[i] = sizeof(T) < 4 ? __funnelshift_r(word[i], word[i + 1], 8 * (shift & 3)) : word[i];
    return v;
  }
}

}  // namespace kfusion::device
