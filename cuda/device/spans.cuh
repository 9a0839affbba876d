// Short rows of any width, one behind the other. The rows of a warp are one span of memory, which it moves in whole
// 16-byte slots side by side, and keeps in shared memory, where lanes find the elements of their rows one by one.
//
// What the generator prints as F besides what rows.cuh lists. Each operand that varies along rows and columns has an
// area in shared memory; results take the place of what was loaded:
//   kUnit, kAreaBytes                   elements in 16 bytes, the most of all such operands; of all areas of a warp
//   void gather(line, areas, elements)    loads those from the beginning of a row on
//   void scatter(line, areas, elements)   stores results
//   Line staged(line, areas, element)     a row's addresses, where it begins at that element of the span
#pragma once
#include "device/rows.cuh"

namespace kfusion::device {

/// Brings what a warp has of an operand: up to kElements, in whole slots, of which all but the last warp has all.
template <int kElements, class T>
KF_DEVICE void gather_span(Slot* area, const T* from, int elements) {
  constexpr int kEach = static_cast<int>(16 / sizeof(T)), kSlots = kElements / kEach, kOwn = (kSlots + 31) / 32;
  static_assert(kSlots * kEach == kElements);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (elements == kElements) {
    Vector<T, kEach> v[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int slot = i * 32 + lane;
      v[i] = load_whole<Use::kAgain, T, kEach>(from + slot * kEach, i < kSlots / 32 || slot < kSlots);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      if (const int slot = i * 32 + lane; i < kSlots / 32 || slot < kSlots) memcpy(&area[slot], &v[i], 16);
  } else {
#pragma unroll 1
    for (int i = lane; i < elements; i += 32) reinterpret_cast<T*>(area)[i] = from[i];
  }
  __syncwarp();
}
template <int kElements, class T>
KF_DEVICE void scatter_span(const Slot* area, T* to, int elements) {
  constexpr int kEach = static_cast<int>(16 / sizeof(T)), kSlots = kElements / kEach, kOwn = (kSlots + 31) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();
  if (elements == kElements) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int slot = i * 32 + lane;
      Vector<T, kEach> v;
      if (i < kSlots / 32 || slot < kSlots) {
        memcpy(&v, &area[slot], 16);
        store_whole(to + slot * kEach, v);
      }
    }
  } else {
#pragma unroll 1
    for (int i = lane; i < elements; i += 32) to[i] = reinterpret_cast<const T*>(area)[i];
  }
}

/// Neighbours in shared memory, where nothing is aligned.
template <int kN, class T>
KF_DEVICE Vector<T, kN> load_staged(const T* p, int count) {
  Vector<T, kN> v{};
#pragma unroll
  for (int j = 0; j < kN; ++j)
    if (count > 0) load_element(v, j, p + j);
  return v;
}
template <class T, int kN>
KF_DEVICE void store_staged(T* p, const Vector<T, kN>& v, int count) {
#pragma unroll
  for (int j = 0; j < kN; ++j)
    if (count > 0) store_element(p + j, v, j);
}

/// Sweep after sweep over a row that a lane has alone, and which is one vector.
template <int kSweep, class F>
KF_DEVICE void sweep_alone(const F& f, const typename F::Line& line, const typename F::At& at, typename F::Held& held,
                           typename F::Values& values) {
  const auto fetched = f.fetch(Sweep<kSweep>(), line, at);
  const auto total = reduced<kSweep>(f, line, values, [&](const auto& use) { use(at, held, fetched); });
  f.finish(Sweep<kSweep>(), values, total);
  if constexpr (kSweep + 1 < F::kSweeps) sweep_alone<kSweep + 1>(f, line, at, held, values);
}
template <class F>
KF_DEVICE void lone_row(const F& f, const typename F::Line& line, bool exists) {
  typename F::At at = f.place(0);
  at.count = F::kWidth;
  typename F::Held held = f.load(line, at);
  typename F::Values values = f.begin(line, at);
  sweep_alone<0>(f, line, at, held, values);
  if (exists) f.end(line, at, values);
}

/// A warp has kRows rows, each of which kLanes lanes hold, in kK elements each.
template <class F, int kLanes, int kK, int kRows>
KF_DEVICE void span_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  // The rows that a warp has at once lie so far apart that their lanes' elements are in different banks.
  constexpr int kAtOnce = 32 / kLanes, kMost = kRows / kAtOnce, kWanted = kLanes < 4 ? 1 : kLanes * F::kUnit / 4;
  constexpr int kApart = kWanted < kMost ? kWanted : kMost, kAll = kAtOnce * kApart;
  extern __shared__ __align__(16) char shared[];
  const int warp = static_cast<int>(threadIdx.x) / 32, of_warp = static_cast<int>(threadIdx.x) % 32 / kLanes;
  const Row first = (static_cast<Row>(blockIdx.x) * static_cast<int>(blockDim.x / 32) + warp) * kRows;
  const Row rest = static_cast<Row>(g.rows) - first;
  if (rest <= 0) return;
  const int cols = static_cast<int>(f.elements()), rows = rest < kRows ? static_cast<int>(rest) : kRows;
  char* areas = shared + warp * F::kAreaBytes;
  const auto begin = f.line(first);
  f.gather(begin, areas, rows * cols);
#pragma unroll 1
  for (int upper = 0; upper < kRows; upper += kAtOnce) {
    const int row = upper / kAll * kAll + of_warp * kApart + upper / kAtOnce % kApart;
    const bool exists = row < rows;
    const auto line = f.staged(f.line(first + (exists ? row : 0)), areas, row * cols);
    if constexpr (kLanes == 1)
      lone_row(f, line, exists);
    else
      // Elements are not checked: the area has room for rows that do not exist as well.
      held_row<F, kLanes, kK>(f, line, {f, line, 0, static_cast<int>(threadIdx.x) % kLanes, true}, exists);
  }
  f.scatter(begin, areas, rows * cols);
}

}  // namespace kfusion::device
