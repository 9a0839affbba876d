// Many rows of odd width with weights, which shared memory keeps in planes: blocks stay for many rows, which their
// teams take from a counter.
//
// F is what rows.cuh says, and:
//   Line::planes                         of operands that all rows share (planes.cuh)
//   entry(line, element)                 of them, from global memory
#pragma once
#include "device/planes.cuh"
#include "device/rows.cuh"

namespace kfusion::device {

/// Exchanges between the warps of a team, as Exchange has them; `next` of the first warp's first lane becomes that of
/// all.
class WarpExchange : public TeamExchange {
 public:
  static constexpr int kToldBytes = 16;
  u32 next = 0;

  /// `memory`: kToldBytes, and two boxes.
  KF_DEVICE WarpExchange(char* memory, int box_bytes, TeamBarrier barrier)
      : TeamExchange(memory + kToldBytes, box_bytes, barrier), told_(reinterpret_cast<u32*>(memory)) {}
  template <class V>
  KF_DEVICE const V* share(const V& own, int warp) {
    u32* const told = told_ + rounds_ % 2;
    if (threadIdx.x % 32 == 0 && warp == 0) *told = next;
    const V* const parts = TeamExchange::share(own, warp);
    next = *told;
    return parts;
  }

 private:
  u32* told_;
};

/// RowPlaces with entries of one vector at a time, which take many registers.
template <class F, int kK, int kLanes>
struct WeightedPlaces : RowPlaces<F, kK, kLanes> {
  static constexpr int kAhead = 1;
};

/// kLanes lanes of each of kWarps warps hold a row, in kK vectors each. g.splits, a power of two: how often a team does
/// so before it asks for more; g.warps: how often it can ask; g.box: bytes of an exchange's box. Shared memory: the
/// planes, then an exchange of each team. Standing: a counter of 16 bytes. Barriers: one for the planes, and of a team
/// one per reducing sweep.
template <class F, int kLanes, int kWarps, int kK>
KF_DEVICE void weighted_rows(const F& f, const Geometry& g, char* standing) {
  using Row = typename F::Row;
  using Places = WeightedPlaces<F, kK, kLanes>;
  constexpr int kAtOnce = 32 / kLanes;
  extern __shared__ __align__(16) char shared[];
  decltype(F::Line::planes) planes;
  planes.fill(f, shared, 0, static_cast<int>((f.elements() + F::kWidth - 1) / F::kWidth));
  __syncthreads();

  const int team = threadIdx.x / (32 * kWarps), teams = blockDim.x / (32 * kWarps);
  const int warp = threadIdx.x / 32 % kWarps, lane = threadIdx.x % 32;
  WarpExchange exchange(shared + planes.kBytes + team * (2 * static_cast<int>(g.box) + WarpExchange::kToldBytes),
                        static_cast<int>(g.box), {team, 32 * kWarps});
  const auto combine = [&]<class P>(P& part, const P& identity) {
    if constexpr (!P::kNothing && kWarps == 1) merge_lanes(part, kLanes);
    if constexpr (!P::kNothing && kWarps > 1) merge_team(part, identity, exchange, warp, kWarps);
  };
  const Row share = static_cast<Row>(g.splits);
  for (Row turn = static_cast<Row>(blockIdx.x * teams + team) * share; turn * kAtOnce < static_cast<Row>(g.rows);) {
    if ((turn & (share - 1)) == 0 && warp == 0 && lane == 0)  // the counter is 0 again after the last one has asked
      exchange.next = gridDim.x * teams + atomicInc(reinterpret_cast<u32*>(standing), static_cast<u32>(g.warps) - 1);
    const Row first = turn * kAtOnce, row = first + lane / kLanes;
    const bool exists = kAtOnce == 1 || row < static_cast<Row>(g.rows);
    auto line = f.line(exists ? row : first);
    line.planes = planes;
    const Places places{{f, line, warp, lane % kLanes, exists}};
    HeldRow<F, kK, Places::kEdges> held;
    load_held(f, line, places, held);
    __syncwarp();
    typename F::Values values = f.begin(line, places(0));
    sweep_held<0>(f, line, places, held, values, combine);
    if (exists && warp == 0 && places.lane == 0) f.end(line, places(0), values);
    if ((++turn & (share - 1)) != 0) continue;
    if constexpr (kWarps == 1) exchange.next = __shfl_sync(0xffffffffu, exchange.next, 0);
    turn = static_cast<Row>(exchange.next) * share;
  }
}

}  // namespace kfusion::device
