// Very short rows of any width, one behind the other. A lane holds so many that they are whole 16-byte slots, which
// warps move side by side: through shared memory, where each lane finds its own. From there on all is static: where an
// element lies, and how many there are.
//
// What the generator prints as F besides what rows.cuh lists, where kWidth is the elements of a row:
//   Packs                                       of a lane, of each operand that varies along rows and columns
//   kSlots                                      of the largest of them
//   void gather(line, area, elements, Packs&)   loads those of a warp from the beginning of a row on
//   void scatter(line, area, elements, Packs&)  stores results
//   Line packed(line, Packs&, r)                with its place in the packs: row r of them
#pragma once
#include "device/spans.cuh"

namespace kfusion::device {

/// The elements of some rows of kN, as a lane holds them.
template <class T, int kN, int kRows>
struct Pack {
  static constexpr int kEach = static_cast<int>(16 / sizeof(T)), kSlots = kN * kRows / kEach;
  static_assert(kSlots * kEach == kN * kRows);
  u32 word[4 * kSlots] = {};

  /// Row r, which is static, like what follows from it: in which byte of a word it begins.
  KF_DEVICE Vector<T, kN> row(int r) const {
    const int byte = r * kN * static_cast<int>(sizeof(T)), first = byte / 4, shift = 8 * (byte % 4);
    Vector<T, kN> v;
#pragma unroll
    for (int i = 0; i < Vector<T, kN>::kWords; ++i) {
      const u32 next = shift > 0 && first + i + 1 < 4 * kSlots ? word[first + i + 1] : 0;
      v.word[i] = shift > 0 ? __funnelshift_r(word[first + i], next, shift) : word[first + i];
    }
    return v;
  }
  /// `v` is 0 behind its elements, and so are the words of rows that were not set yet.
  KF_DEVICE void set(int r, const Vector<T, kN>& v) {
    const int byte = r * kN * static_cast<int>(sizeof(T)), first = byte / 4, shift = 8 * (byte % 4);
#pragma unroll
    for (int i = 0; i < Vector<T, kN>::kWords; ++i) {
      word[first + i] |= v.word[i] << shift;
      if (shift > 0 && first + i + 1 < 4 * kSlots) word[first + i + 1] |= v.word[i] >> (32 - shift);
    }
  }
};

/// Brings a warp's packs, which lie in order and end after `elements`. `area`: room for 32 of them.
template <class T, int kN, int kRows>
KF_DEVICE void gather_packs(Pack<T, kN, kRows>& own, const T* from, int elements, Slot* area) {
  using P = Pack<T, kN, kRows>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (P::kSlots == 1 && elements == 32 * kN * kRows) {
    const auto v = load_whole<Use::kAgain, T, P::kEach>(from + lane * P::kEach, true);
    memcpy(own.word, &v, 16);
    return;
  }
  gather_span<32 * kN * kRows>(area, from, elements);
  memcpy(own.word, &area[lane * P::kSlots], sizeof own.word);
  __syncwarp();
}
template <class T, int kN, int kRows>
KF_DEVICE void scatter_packs(const Pack<T, kN, kRows>& own, T* to, int elements, Slot* area) {
  using P = Pack<T, kN, kRows>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (P::kSlots == 1 && elements == 32 * kN * kRows) {
    Vector<T, P::kEach> v;
    memcpy(&v, own.word, 16);
    store_whole(to + lane * P::kEach, v);
    return;
  }
  memcpy(&area[lane * P::kSlots], own.word, sizeof own.word);
  scatter_span<32 * kN * kRows>(area, to, elements);
  __syncwarp();
}

/// A lane has kRows rows.
template <class F, int kRows>
KF_DEVICE void packed_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  extern __shared__ __align__(16) char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Row first = (static_cast<Row>(blockIdx.x) * static_cast<int>(blockDim.x / 32) + warp) * (32 * kRows);
  const Row rest = static_cast<Row>(g.rows) - first;
  if (rest <= 0) return;
  const int rows = rest < 32 * kRows ? static_cast<int>(rest) : 32 * kRows;
  Slot* area = reinterpret_cast<Slot*>(shared) + warp * 32 * F::kSlots;
  const auto span = f.line(first);
  typename F::Packs packs;
  f.gather(span, area, rows * F::kWidth, packs);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int own = lane * kRows + r;
    const bool exists = own < rows;
    lone_row(f, f.packed(f.line(first + (exists ? own : 0)), packs, r), exists);
  }
  f.scatter(span, area, rows * F::kWidth, packs);
}

}  // namespace kfusion::device
