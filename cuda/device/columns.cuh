// Generated column kernels: each thread has a vector of neighbouring columns and reduces them over its share of the
// rows; a block's threads are columns x shares. The generator prints F as in rows.cuh, where a Line is now a point of
// the reduced axes, a place one of the kept axes, and Values and Partials are arrays over the columns of a vector.
#pragma once
#include "device/rows.cuh"

namespace kfusion::device {

/// This thread's share of rows begin, begin + step, ... below end; kUnroll of them are on their way at a time.
template <int kUnroll, int kSweep, class F, class At>
KF_DEVICE auto sweep_column(const F& f, const At& at, const typename F::Values& values, typename F::Row begin,
                            typename F::Row end, int step) {
  using Row = typename F::Row;
  const Sweep<kSweep> sweep;
  auto total = f.partial(sweep), block = f.partial(sweep);
  int merges = 0;
  for (Row r = begin; r < end; r += kUnroll * step) {
    decltype(f.fetch(sweep, f.line(r), at)) fetched[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u * step < end - r) fetched[u] = f.fetch(sweep, f.line(r + u * step), at);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (u * step < end - r) {
        f.sweep(sweep, f.line(r + u * step), at, typename F::Held(), fetched[u], values, block);
      }
    }
    if (++merges == kMergesInBlock) {
      total.merge(block);
      block = f.partial(sweep);
      merges = 0;
    }
  }
  total.merge(block);
  return total;
}

/// Merges over threadIdx.y, in a tree, for every thread. `shared`: a part per thread.
template <class P>
KF_DEVICE void merge_shares(P& own, P* shared) {
  if constexpr (!P::kNothing) {
    P* column = shared + threadIdx.x;
    column[threadIdx.y * blockDim.x] = own;
    for (u32 half = blockDim.y / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y < half) {
        own.merge(column[(threadIdx.y + half) * blockDim.x]);
        column[threadIdx.y * blockDim.x] = own;
      }
    }
    __syncthreads();
    own = column[0];
    __syncthreads();
  }
}

/// False in blocks that leave the end to the last one.
template <int kUnroll, int kSweep, class F, class At>
KF_DEVICE bool sweep_columns(const F& f, const At& at, typename F::Values& values, const Geometry& g, char* workspace) {
  using Row = typename F::Row;
  extern __shared__ __align__(16) char shared[];
  using P = PartialOf<F, kSweep>;
  const Row rows = static_cast<Row>(g.rows), splits = static_cast<Row>(g.splits);
  const Row share = (rows + splits - 1) / splits, begin = share * static_cast<Row>(blockIdx.y);
  const Row end = at.count <= 0 ? begin : rows - begin < share ? rows : begin + share;
  P total = sweep_column<kUnroll, kSweep>(f, at, values, begin + static_cast<Row>(threadIdx.y), end, blockDim.y);
  merge_shares(total, reinterpret_cast<P*>(shared));
  if constexpr (F::kSweeps == 1) {
    if (splits > 1) {
      P* parts = reinterpret_cast<P*>(workspace + 16 * static_cast<i64>(gridDim.x)) +
                 static_cast<i64>(blockIdx.x) * gridDim.y * blockDim.x + threadIdx.x;
      if (threadIdx.y == 0) parts[blockIdx.y * blockDim.x] = total;
      if (!is_last(reinterpret_cast<u32*>(workspace + 16 * static_cast<i64>(blockIdx.x)), gridDim.y)) return false;
      total = f.partial(Sweep<kSweep>());
      for (u32 s = threadIdx.y; s < gridDim.y; s += blockDim.y) total.merge(parts[s * blockDim.x]);
      merge_shares(total, reinterpret_cast<P*>(shared));
    }
  }
  f.finish(Sweep<kSweep>(), values, total);
  if constexpr (kSweep + 1 < F::kSweeps) return sweep_columns<kUnroll, kSweep + 1>(f, at, values, g, workspace);
  return true;
}

/// Block: (columns, shares), shares a power of two. Grid: (tiles of columns, blocks that share the rows of one sweep).
/// Workspace: a ticket of 16 bytes per tile, then a part per column thread and block.
template <class F, int kUnroll>
KF_DEVICE void columns(const F& f, const Geometry& g, char* workspace) {
  using Index = typename F::Index;
  const auto at = f.place((static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x) * F::kWidth);
  typename F::Values values = f.begin(f.line(0), at);
  const bool ends = sweep_columns<kUnroll, 0>(f, at, values, g, workspace);
  if (ends && threadIdx.y == 0 && at.count > 0) f.end(f.line(0), at, values);
}

}  // namespace kfusion::device
