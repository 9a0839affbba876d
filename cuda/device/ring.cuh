// Row kernels for long rows: blocks that stay for many rows keep memory busy while they exchange what they reduced.
//
// A row is shared by the warps of a team: of a block, of a cluster of blocks, or (kSpread) of blocks anywhere. Each
// warp has a ring of stages in shared memory that bulk copies fill. A stage that has come is emptied into registers,
// where the warp's part of the row stays for all sweeps, and at once asked to fetch what the warp needs next, which
// soon is of the next row. So loads wait neither for an exchange nor for the stores of results. Blocks of a cluster
// tell each other their parts by messages that a barrier counts; blocks anywhere, through memory.
//
// Teams take rows from a counter: multiprocessors differ by several percent in how quickly they reach memory, and with
// equal shares all would wait for the slowest.
//
// F is what rows.cuh says, and for operands that are held:
//   kHeldBytes                                       of one vector of all of them
//   void start(line, first element, elements, stage, vectors, Barrier*)   copies, one after the other operand, each
//                                                    with room for `vectors`; the barrier expects them
//   Held take(stage, vectors, vector)                of a stage that has come
// and for operands that all rows share, such as weights:
//   kSharedBytes, start_shared(), fetch_shared(Sweep, line, at, stage, vectors, vector)   the same
#pragma once
#include "device/async.cuh"
#include "device/planes.cuh"
#include "device/rows.cuh"

namespace kfusion::device {

/// What a block tells the others of its team: its part, and of the first block the row that the team takes after the
/// next one.
template <class P>
struct Told {
  P part;
  u32 row;
};

/// The blocks that share a row, and where they exchange what they tell. `room`: bytes for a Told of any sweep, a
/// multiple of 16.
struct Blocks {
  int count, rank, room;
};

/// Blocks of a cluster: two boxes in shared memory with a message from each block, filled in turns. A box is used again
/// two rounds later, when all have answered to what was sent after reading it.
class ClusterExchange {
 public:
  static constexpr int kBarrierBytes = 16;
  KF_DEVICE ClusterExchange(const Blocks& b, char* shared)
      : blocks_(b), barriers_(reinterpret_cast<Barrier*>(shared)), boxes_(shared + kBarrierBytes) {
    if (threadIdx.x < 2) make_barrier(barriers_ + threadIdx.x);
  }
  /// What all blocks tell, merged, for all threads; the first warp has `own`. `place`: in shared memory, for all warps.
  template <class P>
  KF_DEVICE Told<P> share(const Told<P>& own, const P& identity, u32 round, Told<P>* place) const {
    if (threadIdx.x < 32) {
      const Told<P> all = merged(own, identity, round, threadIdx.x);
      if (threadIdx.x == 0) *place = all;
    }
    __syncthreads();
    return *place;
  }
  /// After the last round: the others may still write here until they end.
  KF_DEVICE u32 arrive() const { return cluster_arrive(), 0; }
  KF_DEVICE void leave(u32) const { cluster_wait(); }

  /// What all blocks tell, merged, for the lanes of the one warp that calls it, each with its number.
  template <class P>
  KF_DEVICE Told<P> merged(const Told<P>& own, const P& identity, u32 round, int lane) const {
    constexpr int kSlots = (sizeof(Told<P>) + 15) / 16;
    const int box = round % 2;
    char* parts = boxes_ + box * blocks_.count * blocks_.room;
    Slot message[kSlots] = {};
    memcpy(message, &own, sizeof own);
    if (lane == 0) expect(barriers_ + box, blocks_.count * 16 * kSlots);
    __syncwarp();
    if (lane < blocks_.count) {
      Slot* to = reinterpret_cast<Slot*>(parts + blocks_.rank * blocks_.room);
#pragma unroll
      for (int i = 0; i < kSlots; ++i) send(to + i, message[i], barriers_ + box, lane);
    }
    wait_for_messages(barriers_ + box, round / 2 % 2);
    Told<P> all{identity, 0};
    if (lane < blocks_.count) memcpy(&all, __builtin_assume_aligned(parts + lane * blocks_.room, 16), sizeof all);
    merge_lanes(all.part, 32);
    all.row = __shfl_sync(0xffffffffu, all.row, 0);
    return all;
  }

 private:
  Blocks blocks_;
  Barrier* barriers_;
  char* boxes_;
};

/// Blocks that run at the same time: in global memory, at first and at last zero, two boxes that are filled in turns. A
/// message is words of 8 bytes, each with the number of its round in the upper half, so that a reader sees when it has
/// come. All threads read, a word each, since each takes as long as memory does; neighbours, as many blocks read the
/// same, and not before their own block has written, which they would slow down.
class MemoryExchange {
 public:
  /// `shared`: Blocks::room bytes for each block.
  KF_DEVICE MemoryExchange(const Blocks& b, char* memory, char* shared)
      : blocks_(b),
        ticket_(reinterpret_cast<u32*>(memory)),
        boxes_(reinterpret_cast<u64*>(memory + kTicketBytes)),
        seen_(reinterpret_cast<u32*>(shared)) {}
  static KF_DEVICE i64 bytes(const Blocks& b) { return kTicketBytes + 2 * words(b) * static_cast<i64>(sizeof(u64)); }

  template <class P>
  KF_DEVICE Told<P> share(const Told<P>& own, const P& identity, u32 round, Told<P>*) const {
    constexpr int kWords = sizeof(Told<P>) / 4;
    static_assert(sizeof(Told<P>) % 4 == 0);
    const int lane = threadIdx.x % 32;
    const u64 tag = static_cast<u64>(round + 1) << 32;
    u64* box = boxes_ + round % 2 * words(blocks_);
    if (threadIdx.x < 32) {
      u32 word[kWords];
      memcpy(word, &own, sizeof own);
#pragma unroll
      for (int first = 0; first < kWords; first += 32) {
        u32 mine = 0;
#pragma unroll
        for (int i = first; i < minimum(first + 32, kWords); ++i) mine = first + lane == i ? word[i] : mine;
        if (first + lane < kWords) store_relaxed(box + blocks_.rank * kWords + first + lane, tag | mine);
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < blocks_.count * kWords; i += blockDim.x) {
      u64 word;
      do word = load_relaxed(box + i);
      while ((word ^ tag) >> 32 != 0);
      seen_[i] = static_cast<u32>(word);
    }
    __syncthreads();
    const Told<P>* told = reinterpret_cast<const Told<P>*>(seen_);
    P all = lane < blocks_.count ? told[lane].part : identity;
#pragma unroll 1
    for (int block = lane + 32; block < blocks_.count; block += 32) all.merge(told[block].part);
    merge_lanes(all, 32);
    return {all, told[0].row};
  }

  /// After the last round: the number of blocks that have come here before this one, for the first thread.
  KF_DEVICE u32 arrive() const { return threadIdx.x == 0 ? atomicInc(ticket_, blocks_.count - 1) : 0; }
  /// The block that came last, when all had read, leaves zeros.
  KF_DEVICE void leave(u32 place) const {
    if (threadIdx.x >= 32 || __shfl_sync(0xffffffffu, place, 0) + 1 != blocks_.count) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * words(blocks_); i += 32) boxes_[i] = 0;
  }

 private:
  static constexpr i64 kTicketBytes = 16;
  static KF_DEVICE int words(const Blocks& b) { return b.count * (b.room / 4); }

  Blocks blocks_;
  u32* ticket_;
  u64* boxes_;
  u32* seen_;
};

/// Merges what the warps of a team have.
template <class Exchange>
class TeamMerge {
 public:
  /// `shared`: for a Told of each warp of the block and one of the team.
  KF_DEVICE TeamMerge(const Exchange& exchange, const Blocks& b, char* shared)
      : exchange_(exchange), blocks_(b.count), told_(shared), team_(shared + blockDim.x / 32 * b.room) {}

  /// `row`: see Told; the first thread of the team's first block has it, and then all have.
  template <class P>
  KF_DEVICE void operator()(P& own, const P& identity, u32& row) {
    Told<P>*told = reinterpret_cast<Told<P>*>(told_), *all = reinterpret_cast<Told<P>*>(team_);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    merge_lanes(own, 32);
    if (lane == 0) told[warp].part = own;
    __syncthreads();
    Told<P> team{identity, row};
    if (warp == 0) {
      if (lane < warps) team.part = told[lane].part;
      merge_lanes(team.part, 32);
      team.row = __shfl_sync(0xffffffffu, row, 0);
    }
    if (blocks_ > 1) {
      team = exchange_.share(team, identity, round_, all);
    } else {
      if (threadIdx.x == 0) *all = team;
      __syncthreads();
      team = *all;
    }
    own = team.part;
    row = team.row;
    ++round_;
  }

 private:
  Exchange exchange_;
  int blocks_;
  char *told_, *team_;  ///< apart for all types: slow warps read the team's while others tell the next round's
  u32 round_ = 0;
};

/// A warp's part of each row, `size` segments from segment `begin` on, through its ring of stages; a segment is kVec
/// vectors a lane.
template <class F, int kVec>
class Ring {
 public:
  using Row = typename F::Row;
  using Index = typename F::Index;
  static constexpr int kVectors = 32 * kVec, kStageBytes = kVectors * F::kHeldBytes;

  /// No more stages than segments: what is asked for never lies beyond the next row.
  KF_DEVICE Ring(const F& f, Barrier* full, char* stages, int count, int begin, int size, Row rows)
      : f_(f), full_(full), stages_(stages), count_(minimum(count, size)), begin_(begin), size_(size), rows_(rows) {
    if (threadIdx.x % 32 == 0) {
#pragma unroll 1
      for (int i = 0; i < count_; ++i) make_barrier(full + i);
    }
    fence_barriers();
  }
  KF_DEVICE void fill(u32 row) {
#pragma unroll 1
    for (int i = 0; i < count_; ++i) ask(i, row, i);
  }
  /// Waits for segment `s` of `row`, gives its vectors to `held`, and lets the stage fetch what comes count_ segments
  /// later, of `row` or of `next`.
  KF_DEVICE void take(typename F::Held* held, int s, u32 row, u32 next) {
    char* stage = stages_ + at_ * kStageBytes;
    wait_for_copies(full_ + at_, parity_);
#pragma unroll
    for (int v = 0; v < kVec; ++v) held[v] = f_.take(stage, kVectors, v * 32 + static_cast<int>(threadIdx.x % 32));
    fence_before_copies();  // else one that finds its bytes in L2 may come before a load that waits for its turn
    __syncwarp();
    const int later = s + count_;
    ask(at_, later < size_ ? row : next, later < size_ ? later : later - size_);
    if (++at_ == count_) at_ = 0, parity_ ^= 1;
  }

 private:
  KF_DEVICE void ask(int stage, u32 row, int segment) {
    if (threadIdx.x % 32 != 0 || row >= static_cast<u32>(rows_)) return;
    asm("" : "+r"(segment));  // hides what follows from it, which would stay in memory (0.91 to 0.85)
    const auto line = f_.line(static_cast<Row>(row));
    const Index first = static_cast<Index>(begin_ + segment) * (kVectors * F::kWidth);
    const Index rest = (static_cast<Index>(f_.elements(line)) - first + F::kWidth - 1) / F::kWidth;
    const int vectors = rest < kVectors ? maximum(static_cast<int>(rest), 0) : kVectors;
    f_.start(line, f_.place(line, first).first, vectors * F::kWidth, stages_ + stage * kStageBytes, kVectors,
             full_ + stage);
  }

  const F& f_;
  Barrier* full_;
  char* stages_;
  int count_, begin_, size_, at_ = 0;
  u32 parity_ = 0;
  Row rows_;
};

/// What all rows share of a warp's first kKept segments, in shared memory: it is brought there once.
template <class F, int kVec, int kKept>
class SharedSegments {
 public:
  static constexpr int kVectors = 32 * kVec, kBytes = kKept * kVectors * F::kSharedBytes;
  /// `makes`: one of the warps that have this memory does.
  KF_DEVICE SharedSegments(const F& f, Barrier* full, char* memory, bool makes = true)
      : f_(f), full_(full), memory_(memory) {
    if (kBytes > 0 && makes && threadIdx.x % 32 == 0) make_barrier(full);
  }
  KF_DEVICE void fill(int begin, int size) const {
    if constexpr (kBytes > 0) {
      if (threadIdx.x % 32 != 0) return;
      const auto line = f_.line(0);
      const i64 first = static_cast<i64>(begin) * kVectors * F::kWidth;
      const i64 rest = (f_.elements(line) - first + F::kWidth - 1) / F::kWidth;
      const int vectors = static_cast<int>(minimum<i64>(maximum<i64>(rest, 0), minimum(size, kKept) * kVectors));
      f_.start_shared(line, static_cast<typename F::Index>(first), vectors * F::kWidth, memory_, kKept * kVectors,
                      full_);
    }
  }
  KF_DEVICE void wait() const {
    if constexpr (kBytes > 0) wait_for_copies(full_, 0);
  }
  template <class Sweep>
  KF_DEVICE auto fetch(const Sweep& sweep, const typename F::Line& line, const typename F::At& at, int k) const {
    if constexpr (kBytes > 0) {
      const int vector = k * 32 + static_cast<int>(threadIdx.x % 32);
      if (k < kKept * kVec) return f_.fetch_shared(sweep, line, at, memory_, kKept * kVectors, vector);
    }
    return f_.fetch(sweep, line, at);
  }

 private:
  const F& f_;
  Barrier* full_;
  char* memory_;
};

/// Vector k of a lane, where a warp holds `size` segments.
template <class F, int kVec, class Shared>
struct SegmentPlaces {
  static constexpr int kBatch = kVec, kAhead = 2;
  static constexpr bool kAlone = false;
  using Index = typename F::Index;
  const F& f;
  const typename F::Line& line;
  const Shared& shared;
  int warp, begin, size, lane;
  template <class Sweep>
  KF_DEVICE auto fetch(const Sweep& sweep, const typename F::At& at, int k) const {
    return shared.fetch(sweep, line, at, k);
  }
  KF_DEVICE auto operator()(int k) const {
    auto at = place_further(f, line, first(0) + lane * F::kWidth, k * 32 * F::kWidth);
    if (k / kVec >= size) at.count = 0;
    return at;
  }
  static KF_DEVICE bool has(int) { return true; }
  KF_DEVICE bool some(int k) const { return k / kVec < size; }
  KF_DEVICE bool whole(int k) const { return some(k) && first(k + kVec) <= static_cast<Index>(f.elements(line)); }
  static constexpr int kEdges = (F::kEdges + 31) / 32;
  KF_DEVICE auto edge(int i) const {
    auto at = f.edge(line, i * 32 + lane);
    if (warp > 0) at.count = 0;
    return at;
  }

 private:
  KF_DEVICE Index first(int k) const { return static_cast<Index>((begin * kVec + k) * 32) * F::kWidth; }
};

/// What a kernel has of planes, if it has any.
template <class F>
struct PlanesOf {
  struct type {};
};
template <class F>
  requires requires { typename F::Planes; }
struct PlanesOf<F> {
  using type = typename F::Planes;
};

/// Rows that a team holds in at most kSegments segments a warp. Grid: as many teams as run at once, of g.splits blocks.
/// Barriers: two per reducing sweep. Shared memory: rings and their barriers, what all rows share of kKept segments a
/// warp or, in planes, of a block, then what the exchange and the merge need. Standing: 16 bytes for the counter of
/// rows, used where there are more than two a team, then what MemoryExchange needs for each team that is spread.
template <class F, int kSegments, int kVec, bool kSpread, int kKept>
KF_DEVICE void ring_rows(const F& f, const Geometry& g, char* standing) {
  using Row = typename F::Row;
  using Shared = SharedSegments<F, kVec, kKept>;
  using Places = SegmentPlaces<F, kVec, Shared>;
  extern __shared__ __align__(16) char shared[];
  const int block_warps = blockDim.x / 32, own = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int count = static_cast<int>(g.splits), stages = static_cast<int>(g.ahead), warps = count * block_warps;
  const Blocks blocks{count, static_cast<int>(blockIdx.x) % count, static_cast<int>(g.box)};
  const u32 team = blockIdx.x / count, teams = gridDim.x / count, rows = static_cast<u32>(g.rows);
  const int warp = blocks.rank * block_warps + own;
  const i64 segments = (f.most_elements() + 32 * kVec * F::kWidth - 1) / (32 * kVec * F::kWidth);
  const int begin = static_cast<int>(segments * warp / warps);
  const int size = static_cast<int>(segments * (warp + 1) / warps) - begin;

  char* memory = shared + block_warps * stages * Ring<F, kVec>::kStageBytes;
  Barrier* full = reinterpret_cast<Barrier*>(memory) + own * stages;
  memory += (block_warps * stages * static_cast<int>(sizeof(Barrier)) + 15) / 16 * 16;
  Barrier* shared_full = reinterpret_cast<Barrier*>(memory) + own;
  if (kKept > 0) memory += (block_warps * static_cast<int>(sizeof(Barrier)) + 15) / 16 * 16;
  const Shared what_is_shared(f, shared_full, memory + own * Shared::kBytes);
  memory += block_warps * Shared::kBytes;
  constexpr bool kPlanes = requires { typename F::Planes; };
  [[maybe_unused]] char* plane_memory = memory;
  if constexpr (kPlanes) memory += F::Planes::kBytes;
  char* exchanged = memory + (block_warps + 1) * blocks.room;
  const auto exchange = [&] {
    if constexpr (kSpread)
      return MemoryExchange(blocks, standing + 16 + team * MemoryExchange::bytes(blocks), exchanged);
    if constexpr (!kSpread) return ClusterExchange(blocks, exchanged);
  }();
  TeamMerge<typename Choose<kSpread, MemoryExchange, ClusterExchange>::type> merge(exchange, blocks, memory);
  Ring<F, kVec> ring(f, full, shared + own * stages * Ring<F, kVec>::kStageBytes, stages, begin, size,
                     static_cast<Row>(rows));
  __syncwarp();
  ring.fill(team);
  what_is_shared.fill(begin, size);
  typename PlanesOf<F>::type planes;
  if constexpr (kPlanes) {
    const auto vectors_before = [&](int block) {
      return static_cast<int>(segments * block * block_warps / warps) * 32 * kVec;
    };
    planes.fill(f, plane_memory, vectors_before(blocks.rank), vectors_before(blocks.rank + 1) + 2);
  }
  __syncthreads();
  if (!kSpread && count > 1) cluster_arrive(), cluster_wait();

  typename F::Edge edges[Places::kEdges > 0 ? Places::kEdges : 1];  // of the next row
  const auto ask_edges = [&](u32 of) {
    if (of >= rows) return;
    const auto line = f.line(static_cast<Row>(of));
    load_edges(f, line, Places{f, line, what_is_shared, warp, begin, size, lane}, edges);
  };
  ask_edges(team);
  u32 row = team, next = team + teams;
  while (row < rows) {
    u32 after = rows;  // taken from the counter while this row is under way
    const bool chooses = blocks.rank == 0 && threadIdx.x == 0;
    if (chooses && next < rows && 2 * teams < rows)
      after = atomicInc(reinterpret_cast<u32*>(standing), rows - teams - 1) + 2 * teams;  // the last leaves 0
    auto line = f.line(static_cast<Row>(row));
    if constexpr (kPlanes) line.planes = planes;
    const Places places{f, line, what_is_shared, warp, begin, size, lane};
    typename F::Values values = f.begin(line, places(0));
    HeldRow<F, kSegments * kVec, Places::kEdges> held;
    memcpy(held.edges, edges, sizeof edges);
    auto total = f.partial(Sweep<0>());
    what_is_shared.wait();
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      if (s >= size) break;
      typename F::Held* segment = held.vectors + s * kVec;
      ring.take(segment, s, row, next);
      total.merge(reduced_batch<0>(f, line, places, segment, s * kVec, values));
    }
    if constexpr (Places::kEdges > 0) total.merge(reduced_edges<0>(f, line, places, held.edges, values));
    ask_edges(next);
    merge(total, f.partial(Sweep<0>()), after);
    f.finish(Sweep<0>(), values, total);
    const auto combine = [&]<class P>(P& part, const P& identity) {
      if constexpr (!P::kNothing) merge(part, identity, after);
    };
    if constexpr (F::kSweeps > 1) sweep_held<1>(f, line, places, held, values, combine);
    if (warp == 0 && lane == 0) f.end(line, places(0), values);
    row = next, next = after;
  }
  if (count > 1) exchange.leave(exchange.arrive());
}

}  // namespace kfusion::device
