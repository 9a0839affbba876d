// Rows with the sums of their columns, brought by bulk copies: no warp waits for another's part of a row.
//
// A team of warps has rows one after the other, each warp its part of every row. It takes the first sweep over a row,
// tells what that gives, and takes the second sweep over the row before, whose reductions one more warp has merged
// meanwhile; a third sweep is one more row behind. That warp also asks for later rows, into stages that all have left.
// So nobody stands still at a barrier while a row is reduced, and copies are always under way. Elements stay in shared
// memory for all sweeps: registers have the sums, and of elements no more than two vectors.
//
// F is what rows.cuh, ring.cuh (what is held and shared) and summed.cuh say. All sweeps but the last reduce.
#pragma once
#include "device/ring.cuh"
#include "device/summed.cuh"

namespace kfusion::device {

/// Sizes that the generator knows. Computing addresses from values of the launch took an eighth of all instructions
/// (results/kernels.md).
struct SummedRing {
  int vectors;      ///< of a lane, by twos
  int teams;        ///< of a block, each with a row at a time; or one of a block or a cluster
  int warps;        ///< of a team in a block, beside the one that merges
  int segments;     ///< of two vectors a lane, that a block has of a row
  int stages;       ///< of a team
  int room;         ///< bytes for what a warp or a block tells
  int value_bytes;  ///< upper bound that the host reserves for a row's values
  int run_bits;     ///< log2 of the rows of a run
};

/// Where a team's warps tell what they reduced, and find what came of it: two places for each sweep that reduces, used
/// in turns.
template <class F, SummedRing kRing>
struct Posts {
  static constexpr int kReducing = F::kSweeps - PartialOf<F, F::kSweeps - 1>::kNothing, kPlaces = 2 * kReducing;
  static constexpr int kValueBytes = (sizeof(typename F::Values) + 15) / 16 * 16;
  static constexpr int kBarriers = 2 * kPlaces;
  static constexpr int kPartBytes = kPlaces * kRing.warps * kRing.room, kBytes = kPartBytes + kPlaces * kValueBytes;

  Barrier* barriers;
  char* memory;

  KF_DEVICE void make() const {
#pragma unroll 1
    for (int i = 0; i < kPlaces; ++i)
      make_meeting(barriers + 2 * i, kRing.warps), make_meeting(barriers + 2 * i + 1, 1);
  }
  /// Partial results of the team's row number `i`.
  template <int kSweep>
  KF_DEVICE PartialOf<F, kSweep>* parts(int i) const {
    static_assert(sizeof(Told<PartialOf<F, kSweep>>) <= kRing.room);
    return reinterpret_cast<PartialOf<F, kSweep>*>(memory + place(kSweep, i) * kRing.warps * kRing.room);
  }
  KF_DEVICE typename F::Values* values(int sweep, int i) const {
    return reinterpret_cast<typename F::Values*>(memory + kPartBytes + place(sweep, i) * kValueBytes);
  }
  KF_DEVICE void tell(int sweep, int i) const { arrive(barriers + 2 * place(sweep, i)); }
  KF_DEVICE void wait_until_told(int sweep, int i) const { wait_for_all(barriers + 2 * place(sweep, i), phase(i)); }
  KF_DEVICE void answer(int sweep, int i) const { arrive(barriers + 2 * place(sweep, i) + 1); }
  KF_DEVICE void wait_for_answer(int sweep, int i) const { wait_for_all(barriers + 2 * place(sweep, i) + 1, phase(i)); }

 private:
  static KF_DEVICE int place(int sweep, int i) { return 2 * sweep + (i & 1); }
  static KF_DEVICE u32 phase(int i) { return i >> 1 & 1; }
};

/// The rows of a team: runs of neighbours, in turns with all other teams, so that they go through memory together from
/// its beginning to its end. What is no run for each team is shared row by row.
template <class F, SummedRing kRing>
struct TeamRows {
  static constexpr int kRunBits = kRing.run_bits;
  const F& f;
  int team, teams, in_runs, count;
  KF_DEVICE TeamRows(const F& f, int rows, int team, int teams)
      : f(f),
        team(team),
        teams(teams),
        in_runs(rows / (teams << kRunBits) << kRunBits),
        count(maximum(rows - team + teams - 1, 0) / teams) {}
  KF_DEVICE auto line(int i) const {
    const int in_run = (((i >> kRunBits) * teams + team) << kRunBits) + (i & ((1 << kRunBits) - 1));
    return f.line(static_cast<typename F::Row>(i < in_runs ? in_run : i * teams + team));
  }
};

/// Stages in shared memory that each have room for a row of a team, or its block's part of one, and for what is read of
/// the row before its elements.
template <class F, SummedRing kRing>
struct Stages {
  static constexpr int kCount = kRing.stages, kBarriers = 3 * kCount, kVectors = kRing.segments * 64;
  static constexpr int kStageBytes = kVectors * F::kHeldBytes, kBytes = kCount * kStageBytes;
  static constexpr int kValueBytes = Posts<F, kRing>::kValueBytes, kBegunBytes = kCount * kValueBytes;
  char *memory, *begun_values;
  Barrier *full, *begun, *left;
  KF_DEVICE Stages(char* memory, Barrier* barriers, char* begun_values)
      : memory(memory),
        begun_values(begun_values),
        full(barriers),
        begun(barriers + kCount),
        left(barriers + 2 * kCount) {}
  KF_DEVICE char* stage(int i) const { return memory + i * kStageBytes; }
  KF_DEVICE typename F::Values* values(int i) const {
    return reinterpret_cast<typename F::Values*>(begun_values + i * kValueBytes);
  }
  KF_DEVICE void make_full() const {
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) make_barrier(full + i);
  }
  KF_DEVICE void make_others() const {
#pragma unroll 1
    for (int i = 0; i < kCount; ++i) make_meeting(begun + i, 1), make_meeting(left + i, kRing.warps);
  }
  /// Asks for vectors of a row from number `first` on. One thread calls it.
  KF_DEVICE void ask(const F& f, const typename F::Line& line, int first, int i) const {
    const i64 all = (f.elements(line) + F::kWidth - 1) / F::kWidth;
    const int some = static_cast<int>(minimum<i64>(maximum<i64>(all - first, 0), kVectors));
    f.start(line, f.place(line, static_cast<typename F::Index>(first) * F::kWidth).first, some * F::kWidth, stage(i),
            kVectors, full + i);
  }
};

/// A warp that has part of each row of its team.
template <class F, SummedRing kRing>
class SummedWorker {
 public:
  static constexpr int kK = kRing.vectors, kVec = 2, kSegments = kK / kVec;
  static_assert(kK % kVec == 0);
  using Shared = SharedSegments<F, kVec, kSegments>;
  using Places = SegmentPlaces<F, kVec, Shared>;
  using Sums = typename F::Held::Sums;

  /// Has segments begin ... begin + size of a row, from number `own` on of its block's.
  KF_DEVICE SummedWorker(const F& f, const TeamRows<F, kRing>& rows, const Posts<F, kRing>& posts,
                         const Stages<F, kRing>& stages, const Shared& shared, int of_team, int begin, int size)
      : f_(f),
        rows_(rows),
        posts_(posts),
        stages_(stages),
        shared_(shared),
        of_team_(of_team),
        begin_(begin),
        size_(size) {}

  KF_DEVICE void run() {
    shared_.wait();
#pragma unroll 1
    for (int step = 0; step < rows_.count + F::kSweeps - 1; ++step) sweep_rows<0>(step);
  }
  KF_DEVICE Sums& sums(int k) { return sums_[k]; }
  KF_DEVICE void put_sums(i64 part) const {
    const auto line = f_.line(0);
    const Places places = this->places(line);
#pragma unroll
    for (int k = 0; k < kK; ++k) {
      typename F::Held held{};
      held.sums = sums_[k];
      if (const auto at = places(k); at.count > 0) f_.put_sums(line, at, held, part);
    }
  }

 private:
  static KF_DEVICE int lane() { return threadIdx.x % 32; }
  KF_DEVICE Places places(const typename F::Line& line) const { return {f_, line, shared_, 0, begin_, size_, lane()}; }

  /// Each sweep over the row whose turn it is.
  template <int kSweep>
  KF_DEVICE void sweep_rows(int step) {
    if (const int i = step - kSweep; i >= 0 && i < rows_.count) sweep_row<kSweep>(i);
    if constexpr (kSweep + 1 < F::kSweeps) sweep_rows<kSweep + 1>(step);
  }

  template <int kSweep>
  KF_DEVICE void sweep_row(int i) {
    constexpr bool kLast = kSweep + 1 == F::kSweeps, kReduces = !PartialOf<F, kSweep>::kNothing;
    static_assert(kLast || kReduces);
    int& stage = at_[kSweep];
    const auto line = rows_.line(i);
    typename F::Values values;
    if constexpr (kSweep == 0) {
      wait_for_all(stages_.begun + stage, parity_);
      values = *stages_.values(stage);
      wait_for_copies(stages_.full + stage, parity_);
      if (stage + 1 == Stages<F, kRing>::kCount) parity_ ^= 1;
    } else {
      posts_.wait_for_answer(kSweep - 1, i);
      values = *posts_.values(kSweep - 1, i);
    }
    auto total = reduced_row<kSweep>(line, values, stages_.stage(stage));
    if constexpr (kReduces) {
      merge_lanes(total, 32);
      if (kLast && i >= 2) posts_.wait_for_answer(kSweep, i - 2);
      __syncwarp();  // all have read what came of the row before the last one
      if (lane() == 0) posts_.template parts<kSweep>(i)[of_team_] = total, posts_.tell(kSweep, i);
    }
    if constexpr (kLast) {
      fence_before_copies();
      __syncwarp();
      if (lane() == 0) arrive(stages_.left + stage);
    }
    if (++stage == Stages<F, kRing>::kCount) stage = 0;
  }

  template <int kSweep>
  KF_DEVICE auto reduced_row(const typename F::Line& line, const typename F::Values& values, const char* stage) {
    const Places places = this->places(line);
    auto total = f_.partial(Sweep<kSweep>());
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      if (s >= size_) break;
      typename F::Held held[kVec];
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        held[v] = f_.take(stage, Stages<F, kRing>::kVectors, (of_team_ * kK + s * kVec + v) * 32 + lane());
        held[v].sums = sums_[s * kVec + v];
      }
      total.merge(reduced_batch<kSweep>(f_, line, places, held, s * kVec, values));
#pragma unroll
      for (int v = 0; v < kVec; ++v) sums_[s * kVec + v] = held[v].sums;
    }
    return total;
  }

  const F& f_;
  const TeamRows<F, kRing>& rows_;
  const Posts<F, kRing>& posts_;
  const Stages<F, kRing>& stages_;
  const Shared& shared_;
  int of_team_, begin_, size_, at_[F::kSweeps] = {};
  u32 parity_ = 0;
  Sums sums_[kK] = {};
};

/// The warp that brings what those of its team sweep over, and merges what they tell, in all its blocks.
template <class F, SummedRing kRing>
class SummedMerger {
  static constexpr int kFirst = 2;  ///< rows that it asks for at once, before the others start: each takes its time

 public:
  /// `shared`: for the exchanges of all sweeps, where blocks share rows.
  KF_DEVICE SummedMerger(const F& f, const TeamRows<F, kRing>& rows, const Posts<F, kRing>& posts,
                         const Stages<F, kRing>& stages, const Blocks& b, char* shared)
      : f_(f), rows_(rows), posts_(posts), stages_(stages), blocks_(b), shared_(shared) {}
  static KF_DEVICE int bytes(const Blocks& b) { return ClusterExchange::kBarrierBytes + 2 * b.count * b.room; }

  /// Makes the team's barriers, and asks for its first rows as soon as there are those that count what comes.
  KF_DEVICE void start() {
    if (lane() < minimum(Stages<F, kRing>::kCount, rows_.count)) begun_ = begin(lane());
    if (lane() == 0) stages_.make_full();
    fence_barriers();
#pragma unroll 1
    for (int i = 0; i < kFirst; ++i) ask(i, i);
    if (lane() == 0) stages_.make_others(), posts_.make();
  }
  KF_DEVICE void run() {
    if (lane() < minimum(Stages<F, kRing>::kCount, rows_.count)) tell_begun(lane());
    int stage = 0, untold = -1;
    u32 parity = 0;
#pragma unroll 1
    for (int step = 0; step < rows_.count + F::kSweeps - 1; ++step) {
      if (untold >= 0 && lane() == 0) tell_begun(untold);
      __syncwarp();
      untold = -1;
      if (const int i = step + kFirst; i < Stages<F, kRing>::kCount) ask(i, i);
      merge_rows<0>(step);
      const int i = step + 1 - F::kSweeps;  // whose last sweep this step has
      if (i < 0 || i + Stages<F, kRing>::kCount >= rows_.count) continue;
      wait_for_all(stages_.left + stage, parity);
      ask(stage, i + Stages<F, kRing>::kCount);
      begun_ = begin(i + Stages<F, kRing>::kCount);  // on its way until the next step
      untold = stage;
      if (++stage == Stages<F, kRing>::kCount) stage = 0, parity ^= 1;
    }
  }

 private:
  static KF_DEVICE int lane() { return threadIdx.x % 32; }
  KF_DEVICE auto begin(int i) const {
    const auto line = rows_.line(i);
    return f_.begin(line, f_.place(line, 0));
  }
  KF_DEVICE void tell_begun(int stage) const { *stages_.values(stage) = begun_, arrive(stages_.begun + stage); }
  KF_DEVICE void ask(int stage, int i) const {
    if (lane() == 0 && i < rows_.count)
      stages_.ask(f_, rows_.line(i), blocks_.rank * Stages<F, kRing>::kVectors, stage);
    __syncwarp();
  }

  template <int kSweep>
  KF_DEVICE void merge_rows(int step) {
    if (const int i = step - kSweep; i >= 0 && i < rows_.count) merge_row<kSweep>(i);
    if constexpr (kSweep + 1 < F::kSweeps) merge_rows<kSweep + 1>(step);
  }

  template <int kSweep>
  KF_DEVICE void merge_row(int i) {
    using P = PartialOf<F, kSweep>;
    constexpr bool kLast = kSweep + 1 == F::kSweeps;
    const Sweep<kSweep> sweep;
    const auto line = rows_.line(i);
    const int lane = this->lane();
    typename F::Values values;
    if constexpr (kSweep == 0) {
      values = *stages_.values(at_);
      if (++at_ == Stages<F, kRing>::kCount) at_ = 0;
    } else {
      values = *posts_.values(kSweep - 1, i);
    }
    const P identity = f_.partial(sweep);
    P part = identity;
    if constexpr (!P::kNothing) {
      posts_.wait_until_told(kSweep, i);
      if (lane < kRing.warps) part = posts_.template parts<kSweep>(i)[lane];
      merge_lanes(part, 32);
      if (blocks_.count > 1)  // its barriers have been made by the first threads of the block
        part = ClusterExchange(blocks_, shared_ + kSweep * bytes(blocks_))
                   .merged(Told<P>{part, 0}, identity, i, lane)
                   .part;
    }
    f_.finish(sweep, values, part);
    if constexpr (!P::kNothing) {
      __syncwarp();
      if (lane == 0) *posts_.values(kSweep, i) = values, posts_.answer(kSweep, i);
      __syncwarp();
    }
    if (kLast && blocks_.rank == 0 && lane == 0) f_.end(line, f_.place(line, 0), values);
  }

  const F& f_;
  const TeamRows<F, kRing>& rows_;
  const Posts<F, kRing>& posts_;
  const Stages<F, kRing>& stages_;
  Blocks blocks_;
  char* shared_;
  int at_ = 0;                ///< stage of the row whose first sweep is the next to be merged
  typename F::Values begun_;  ///< of a row that was asked for
};

/// g.splits: parts, each of which a block or a cluster has: rows part, part + g.splits, ... Barriers: none but at both
/// ends. Shared memory: stages, what all rows share, barriers, then what is told, and rows' values; what the teams'
/// sums need in the end takes the place of stages.
template <class F, SummedRing kRing>
KF_DEVICE void summed_ring_rows(const F& f, const Geometry& g) {
  using Post = Posts<F, kRing>;
  using Stage = Stages<F, kRing>;
  using Worker = SummedWorker<F, kRing>;
  using Merger = SummedMerger<F, kRing>;
  using Shared = typename Worker::Shared;
  static_assert(F::kEdges == 0 && Post::kValueBytes <= kRing.value_bytes);
  extern __shared__ __align__(16) char shared[];
  let_next_kernel_start();  // which adds up the parts
  constexpr int kWarps = kRing.warps, kTeams = kRing.teams;
  const int own = threadIdx.x / 32;
  const bool works = own < kTeams * kWarps;
  const int team = works ? own / kWarps : own - kTeams * kWarps, of_team = works ? own % kWarps : 0;
  const Blocks blocks{static_cast<int>(block_count()), static_cast<int>(block_rank()), kRing.room};
  constexpr int kSegments = Worker::kSegments;
  const int before = of_team * kSegments, begin_segment = blocks.rank * kRing.segments + before;
  const int size =
      kRing.segments == kWarps * kSegments ? kSegments : minimum(maximum(kRing.segments - before, 0), kSegments);

  char* memory = shared + kTeams * Stage::kBytes;
  char* const kept = memory + of_team * Shared::kBytes;
  memory += kWarps * Shared::kBytes;
  constexpr int kTeamBarriers = Stage::kBarriers + Post::kBarriers;
  Barrier* const barriers = reinterpret_cast<Barrier*>(memory) + kWarps + team * kTeamBarriers;
  Barrier* const kept_full = reinterpret_cast<Barrier*>(memory) + of_team;
  memory += ((kWarps + kTeams * kTeamBarriers) * static_cast<int>(sizeof(Barrier)) + 15) / 16 * 16;
  const Stage stages(shared + team * Stage::kBytes, barriers, memory + team * Stage::kBegunBytes);
  memory += kTeams * Stage::kBegunBytes;
  const Post posts{barriers + Stage::kBarriers, memory + team * Post::kBytes};
  memory += kTeams * Post::kBytes;
  for (int sweep = 0; sweep < Post::kReducing && blocks.count > 1; ++sweep)
    ClusterExchange(blocks, memory + sweep * Merger::bytes(blocks));

  const int part = static_cast<int>(cluster_index()), parts = static_cast<int>(g.splits);
  const TeamRows<F, kRing> rows(f, static_cast<int>(g.rows), part * kTeams + team, kTeams * parts);
  const Shared what_is_shared(f, kept_full, kept, works && team == 0);
  const auto meet = [&] {
    fence_barriers();
    __syncthreads();
    if (blocks.count > 1) cluster_arrive(), cluster_wait();
  };
  if (works) {
    Worker worker(f, rows, posts, stages, what_is_shared, of_team, begin_segment, size);
    fence_barriers();
    if (team == 0) what_is_shared.fill(begin_segment, size);
    meet();
    worker.run();
    join_sums<kTeams, kRing.vectors, typename Worker::Sums>([&](int k) -> auto& { return worker.sums(k); }, shared,
                                                            team, of_team * 32 + threadIdx.x % 32, kWarps * 32);
    if (team == 0) worker.put_sums(part);
  } else {
    Merger merger(f, rows, posts, stages, blocks, memory);
    merger.start();
    meet();
    merger.run();
    for (int half = kTeams / 2; half > 0; half /= 2) __syncthreads(), __syncthreads();  // as in join_sums()
  }
  if (blocks.count > 1) cluster_arrive(), cluster_wait();
}

}  // namespace kfusion::device
