// Few long rows: each is shared by blocks anywhere that run at the same time, all of it at once on chip.
//
// A warp has neighbouring vectors of the row: kK a lane in registers, and where these are too few, more of them in
// shared memory, which one bulk copy brings. F is what rows.cuh and ring.cuh say; sweeps change nothing of what is
// held.
#pragma once
#include "device/ring.cuh"

namespace kfusion::device {

/// How many of F's sweeps from kSweep on reduce.
template <class F, int kSweep = 0>
KF_DEVICE constexpr int reducing_sweeps() {
  if constexpr (kSweep == F::kSweeps) {
    return 0;
  } else {
    return (PartialOf<F, kSweep>::kNothing ? 0 : 1) + reducing_sweeps<F, kSweep + 1>();
  }
}

/// Vector k of a lane, where a warp has those from segment `begin` on; a segment is a vector of each lane.
template <class F, int kMost>
struct StretchPlaces {
  static constexpr int kBatch = kMost < 4 ? kMost : 4, kAhead = kBatch % 2 == 0 ? 2 : 1;
  static constexpr bool kAlone = false;
  using Index = typename F::Index;
  const F& f;
  const typename F::Line& line;
  int begin, lane;
  KF_DEVICE auto operator()(int k) const { return f.place(line, first(k) + lane * F::kWidth); }
  template <class Sweep>
  KF_DEVICE auto fetch(const Sweep& sweep, const typename F::At& at, int) const {
    return f.fetch(sweep, line, at);
  }
  static KF_DEVICE bool has(int) { return true; }
  KF_DEVICE bool some(int k) const { return first(k) < static_cast<Index>(f.elements(line)); }
  KF_DEVICE bool whole(int k) const { return first(k + kBatch) <= static_cast<Index>(f.elements(line)); }
  static constexpr int kEdges = (F::kEdges + 31) / 32;  ///< of a lane
  KF_DEVICE auto edge(int i) const {
    auto at = f.edge(line, i * 32 + lane);
    if (begin > 0) at.count = 0;
    return at;
  }
  KF_DEVICE Index first(int k) const { return static_cast<Index>(begin + k) * (32 * F::kWidth); }
};

/// A warp's vectors after the kK in registers: `size` a lane, in shared memory.
template <class F, int kK, bool kStaged>
class Stage {
 public:
  using Places = StretchPlaces<F, kK>;
  static constexpr int kBatch = Places::kBatch;

  /// One bulk copy is under way from here on.
  KF_DEVICE Stage(const F& f, const typename F::Line& line, const Places& places, char* memory, Barrier* full, int size)
      : f_(f), line_(line), places_(places), memory_(memory), full_(full), size_(size) {
    using Index = typename F::Index;
    if (!kStaged || !places.some(kK)) size_ = 0;
    if (size_ == 0 || places.lane != 0) return;
    make_barrier(full);
    fence_barriers();
    const Index first = places.first(kK), most = static_cast<Index>(size) * (32 * F::kWidth);
    const Index rest = static_cast<Index>(f.elements(line)) - first;
    f.start(line, f.place(line, first).first, static_cast<int>(minimum(rest, most)), memory, size * 32, full);
  }

  template <int kSweep, class Use>
  KF_DEVICE void for_each(const Use& use) const {
    if constexpr (kStaged) {
      if (size_ == 0) return;
      if constexpr (kSweep == 0) __syncwarp(), wait_for_copies(full_, 0);
#pragma unroll 1
      for (int v = 0; v < size_ && places_.some(kK + v); v += kBatch) {
        typename F::Held held[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i) held[i] = f_.take(memory_, size_ * 32, (v + i) * 32 + places_.lane);
        use_batch<kSweep>(f_, line_, places_, held, kK + v, use);
      }
    }
  }

 private:
  const F& f_;
  const typename F::Line& line_;
  const Places& places_;
  char* memory_;
  Barrier* full_;
  int size_;
};

/// Sweep after sweep over what a warp holds.
template <int kSweep, class F, class Places, class Held, class Stage, class Combine>
KF_DEVICE void sweep_spread(const F& f, const typename F::Line& line, const Places& places, Held& held,
                            const Stage& stage, typename F::Values& values, const Combine& combine) {
  auto total = reduced<kSweep>(f, line, values, [&](const auto& use) {
    for_each_held<kSweep>(f, line, places, held, use);
    stage.template for_each<kSweep>(use);
  });
  combine(total, f.partial(Sweep<kSweep>()));
  f.finish(Sweep<kSweep>(), values, total);
  if constexpr (kSweep + 1 < F::kSweeps) sweep_spread<kSweep + 1>(f, line, places, held, stage, values, combine);
}

/// Grid: the blocks of a row along x, rows along y. kK vectors a lane in registers, g.ahead in shared memory (kStaged:
/// any). Barriers: four per reducing sweep. Shared memory: the stages of warps, a Barrier each, and a Told (of g.box
/// bytes) of each, of all and of each block. Standing: what MemoryExchange needs, for each row.
template <class F, int kK, bool kStaged>
KF_DEVICE void spread_rows(const F& f, const Geometry& g, char* standing) {
  using Row = typename F::Row;
  extern __shared__ __align__(16) char shared[];
  const Blocks blocks{static_cast<int>(gridDim.x), static_cast<int>(blockIdx.x), static_cast<int>(g.box)};
  const int warps = blockDim.x / 32, own = threadIdx.x / 32, lane = threadIdx.x % 32,
            staged = static_cast<int>(g.ahead);
  const auto line = f.line(static_cast<Row>(blockIdx.y));
  const StretchPlaces<F, kK> places{f, line, (blocks.rank * warps + own) * (kK + staged), lane};

  const int stage_bytes = staged * 32 * F::kHeldBytes;
  Barrier* full = reinterpret_cast<Barrier*>(shared + warps * stage_bytes);
  char* told = shared + warps * stage_bytes + (warps * static_cast<int>(sizeof(Barrier)) + 15) / 16 * 16;
  const Stage<F, kK, kStaged> stage(f, line, places, shared + own * stage_bytes, full + own, staged);
  HeldRow<F, kK, StretchPlaces<F, kK>::kEdges> held;
  load_held(f, line, places, held);
  if (lane == 0) prefetch_later(f, line, places.first(0), (kK + staged) * 32);

  const MemoryExchange exchange(blocks, standing + blockIdx.y * MemoryExchange::bytes(blocks),
                                told + (warps + 1) * blocks.room);
  TeamMerge<MemoryExchange> merge(exchange, blocks, told);
  int round = 0;
  u32 place = 0, unused = 0;
  const auto combine = [&]<class P>(P& part, const P& identity) {
    if constexpr (!P::kNothing) {
      merge(part, identity, unused);
      if (++round == reducing_sweeps<F>()) place = exchange.arrive();  // answered while results are stored
    }
  };
  typename F::Values values = f.begin(line, places(0));
  sweep_spread<0>(f, line, places, held, stage, values, combine);
  if (blocks.rank == 0 && threadIdx.x == 0) f.end(line, places(0), values);
  exchange.leave(place);
}

}  // namespace kfusion::device
