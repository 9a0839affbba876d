// Rows, and beside them the sums of their columns: a team has a part of the rows, one after the other, and the sums of
// its columns in registers.
//
// F is what rows.cuh says, and:
//   Held::take_sums_of(before)                the sums so far, which sweeps add to
//   void put_sums(line, at, Held, part)       at the end of a part
#pragma once
#include "device/rows.cuh"

namespace kfusion::device {

/// kK vectors a lane. g.splits: parts, each of which a block or a cluster has: rows part * g.rows / g.splits to
/// (part + 1) * g.rows / g.splits. The next row is under way while one is reduced. Barriers: one per reducing sweep.
template <class F, int kK>
KF_DEVICE void summed_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  using Places = RowPlaces<F, kK, 32>;
  static_assert(F::kEdges == 0);
  extern __shared__ __align__(16) char shared[];
  const int block_warps = blockDim.x / 32, warps = static_cast<int>(g.warps);
  const int warp = block_rank() * block_warps + threadIdx.x / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Exchange exchange(shared, static_cast<int>(g.box));
  const auto combine = [&]<class P>(P& own_part, const P& identity) {
    if constexpr (!P::kNothing) merge_team(own_part, identity, exchange, warp, warps);
  };
  const i64 part = cluster_index(), end = (part + 1) * g.rows / g.splits;
  i64 row = part * g.rows / g.splits;
  const auto first = f.line(static_cast<Row>(row));
  HeldRow<F, kK, 0> held, next;
  load_held(f, first, Places{f, first, warp, lane, true}, held);
  for (; row < end; ++row) {
    const auto line = f.line(static_cast<Row>(row));
    const auto behind = f.line(static_cast<Row>(row + 1 < end ? row + 1 : row));
    load_held(f, behind, Places{f, behind, warp, lane, true}, next);
    __syncwarp();  // as in team_rows()
    const Places places{f, line, warp, lane, true};
    typename F::Values values = f.begin(line, places(0));
    sweep_held<0>(f, line, places, held, values, combine);
    if (warp == 0 && lane == 0) f.end(line, places(0), values);
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      next.vectors[k].take_sums_of(held.vectors[k]);
      held.vectors[k] = next.vectors[k];
    }
  }
  const Places places{f, first, warp, lane, true};
#pragma unroll
  for (int k = 0; k < kK; ++k)
    if (const auto at = places(k); at.count > 0) f.put_sums(first, at, held.vectors[k], part);
  exchange.finish();
}

}  // namespace kfusion::device
