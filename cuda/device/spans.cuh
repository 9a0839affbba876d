// Short rows of any width, one behind the other: the rows of a block are one span of memory, which passes through
// shared memory in whole 16-byte slots. There, lanes take the elements of their rows one by one.
//
// What the generator prints as F besides what rows.cuh lists. Each operand that varies along rows and columns has an
// area of `room` elements in shared memory:
//   kUnit                                               elements in 16 bytes, the most of all such operands
//   int staged_bytes(elements)                          that bulk copies bring
//   void stage(line, areas, room, elements, barrier)    starts to bring those from the beginning of a row on
//   void write(line, areas, room, elements)             starts to take results away
//   Line staged(line, areas, room, element)             a row's addresses, where it begins at that element of the span
#pragma once
#include "device/async.cuh"
#include "device/rows.cuh"

namespace kfusion::device {

/// A span's elements in whole 16-byte slots go as one bulk copy, which thread 0 starts and `barrier` counts; what is
/// left behind them, at the end of an array, goes element by element.
template <class T>
KF_DEVICE void stage_span(T* to, const T* from, int elements, Barrier* barrier) {
  constexpr int kN = static_cast<int>(16 / sizeof(T));
  const int whole = elements / kN * kN;
  if (threadIdx.x == 0 && whole > 0) start_copy(to, from, whole * static_cast<u32>(sizeof(T)), barrier);
  for (int i = whole + static_cast<int>(threadIdx.x); i < elements; i += static_cast<int>(blockDim.x)) to[i] = from[i];
}
template <class T>
KF_DEVICE void write_span(T* to, const T* from, int elements) {
  constexpr int kN = static_cast<int>(16 / sizeof(T));
  const int whole = elements / kN * kN;
  if (threadIdx.x == 0 && whole > 0) start_writing(to, from, whole * static_cast<u32>(sizeof(T)));
  for (int i = whole + static_cast<int>(threadIdx.x); i < elements; i += static_cast<int>(blockDim.x)) to[i] = from[i];
}

/// An element in shared memory.
template <class T>
KF_DEVICE Vector<T, 1> load_staged(const T* p, int count) {
  Vector<T, 1> v{};
  if (count > 0) load_element(v, 0, p);
  return v;
}
template <class T>
KF_DEVICE void store_staged(T* p, const Vector<T, 1>& v, int count) {
  if (count > 0) store_element(p, v, 0);
}

/// A block takes g.splits rows at once; kLanes lanes of a warp hold one, in kK elements each.
template <class F, int kLanes, int kK>
KF_DEVICE void span_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  // The rows that a warp has at once lie so far apart that their lanes' elements are in different banks.
  constexpr int kRows = 32 / kLanes, kApart = kLanes < 4 ? 1 : kLanes * F::kUnit / 4, kAll = kRows * kApart;
  extern __shared__ __align__(16) char shared[];
  const Row first = static_cast<Row>(blockIdx.x) * static_cast<Row>(g.splits), rest = static_cast<Row>(g.rows) - first;
  const int cols = static_cast<int>(f.elements()), room = static_cast<int>(g.splits) * cols;
  const int rows = rest < g.splits ? static_cast<int>(rest) : static_cast<int>(g.splits);
  const auto begin = f.line(first);
  Barrier* barrier = reinterpret_cast<Barrier*>(shared);
  if (threadIdx.x == 0) {
    make_barrier(barrier);
    fence_barriers();
    expect(barrier, f.staged_bytes(rows * cols));
  }
  char* areas = shared + 16;
  f.stage(begin, areas, room, rows * cols, barrier);
  __syncthreads();
  wait_for_copies(barrier, 0);
  const int at_once = static_cast<int>(blockDim.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int upper = 0; upper < (rows + kAll - 1) / kAll * kAll; upper += at_once) {  // whole warps exchange their parts
    const int turn = upper + static_cast<int>(threadIdx.x) / kLanes;
    const int row = turn / kAll * kAll + turn % kRows * kApart + turn / kRows % kApart, own = row < rows ? row : 0;
    const auto line = f.staged(f.line(first + static_cast<Row>(own)), areas, room, own * cols);
    short_row<F, kLanes, kK>(f, line, lane, row < rows, [] {});
  }
  fence_writes();
  __syncthreads();
  f.write(begin, areas, room, rows * cols);
  if (threadIdx.x == 0) wait_for_reads();
}

}  // namespace kfusion::device
