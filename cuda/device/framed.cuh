// Framed rows: rows that begin anywhere, in vectors that lie at multiples of their size in memory.
//
// A frame is the grid of such vectors over one operand's row. The row begins `shift` elements after one of them, so
// that the first and the last vector are partly missing; all others exist wholly, and most of them in batches that ask
// nothing. An operand that lies otherwise (a weight, which does not move with the rows) is read in words.
#pragma once
#include "device/vector.cuh"

namespace kfusion::device {

/// Elements between `p` and the vector of kN elements that it lies in.
template <int kN, class T>
KF_DEVICE int frame_shift(const T* p) {
  return static_cast<int>(reinterpret_cast<u64>(p) / sizeof(T)) & (kN - 1);
}

/// Whether vectors that are partly a row's lie within the array from `begin` to `end`, as but for the first and the
/// last row they do.
template <class T>
KF_DEVICE bool is_surrounded(const T* begin, const T* end, const T* row, i64 elements, int width) {
  return row - begin >= width && end - row >= elements + width;
}

/// The vector from element `first` of a row on, which may be negative.
template <class Index>
KF_DEVICE Place<Index, 1> framed_place(const Axes<Index, 1>& axes, Index first, int width) {
  Place<Index, 1> p;
  const Index rest = static_cast<Index>(axes.size) - first;
  p.first = p.from = p.at[0] = first;
  p.skip = first < 0 ? static_cast<int>(-first) : 0;
  p.count = rest < width ? static_cast<int>(rest) : width;
  return p;
}

template <int kN, class At>
KF_DEVICE bool is_whole(const At& at) {
  return at.skip == 0 && at.count == kN;
}

/// The vector at `p`, aligned to its size. What does not exist is anything where the row is surrounded, else zero.
template <int kN, Use kUse, bool kSurrounded, class T, class At>
KF_DEVICE Vector<T, kN> load_frame(const T* p, const At& at) {
  if (kSurrounded || is_whole<kN>(at)) return load_whole<kUse, T, kN>(p, at.count > 0);
  return load_elements<T, kN>(at, [&](int j) { return p + j; });
}

/// kN elements of a half type, all of which exist, at an address of any parity: words, and at the ends of odd ones
/// halves.
template <int kN, class T>
KF_DEVICE Vector<T, kN> load_halves(const T* p) {
  constexpr int kWords = kN / 2;
  const bool odd = reinterpret_cast<u64>(p) % 4 != 0;
  const u32* words = reinterpret_cast<const u32*>(p + (odd ? 1 : 0));
  const u16* halves = reinterpret_cast<const u16*>(p);
  u32 word[kWords];
#pragma unroll
  for (int i = 0; i + 1 < kWords; ++i) word[i] = words[i];
  word[kWords - 1] = odd ? halves[kN - 1] : words[kWords - 1];
  u32 before = odd ? halves[0] : 0;
  Vector<T, kN> v;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    v.word[i] = odd ? before | word[i] << 16 : word[i];
    before = word[i] >> 16;
  }
  return v;
}

/// The elements at a place of an operand that is not of the frame.
template <int kN, class T, class At>
KF_DEVICE Vector<T, kN> load_shifted(const T* row, const At& at) {
  if constexpr (sizeof(T) == 2 && kN > 1) {
    if (is_whole<kN>(at)) return load_halves<kN>(row + at.first);
  }
  return load_elements<T, kN>(at, [&](int j) { return row + at.first + j; });
}

/// The elements of `v` that exist, at `p`, aligned to the vector's size.
template <class T, int kN, class At>
KF_DEVICE void store_frame(T* p, const Vector<T, kN>& v, const At& at) {
  if (is_whole<kN>(at)) {
    store_whole(p, v);
  } else {
    store_elements(v, at, [&](int j) { return p + j; });
  }
}

}  // namespace kfusion::device
