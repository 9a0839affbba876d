// The row kernel: one skeleton for every "reduce a row, then use the result on the same row" (LayerNorm, softmax, ...).
//
// A team of warps owns a row: part of a warp (several short rows per warp), one warp, the warps of a block, or those of
// a cluster of blocks. A row is cut into segments, one per warp and chunk; a lane holds its share of a segment packed
// in K 16-byte slots of registers. One chunk holds the row where it fits: it is then read once and written once. Longer
// rows pass through the registers chunk by chunk (statistics), then a second time in reverse order (output), so that
// the last chunk is still held and the ones before it are the likeliest to be in L2.
#pragma once
#include "device/access.cuh"
#include "device/reduce.cuh"

namespace kfusion::device {

inline constexpr int kMaxThreads = 512;      ///< a block; leaves 128 registers to a thread
inline constexpr int kWarpRowsThreads = 64;  ///< a block whose warps have rows of their own
inline constexpr int kMaxOuter = 32;         ///< leading axes of a matrix
/// Rows that share a warp are short: kernels with more slots need not divide it.
inline constexpr int kSharedSlots = 2;

/// Where the elements of the matrices lie: strides in bytes. Kernel parameter.
struct Rows {
  i64 rows, cols;
  const char* x;
  char* y;
  i64 x_col, y_col;
  int outer_ndim;
  i64 outer_shape[kMaxOuter], x_outer[kMaxOuter], y_outer[kMaxOuter];
};

/// How a grid is divided into teams. Kernel parameter.
struct Geometry {
  int lanes;        ///< of a warp that share a row: 1, 2, 4, ... 32; 32 where warps > 1
  int warps;        ///< of a team, in all its blocks; 1: each warp works for itself
  int chunks;       ///< of a row
  int exchange_at;  ///< in shared memory, behind the parameters that a block keeps there
};

struct RowPointers {
  const char* x;
  char* y;
};

/// Only strided leading axes divide, once per row; the host launches those with fewer than 2^31 rows at a time.
KF_DEVICE RowPointers locate(const Rows& m, i64 row) {
  if (m.outer_ndim == 1) return {m.x + row * m.x_outer[0], m.y + row * m.y_outer[0]};
  RowPointers at{m.x, m.y};
  u32 rest = static_cast<u32>(row);
#pragma unroll 1
  for (int d = m.outer_ndim - 1; d >= 0; --d) {
    const u32 extent = static_cast<u32>(m.outer_shape[d]), upper = rest / extent;
    const i64 index = rest - upper * extent;
    at.x += index * m.x_outer[d];
    at.y += index * m.y_outer[d];
    rest = upper;
  }
  return at;
}

// ---- teams ----------------------------------------------------------------------------------------------------------

/// Whether a row fits a warp (which then has one or several), the registers of a team of warps, or neither.
enum class Fit { kWarp, kTeam, kChunks };

/// This thread's place: which rows its team works on, and which segments of them are its warp's. kWidth: columns that
/// one lane holds. kShared: whether rows may share a warp.
template <Fit kFit, int kWidth, bool kShared>
struct Team {
  /// Columns of a row: beyond 2^31 they go in chunks.
  using Index = typename Choose<kFit == Fit::kChunks, i64, int>::type;

  int lane, lanes, warp, warps, chunks;
  i64 first, step;  ///< rows: first, first + step, ...; the same in all threads of a block
  int sub_row;      ///< of the rows that share a block

  KF_DEVICE explicit Team(const Geometry& g)
      : lanes(kShared ? g.lanes : 32), warps(kFit == Fit::kWarp ? 1 : g.warps), chunks(g.chunks) {
    const int block_warps = blockDim.x / 32, own = threadIdx.x / 32, place = threadIdx.x % 32;
    lane = place & (lanes - 1);
    if constexpr (kFit == Fit::kWarp) {
      const int rows_per_warp = 32 / lanes;
      warp = 0;
      sub_row = own * rows_per_warp + place / lanes;
      step = static_cast<i64>(gridDim.x) * block_warps * rows_per_warp;
      first = static_cast<i64>(blockIdx.x) * block_warps * rows_per_warp;
    } else {
      warp = block_rank() * block_warps + own;
      first = cluster_index();
      step = cluster_count();
      sub_row = 0;
    }
  }

  KF_DEVICE int segment() const { return kWidth * lanes; }
  KF_DEVICE int clamp_to_segment(Index n) const {
    return static_cast<int>(minimum<Index>(maximum<Index>(n, 0), segment()));
  }
  KF_DEVICE Span span(int chunk, Index cols) const {
    const Index begin = (static_cast<Index>(chunk) * warps + warp) * segment();
    int limit = clamp_to_segment(cols - begin);
    forget(limit);
    return {begin, limit, lane, lanes};
  }
  /// The columns of all warps of this block, and this thread's place among its threads.
  KF_DEVICE Span block_span(Index cols) const {
    const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
    if constexpr (kFit == Fit::kWarp) return {0, static_cast<int>(cols), thread, threads};
    const int segments = threads / 32, begin = (warp - thread / 32) * segment();
    return {begin, minimum(maximum(static_cast<int>(cols) - begin, 0), segments * segment()), thread, threads};
  }
  /// Columns that warp `w` of the team holds of a row, over all chunks: all but the last chunk are full.
  KF_DEVICE Index count(int w, Index cols) const {
    if constexpr (kFit != Fit::kChunks) return clamp_to_segment(cols - w * segment());
    const Index full = static_cast<Index>(chunks - 1) * segment();
    return full + clamp_to_segment(cols - full * warps - static_cast<Index>(w) * segment());
  }
};

/// The largest block: one that works on one row may need all the registers of an SM; where warps have rows of their
/// own it stays small, unless it keeps parameters for them.
template <Fit kFit, bool kKeeps>
inline constexpr int kLargestBlock = kFit == Fit::kWarp && !kKeeps ? kWarpRowsThreads : kMaxThreads;
/// Slots of a lane for which 64 registers a thread are enough; teams need some for the exchange.
template <class T, class Access, Fit kFit>
inline constexpr int kLeanSlots =
    Access::kLeanSlots / (kFit != Fit::kWarp && (sizeof(T) == 8 || !Access::kWholeSlots) ? 2 : 1);
/// Blocks of that size that an SM must have registers for, so that rows are in flight while others are reduced or
/// written: 64 registers a thread where that is enough, else 128.
template <class T, class Access, Fit kFit, int kSlots, bool kKeeps>
inline constexpr int kLeastBlocks =
    (kFit != Fit::kChunks && kSlots <= kLeanSlots<T, Access, kFit> ? 1024 : 512) / kLargestBlock<kFit, kKeeps>;

// ---- the kernel -----------------------------------------------------------------------------------------------------

/// Accumulates add(sum, value) over the held elements that exist: a sum per slot, then their sum, so that chains are
/// short. Slots that exist as a whole are masked as a whole.
template <class T, class Access, int K, class Add>
KF_DEVICE Compute<T> held_sum(Slot (&held)[K], const Span& s, Add add) {
  using C = Compute<T>;
  C sum = 0;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    C v[kLanes<T>], part = 0;
    forget(held[k]);
    unpack<T>(held[k], v);
#pragma unroll
    for (int j = 0; j < kLanes<T>; ++j) {
      if (Access::kWholeSlots || Access::valid(s, k, j)) part = add(part, v[j]);
    }
    sum += !Access::kWholeSlots || Access::valid(s, k, 0) ? part : C(0);
  }
  return sum;
}

/// Mean over the segment and this lane's share of the squares of deviations from it, from registers.
template <class T, class Access, int K, class Op>
KF_DEVICE Moments<Compute<T>> segment_moments(Slot (&held)[K], const Op& op, const Span& s) {
  using C = Compute<T>;
  const C sum = group_sum(held_sum<T, Access>(held, s, [&](C part, C v) { return part + op.value(v); }), s.lanes);
  const C mean = s.limit > 0 ? sum / C(s.limit) : C(0);
  return {mean, held_sum<T, Access>(held, s, [&](C part, C v) {
            const C d = op.value(v) - mean;
            return fused_multiply_add(d, d, part);
          })};
}

/// What the op fetches is under way for kAhead slots at a time.
template <class T, class Access, int kAhead, int K, class Op>
KF_DEVICE void write_segment(Slot (&held)[K], const Op& op, const typename Op::Row& row, char* y, i64 stride,
                             const Span& s) {
#pragma unroll
  for (int k = 0; k < K; k += kAhead) {
    typename Op::Parameters::template Fetched<Access> fetched[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) fetched[i] = op.parameters.template fetch<Access>(s, k + i);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      Compute<T> v[kLanes<T>];
      forget(held[k + i]);
      unpack<T>(held[k + i], v);
#pragma unroll
      for (int j = 0; j < kLanes<T>; ++j) v[j] = op.value(v[j]);
      op.template output<Access>(v, row, fetched[i]);
      Access::template store<Store::kStream>(pack<T>(v), y, stride, s, k + i);
    }
  }
}

/// y[r, :] = op.output(op.value(x[r, :]), moments of op.value(x[r, :])).
/// Block: up to 512 threads, of one or several rows or a part of one. Barriers: one per row where several warps share
/// it. Bytes: one read and one write of the matrix; one more read where it goes in chunks. The op:
///   C value(C x)                                               what the statistics are taken of
///   Row row(Moments<C>, C n)                                   once per row
///   void output<Access>(C (&v)[N], const Row&, const Fetched&) values of a slot to results
///   Parameters parameters                                      what is fetched per column; kKeeps: blocks may keep it
template <class T, class Access, Fit kFit, int K, class Op>
__global__ void __launch_bounds__(kLargestBlock<kFit, Op::Parameters::kKeeps>,
                                  kLeastBlocks<T, Access, kFit, K, Op::Parameters::kKeeps>)
    row_kernel(const __grid_constant__ Rows m, const __grid_constant__ Op given, const __grid_constant__ Geometry g) {
  using C = Compute<T>;
  using Place = Team<kFit, K * kLanes<T>, kFit == Fit::kWarp && K <= kSharedSlots>;
  using Index = typename Place::Index;
  constexpr int kAhead = K > 8 || kFit == Fit::kChunks ? 2 : 1;  // where registers allow it
  extern __shared__ __align__(16) char shared[];
  const Place team(g);
  Exchange exchange(shared + g.exchange_at, team.warps * static_cast<int>(sizeof(Moments<C>)));
  Op op = given;
  if constexpr (Op::Parameters::kKeeps && kFit != Fit::kChunks) {
    op.parameters.template keep<Access>(shared, team.block_span(static_cast<Index>(m.cols)));
  }

  for (i64 first = team.first; first < m.rows; first += team.step) {
    const bool exists = kFit != Fit::kWarp || first + team.sub_row < m.rows;
    const Index cols = exists ? static_cast<Index>(m.cols) : 0;
    const RowPointers row = locate(m, exists ? first + team.sub_row : first);

    Slot held[K];
    Moments<C> moments;
    if constexpr (kFit == Fit::kChunks) {
      RunningMoments<C> running;
      for (int chunk = 0; chunk < team.chunks; ++chunk) {
        const Span s = team.span(chunk, cols);
        Access::load(held, row.x, m.x_col, s);
        running.merge(C(s.limit), segment_moments<T, Access>(held, op, s));
      }
      moments = {running.mean, group_sum(running.within) + running.between};
    } else {
      const Span s = team.span(0, cols);
      Access::load(held, row.x, m.x_col, s);
      if (kFit == Fit::kTeam && m.outer_ndim == 1 && first + team.step < m.rows) {
        Access::prefetch(row.x + team.step * m.x_outer[0], s);  // keeps the memory busy during the exchange
      }
      moments = segment_moments<T, Access>(held, op, s);
      moments.m2 = group_sum(moments.m2, team.lanes);
    }
    if constexpr (Op::Parameters::kKeeps && kFit != Fit::kChunks) {
      wait_for_copies();
      if (kFit == Fit::kWarp && g.exchange_at > 0 && first == team.first) __syncthreads();
    }
    if constexpr (kFit != Fit::kWarp) {
      const Moments<C>* parts = exchange.share(moments, team.warp);
      moments = combine(parts, team.warps, C(cols), [&](int w) { return C(team.count(w, cols)); });
    }
    const typename Op::Row state = op.row(moments, C(cols));

    if constexpr (kFit == Fit::kChunks) {
      for (int chunk = team.chunks - 1; chunk >= 0; --chunk) {
        const Span s = team.span(chunk, cols);
        if (chunk < team.chunks - 1) Access::load(held, row.x, m.x_col, s);
        write_segment<T, Access, kAhead>(held, op, state, row.y, m.y_col, s);
      }
    } else {
      write_segment<T, Access, kAhead>(held, op, state, row.y, m.y_col, team.span(0, cols));
    }
  }
  exchange.finish();
}

}  // namespace kfusion::device
