// Generated column kernels: each thread has a vector of neighbouring columns and reduces them over its share of the
// rows; a block's threads are columns x shares. The generator prints F as in rows.cuh, where a Line is now a point of
// the reduced axes, a place one of the kept axes, and Values and Partials are arrays over the columns of a vector.
// load() and fetch() are also told the line of the first of kUnroll rows that are loaded together, and which of them it
// is: a crossed operand has that column of the vector's, from that row on, until uncross() turns it. What sweep()
// leaves in a CrossedN goes through uncross() and store(), the other way.
#pragma once
#include "device/crossed.cuh"
#include "device/rows.cuh"

namespace kfusion::device {

/// Rows row(0), row(1), ... below end, as load(line, at, line of the first, number) has them. kFull: all exist.
template <bool kFull = false, int kUnroll, class V, class F, class At, class Row, class Load>
KF_DEVICE void load_rows(const F& f, V (&v)[kUnroll], const At& at, const Row& row, typename F::Row end,
                         const Load& load) {
  const auto corner = f.line(row(0));
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    At existing = at;
    if (!kFull && row(u) >= end) existing.count = 0;
    v[u] = load(f.line(row(u)), existing, corner, u);
  }
  f.uncross(v);
}

/// One sweep over rows first, first + 1, ... below end. kFull: all kUnroll of them exist, so that nothing is asked.
template <bool kFull, int kUnroll, int kSweep, class F, class At, class Held>
KF_DEVICE auto sweep_rows(const F& f, const At& at, const Held (&held)[kUnroll], const typename F::Values& values,
                          typename F::Row first, typename F::Row end) {
  const Sweep<kSweep> sweep;
  const auto fetch = [&](const auto& line, const At& existing, const auto& corner, int column) {
    return f.fetch(sweep, line, existing, corner, column);
  };
  const int rows = kFull ? kUnroll : static_cast<int>(end - first);
  decltype(fetch(f.line(first), at, f.line(first), 0)) fetched[kUnroll];
  decltype(f.crossed(sweep)) crossed[kUnroll];
  auto part = f.partial(sweep);
  load_rows<kFull>(f, fetched, at, [&](int u) { return first + u; }, end, fetch);
  if constexpr (F::kLooks[kSweep]) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (u < rows) f.look(sweep, f.line(first + u), at, held[u], fetched[u], values, part);
    part.settle();
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
    if (u < rows) f.sweep(sweep, f.line(first + u), at, held[u], fetched[u], values, part, crossed[u]);
  f.uncross(crossed);
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) f.store(f.line(first), at, u, crossed[u]);
  return part;
}

/// This thread's share of rows begin ... end: kUnroll neighbouring ones at a time, of which `hold(first, held)` says
/// what a tile keeps.
template <int kUnroll, int kSweep, class F, class At, class Hold>
KF_DEVICE auto sweep_column(const F& f, const At& at, const Hold& hold, const typename F::Values& values,
                            typename F::Row begin, typename F::Row end) {
  using Row = typename F::Row;
  auto total = f.partial(Sweep<kSweep>()), block = f.partial(Sweep<kSweep>());
  int merges = 0;
  const Row step = kUnroll * static_cast<int>(blockDim.y);
  for (Row r = begin + kUnroll * static_cast<int>(threadIdx.y); r < end; r += step) {
    typename F::Held held[kUnroll];
    hold(r, held);
    block.merge(end - r >= kUnroll ? sweep_rows<true, kUnroll, kSweep>(f, at, held, values, r, end)
                                   : sweep_rows<false, kUnroll, kSweep>(f, at, held, values, r, end));
    if (++merges == kMergesInBlock) {
      total.merge(block);
      block = f.partial(Sweep<kSweep>());
      merges = 0;
    }
  }
  total.merge(block);
  return total;
}

/// Merges what threads of the same columns have, over a block (columns, shares) or the blocks of a cluster, for all of
/// them. Threads: whole warps, columns at most 32 and a power of two. Two boxes of shared memory take turns, so that
/// one barrier is enough; each has a part per warp and column, and where there are several blocks, one per block and
/// column.
class ColumnExchange {
 public:
  KF_DEVICE ColumnExchange(char* memory, int box_bytes) : memory_(memory), box_bytes_(box_bytes) {
    if (block_count() > 1) cluster_arrive();  // completed before the first write to another block, which must run
  }

  template <class P>
  KF_DEVICE void merge(P& own, const P& identity) {
    if constexpr (!P::kNothing) {
      const int across = blockDim.x, warps = static_cast<int>(blockDim.x * blockDim.y) / 32;
      P* parts = reinterpret_cast<P*>(memory_ + (rounds_ % 2) * box_bytes_);
      merge_block(own, identity, parts, across, warps);
      if (block_count() > 1) merge_blocks(own, identity, parts + warps * across, across);
      ++rounds_;
    }
  }

  KF_DEVICE void finish() {
    if (block_count() > 1 && rounds_ == 0) cluster_wait();
  }

 private:
  template <class P>
  static KF_DEVICE void merge_block(P& own, const P& identity, P* parts, int across, int warps) {
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x), warp = thread / 32, lane = thread % 32;
    merge_lanes(own, 32, across);
    if (lane < across) parts[warp * across + lane] = own;
    __syncthreads();
    own = identity;
    for (int i = lane / across; i < warps; i += 32 / across) own.merge(parts[i * across + lane % across]);
    merge_lanes(own, 32, across);
  }

  template <class P>
  KF_DEVICE void merge_blocks(P& own, const P& identity, P* parts, int across) const {
    const int blocks = static_cast<int>(block_count());
    if (rounds_ == 0) cluster_wait();
    if (static_cast<int>(threadIdx.y) < blocks)  // each to one block
      store_to_block(parts + static_cast<int>(block_rank()) * across + threadIdx.x, own, threadIdx.y);
    cluster_arrive();
    cluster_wait();
    own = identity;
    for (int i = 0; i < blocks; ++i) own.merge(parts[i * across + threadIdx.x]);
  }

  char* memory_;
  int box_bytes_;
  u32 rounds_ = 0;
};

/// Merges the blocks' parts of a thread's columns, of which some are on their way at once.
template <class P>
KF_DEVICE void merge_shares(P& total, const P* parts) {
  constexpr int kAtOnce = sizeof(P) > 128 ? 1 : sizeof(P) > 64 ? 2 : sizeof(P) > 32 ? 4 : 8;
  for (u32 first = threadIdx.y; first < gridDim.y; first += kAtOnce * blockDim.y) {
    P some[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (const u32 s = first + i * blockDim.y; s < gridDim.y) some[i] = parts[s * blockDim.x];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * blockDim.y < gridDim.y) total.merge(some[i]);
  }
}

/// False in blocks that leave the end to the last one.
template <int kUnroll, int kSweep, class F, class At>
KF_DEVICE bool sweep_columns(const F& f, const At& at, typename F::Values& values, const Geometry& g,
                             ColumnExchange& exchange, char* workspace, char* standing) {
  using Row = typename F::Row;
  using P = PartialOf<F, kSweep>;
  const Sweep<kSweep> sweep;
  const Row rows = static_cast<Row>(g.rows), splits = static_cast<Row>(g.splits);
  const Row groups = (rows + kUnroll - 1) / kUnroll, share = (groups + splits - 1) / splits * kUnroll;
  const Row begin = share * static_cast<Row>(F::kSweeps > 1 ? block_rank() : blockIdx.y);
  const Row end = at.count <= 0 ? begin : rows - begin < share ? rows : begin + share;
  const auto hold_nothing = [](Row, auto&) {};
  P total = sweep_column<kUnroll, kSweep>(f, at, hold_nothing, values, begin, end);
  exchange.merge(total, f.partial(sweep));
  if constexpr (F::kSweeps == 1 && !P::kNothing) {
    if (splits > 1) {
      P* parts = reinterpret_cast<P*>(workspace) + static_cast<i64>(blockIdx.x) * gridDim.y * blockDim.x + threadIdx.x;
      if (threadIdx.y == 0) parts[blockIdx.y * blockDim.x] = total;
      if (!is_last(reinterpret_cast<u32*>(standing + 16 * static_cast<i64>(blockIdx.x)), gridDim.y)) return false;
      total = f.partial(sweep);
      merge_shares(total, parts);
      exchange.merge(total, f.partial(sweep));
    }
  }
  f.finish(sweep, values, total);
  if constexpr (kSweep + 1 < F::kSweeps)
    return sweep_columns<kUnroll, kSweep + 1>(f, at, values, g, exchange, workspace, standing);
  return true;
}

/// Block: (columns, shares), both powers of two; of maps, any number of these side by side. Grid: (tiles of columns,
/// blocks that share the rows of one sweep); of several sweeps, the blocks of a cluster share them. Workspace: a part
/// per column thread and block. Standing: a ticket of 16 bytes per tile.
template <class F, int kUnroll>
KF_DEVICE void columns(const F& f, const Geometry& g, char* workspace, char* standing) {
  using Index = typename F::Index;
  extern __shared__ __align__(16) char shared[];
  wait_for_earlier_kernels();
  const Index side = static_cast<Index>(cluster_index()) * blockDim.z + threadIdx.z;
  const auto at = f.place((side * blockDim.x + threadIdx.x) * F::kWidth);
  typename F::Values values = f.begin(f.line(0), at);
  ColumnExchange exchange(shared, static_cast<int>(g.box));
  const bool ends = sweep_columns<kUnroll, 0>(f, at, values, g, exchange, workspace, standing);
  if (ends && block_rank() == 0 && threadIdx.y == 0 && at.count > 0) f.end(f.line(0), at, values);
  exchange.finish();
}

}  // namespace kfusion::device
