// Row kernels for long rows: blocks that stay for many rows keep memory busy while they exchange what they reduced.
//
// A row is shared by the warps of a team: of a block, or of a cluster of blocks. Each warp has a ring of stages in
// shared memory that bulk copies fill. A stage that has come is emptied into registers, where the warp's part of the
// row stays for all sweeps, and at once asked to fetch what the warp needs next, which soon is of the next row. So
// loads never wait for an exchange or for the stores of results. Nobody spins on memory: blocks of a cluster tell each
// other their parts by messages that a barrier counts.
//
// F is what rows.cuh says, and for operands that are held:
//   kHeldBytes                                       of one vector of all of them
//   void start(line, first element, elements, stage, vectors, Barrier*)   copies, one after the other operand, each
//                                                    with room for `vectors`; the barrier expects them
//   Held take(stage, vectors, vector)                of a stage that has come
#pragma once
#include "device/async.cuh"
#include "device/rows.cuh"

namespace kfusion::device {

/// Merges what the warps of a team have. A part has at most `room` bytes, a multiple of 16.
class TeamMerge {
 public:
  /// Two barriers, a part for each warp of the block and one of the team, two boxes of a message from each block.
  static KF_DEVICE int bytes(int warps, int blocks, int room) { return 16 + (warps + 1 + 2 * blocks) * room; }

  KF_DEVICE TeamMerge(char* memory, int warps, int blocks, int room)
      : barriers_(reinterpret_cast<Barrier*>(memory)),
        parts_(memory + 16),
        boxes_(parts_ + (warps + 1) * room),
        warps_(warps),
        blocks_(blocks),
        room_(room) {
    if (threadIdx.x < 2) make_barrier(barriers_ + threadIdx.x);
  }

  template <class P>
  KF_DEVICE void operator()(P& own, const P& identity) {
    P* parts = reinterpret_cast<P*>(parts_);
    const int warp = threadIdx.x / 32;
    merge_lanes(own, 32);
    if (threadIdx.x % 32 == 0) parts[warp] = own;
    __syncthreads();
    if (warp == 0) {
      P team = merge_parts(parts, warps_, identity);
      if (blocks_ > 1) team = merge_blocks(team, identity);
      if (threadIdx.x == 0) parts[warps_] = team;
    }
    __syncthreads();
    own = parts[warps_];
    ++rounds_;
  }

 private:
  /// By one warp. A box is used again two rounds later, when all blocks have answered to what was sent after reading
  /// it.
  template <class P>
  KF_DEVICE P merge_blocks(const P& own, const P& identity) {
    constexpr int kSlots = (sizeof(P) + 15) / 16;
    const int box = rounds_ % 2, lane = threadIdx.x;
    char* parts = boxes_ + box * blocks_ * room_;
    Slot message[kSlots] = {};
    memcpy(message, &own, sizeof(P));
    if (lane == 0) expect(barriers_ + box, blocks_ * 16 * kSlots);
    __syncwarp();
    if (lane < blocks_) {
      Slot* to = reinterpret_cast<Slot*>(parts + block_rank() * room_);
#pragma unroll
      for (int i = 0; i < kSlots; ++i) send(to + i, message[i], barriers_ + box, lane);
    }
    wait_for_messages(barriers_ + box, rounds_ / 2 % 2);
    P all = identity;
    if (lane < blocks_) memcpy(&all, __builtin_assume_aligned(parts + lane * room_, 16), sizeof(P));
    merge_lanes(all, 32);
    return all;
  }

  Barrier* barriers_;
  char *parts_, *boxes_;
  int warps_, blocks_, room_;
  u32 rounds_ = 0;
};

/// A warp's part of each row, `size` segments from segment `begin` on, through its ring of stages; a segment is kVec
/// vectors a lane.
template <class F, int kVec>
class Ring {
 public:
  using Row = typename F::Row;
  using Index = typename F::Index;
  static constexpr int kVectors = 32 * kVec, kStageBytes = kVectors * F::kHeldBytes;

  KF_DEVICE Ring(const F& f, Barrier* full, char* stages, int count, int begin, int size, Row row, Row step, Row rows)
      : f_(f),
        full_(full),
        stages_(stages),
        count_(count),
        begin_(begin),
        size_(size),
        row_(row),
        step_(step),
        rows_(rows) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
      for (int i = 0; i < count; ++i) make_barrier(full + i);
    }
    fence_barriers();
  }
  KF_DEVICE void fill() {
#pragma unroll 1
    for (int i = 0; i < count_; ++i) ask(i);
  }
  /// Waits for the stage that comes next, gives its vectors to `held` and lets it fetch what comes `count` stages
  /// later.
  KF_DEVICE void take(typename F::Held* held) {
    char* stage = stages_ + at_ * kStageBytes;
    wait_for_copies(full_ + at_, parity_);
#pragma unroll
    for (int v = 0; v < kVec; ++v) held[v] = f_.take(stage, kVectors, v * 32 + static_cast<int>(threadIdx.x % 32));
    __syncwarp();
    ask(at_);
    if (++at_ == count_) at_ = 0, parity_ ^= 1;
  }

 private:
  /// The next segment that is not asked for yet.
  KF_DEVICE void ask(int stage) {
    if (size_ == 0 || row_ >= rows_) return;
    const Index first = static_cast<Index>(begin_ + segment_) * (kVectors * F::kWidth);
    const Index rest = static_cast<Index>(f_.elements()) - first;
    const int elements = rest < kVectors * F::kWidth ? static_cast<int>(rest) : kVectors * F::kWidth;
    if (threadIdx.x % 32 == 0)
      f_.start(f_.line(row_), first, elements, stages_ + stage * kStageBytes, kVectors, full_ + stage);
    if (++segment_ == size_) segment_ = 0, row_ += step_;
  }

  const F& f_;
  Barrier* full_;
  char* stages_;
  int count_, begin_, size_, segment_ = 0, at_ = 0;
  u32 parity_ = 0;
  Row row_, step_, rows_;
};

/// Vector k of a lane, where a warp holds `size` segments.
template <class F, int kVec>
struct SegmentPlaces {
  static constexpr int kBatch = kVec;
  using Index = typename F::Index;
  const F& f;
  const typename F::Line& line;
  int begin, size, lane;
  KF_DEVICE auto operator()(int k) const {
    auto at = f.place(line, first(k) + lane * F::kWidth);
    if (k / kVec >= size) at.count = 0;
    return at;
  }
  KF_DEVICE bool some(int k) const { return k / kVec < size; }
  KF_DEVICE bool whole(int k) const { return some(k) && first(k + kVec) <= static_cast<Index>(f.elements(line)); }

 private:
  KF_DEVICE Index first(int k) const { return static_cast<Index>((begin * kVec + k) * 32) * F::kWidth; }
};

/// Rows that a team holds in at most kSegments segments a warp. Grid: as many teams as are resident at once. Barriers:
/// two per reducing sweep. Shared memory: rings, then what TeamMerge needs.
template <class F, int kSegments, int kVec>
KF_DEVICE void ring_rows(const F& f, const Geometry& g) {
  using Row = typename F::Row;
  using P = PartialOf<F, 0>;
  extern __shared__ __align__(16) char shared[];
  const int block_warps = blockDim.x / 32, own = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int blocks = block_count(), warps = static_cast<int>(g.warps), warp = block_rank() * block_warps + own;
  const int stages = static_cast<int>(g.ahead);
  const i64 segments = (f.elements() + 32 * kVec * F::kWidth - 1) / (32 * kVec * F::kWidth);
  const int begin = static_cast<int>(segments * warp / warps),
            size = static_cast<int>(segments * (warp + 1) / warps) - begin;
  const Row first = cluster_index(), step = cluster_count(), rows = static_cast<Row>(g.rows);

  char* memory = shared + block_warps * stages * Ring<F, kVec>::kStageBytes;
  Barrier* full = reinterpret_cast<Barrier*>(memory) + own * stages;
  TeamMerge merge(memory + (block_warps * stages * 8 + 15) / 16 * 16, block_warps, blocks, static_cast<int>(g.box));
  Ring<F, kVec> ring(f, full, shared + own * stages * Ring<F, kVec>::kStageBytes, stages, begin, size, first, step,
                     rows);
  __syncwarp();
  ring.fill();
  __syncthreads();
  if (blocks > 1) cluster_arrive(), cluster_wait();

  const Sweep<0> sweep;
  for (Row r = first; r < rows; r += step) {
    const auto line = f.line(r);
    const SegmentPlaces<F, kVec> places{f, line, begin, size, lane};
    typename F::Values values = f.begin(line, places(0));
    typename F::Held held[kSegments * kVec];
    P total = f.partial(sweep);
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      if (s >= size) break;
      ring.take(held + s * kVec);
      total.merge(reduced<0>(f, line, values,
                             [&](const auto& use) { use_batch<0>(f, line, places, held + s * kVec, s * kVec, use); }));
    }
    merge(total, f.partial(sweep));
    f.finish(sweep, values, total);
    const auto combine = [&]<class Part>(Part& part, const Part& identity) {
      if constexpr (!Part::kNothing) merge(part, identity);
    };
    if constexpr (F::kSweeps > 1) sweep_held<1>(f, line, places, held, values, combine);
    if (warp == 0 && lane == 0) f.end(line, places(0), values);
  }
  if (blocks > 1) cluster_arrive(), cluster_wait();
}

}  // namespace kfusion::device
