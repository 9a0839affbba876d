// Framed rows: rows that begin anywhere, in vectors that lie at multiples of their size in memory.
//
// A frame is the grid of such vectors over one operand's row. The row begins `shift` elements after a frame's vector,
// so that the first and the last vector are partly missing, and only those ask which of their elements exist. An
// operand that lies otherwise (a weight, which does not move with the rows) is read as two vectors of its own frame, of
// which the wanted elements are shifted together.
#pragma once
#include "device/vector.cuh"

namespace kfusion::device {

/// The elements of an operand, counted from the beginning of a row, that lie within its array: neighbouring rows count,
/// but no further than a vector.
template <class Index>
struct Readable {
  Index from, to;
};
template <class Index, class T>
KF_DEVICE Readable<Index> readable(const T* begin, const T* end, const T* row, i64 elements, int width) {
  const i64 before = row - begin, behind = end - row;
  return {static_cast<Index>(-minimum<i64>(before, width)), static_cast<Index>(minimum<i64>(behind, elements + width))};
}

/// Elements between `p` and the vector of kN elements that it lies in.
template <int kN, class T>
KF_DEVICE int frame_shift(const T* p) {
  return static_cast<int>(reinterpret_cast<u64>(p) / sizeof(T)) & (kN - 1);
}

/// The vector from element `first` of a row on, which may be negative.
template <class Index>
KF_DEVICE Place<Index, 1> framed_place(const Axes<Index, 1>& axes, Index first, int width) {
  Place<Index, 1> p;
  const Index rest = static_cast<Index>(axes.size) - first;
  p.first = p.at[0] = first;
  p.skip = first < 0 ? static_cast<int>(-first) : 0;
  p.count = rest < width ? static_cast<int>(rest) : width;
  return p;
}

/// The vector from element `first` of a row on, aligned to its size, of which `elements` exist: whole where all its
/// bytes are the array's (then what is missing is anything), else element by element. Zeros where not `wanted`.
template <int kN, Use kUse, class T, class Index>
KF_DEVICE Vector<T, kN> load_frame(const T* row, Index first, bool wanted, Readable<Index> inside, Index elements) {
  const bool whole = first >= inside.from && first + kN <= inside.to;
  Vector<T, kN> v = load_whole<kUse, T, kN>(row + first, wanted && whole);
  if (wanted && !whole) {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if (first + j >= 0 && first + j < elements) load_element(v, j, row + first + j);
    }
  }
  return v;
}

/// Elements `by`, `by + 1`, ... of `low` and what follows it.
template <class T, int kN>
KF_DEVICE Vector<T, kN> shifted(const Vector<T, kN>& low, const Vector<T, kN>& high, int by) {
  constexpr int kWords = Vector<T, kN>::kWords;
  u32 word[2 * kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) word[i] = low.word[i], word[kWords + i] = high.word[i];
  const int bits = by * 8 * static_cast<int>(sizeof(T));
#pragma unroll
  for (int step = kWords / 2; step > 0; step /= 2) {
    const bool moves = (bits / 32 & step) != 0;
#pragma unroll
    for (int i = 0; i + step < 2 * kWords; ++i) word[i] = moves ? word[i + step] : word[i];
  }
  Vector<T, kN> v;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const u64 both = static_cast<u64>(word[i + 1]) << 32 | word[i];
    v.word[i] = sizeof(T) < 4 ? static_cast<u32>(both >> bits % 32) : word[i];
  }
  return v;
}

/// The same elements of an operand that is not of the frame of `shift`.
template <int kN, class T, class Index>
KF_DEVICE Vector<T, kN> load_shifted(const T* row, const Place<Index, 1>& at, int shift, Readable<Index> inside,
                                     Index elements) {
  if constexpr (Vector<T, kN>::kBytes < 4) {
    return load_elements<T, kN>(at, [&](int j) { return row + at.first + j; });
  } else {
    const int by = (frame_shift<kN>(row) - shift) & (kN - 1);
    const Index first = at.first - by, next = first + kN;
    const bool exists = at.count > 0;
    const bool low = exists && next > 0, high = exists && by > 0 && next < elements;
    return shifted(load_frame<kN, Use::kAgain>(row, first, low, inside, elements),
                   load_frame<kN, Use::kAgain>(row, next, high, inside, elements), by);
  }
}

/// The elements of `v` that exist, at `p`, aligned to the vector's size.
template <class T, int kN, class At>
KF_DEVICE void store_frame(T* p, const Vector<T, kN>& v, const At& at) {
  if (at.skip == 0 && at.count == kN) {
    store_whole(p, v);
  } else {
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if (j >= at.skip && j < at.count) store_element(p + j, v, j);
    }
  }
}

}  // namespace kfusion::device
