// Rows, and beside them the sums of their columns: the teams of a block have a part of the rows, one after the other,
// and the sums of its columns in registers.
//
// F is what rows.cuh says, and:
//   Held::sums                                the sums so far, which sweeps add to; add(sums) joins two
//   void put_sums(line, at, Held, part)       at the end of a part, of a vector that exists
#pragma once
#include "device/rows.cuh"

namespace kfusion::device {

/// What the teams of a block sum, in one of them, by a fixed tree: sums(k) is what a thread has of its vector k.
/// `shared`: for half of the block's threads.
template <int kTeams, int kK, class Sums, class SumsOf>
KF_DEVICE void join_sums(const SumsOf& sums, char* shared, int team, int thread, int threads) {
  constexpr int kPieces = sizeof(Sums) / sizeof(u64);  // so that lanes side by side write to different banks
  static_assert(sizeof(Sums) % sizeof(u64) == 0);
  u64 piece[kPieces];
#pragma unroll
  for (int half = kTeams / 2; half > 0; half /= 2) {
    __syncthreads();  // also: what the exchanges had there has been read
    u64* const there = reinterpret_cast<u64*>(shared) + (team % half * kK * kPieces * threads + thread);
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      memcpy(piece, &sums(k), sizeof piece);
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        if (team >= half && team < 2 * half) there[(k * kPieces + i) * threads] = piece[i];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      if (team >= half) break;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) piece[i] = there[(k * kPieces + i) * threads];
      Sums others;
      memcpy(&others, piece, sizeof piece);
      sums(k).add(others);
    }
  }
}

/// kK vectors a lane; kTeams of a block, each with a row at a time, or one of a block or a cluster. g.splits: parts,
/// each of which a block or a cluster has: rows part * g.rows / g.splits to (part + 1) * g.rows / g.splits. The next
/// row is under way while one is reduced. Barriers: one of a team per reducing sweep.
template <class F, int kK, int kTeams>
KF_DEVICE void summed_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  using Places = RowPlaces<F, kK, 32>;
  static_assert(F::kEdges == 0);
  extern __shared__ __align__(16) char shared[];
  let_next_kernel_start();  // which adds up the parts
  const int threads = static_cast<int>(blockDim.x) / kTeams, warps = static_cast<int>(g.warps);
  const int team = static_cast<int>(threadIdx.x) / threads, of_team = static_cast<int>(threadIdx.x) % threads;
  const int warp = block_rank() * (threads / 32) + of_team / 32, lane = of_team % 32;
  const auto exchange = [&] {
    if constexpr (kTeams > 1)
      return TeamExchange(shared + team * 2 * g.box, static_cast<int>(g.box), {team, threads});
    else
      return Exchange(shared, static_cast<int>(g.box));
  };
  auto exchanged = exchange();
  const auto combine = [&]<class P>(P& own_part, const P& identity) {
    if constexpr (!P::kNothing) merge_team(own_part, identity, exchanged, warp, warps);
  };
  const i64 part = cluster_index(), begin = part * g.rows / g.splits, end = (part + 1) * g.rows / g.splits;
  i64 row = begin + team;
  const auto first = f.line(static_cast<Row>(row < end ? row : begin));
  HeldRow<F, kK, 0> held, next;
  load_held(f, first, Places{f, first, warp, lane, true}, held);
  for (; row < end; row += kTeams) {
    const auto line = f.line(static_cast<Row>(row));
    const auto behind = f.line(static_cast<Row>(row + kTeams < end ? row + kTeams : row));
    load_held(f, behind, Places{f, behind, warp, lane, true}, next);
    __syncwarp();  // as in team_rows()
    const Places places{f, line, warp, lane, true};
    typename F::Values values = f.begin(line, places(0));
    sweep_held<0>(f, line, places, held, values, combine);
    if (warp == 0 && lane == 0) f.end(line, places(0), values);
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      next.vectors[k].sums = held.vectors[k].sums;
      held.vectors[k] = next.vectors[k];
    }
  }
  join_sums<kTeams, kK, typename F::Held::Sums>([&](int k) -> auto& { return held.vectors[k].sums; }, shared, team,
                                                of_team, threads);
  const Places places{f, first, warp, lane, true};
  if (team == 0) {
#pragma unroll
    for (int k = 0; k < kK; ++k)
      if (const auto at = places(k); at.count > 0) f.put_sums(first, at, held.vectors[k], part);
  }
  if constexpr (kTeams == 1) exchanged.finish();
}

}  // namespace kfusion::device
