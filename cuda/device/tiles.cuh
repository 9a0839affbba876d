// Generated column kernels of several sweeps that read once: a block, or a cluster of blocks, keeps all rows of some
// columns on chip for all sweeps.
//
// Blocks stay for many tiles. A thread has a ring of stages in shared memory, which it fills with copies of its own: a
// stage has a segment of the rows that it needs next. The first segments of a tile it takes into registers, and at once
// asks for others in their place; the last ones stay in their stages until the last sweep, which begins with them. So
// memory is busy while a tile is reduced, and no barrier is needed: each thread waits for its own copies. Tiles are
// taken from a counter, as some multiprocessors are slower than others. Without stages (of operands that cannot be
// copied so) loads go to registers, and other blocks work while one waits.
//
// F is what columns.cuh says, and with stages:
//   void start(line, at, char* stage, slots, slot, valid)   copies of a vector of held operands, each of which has
//                                                           `slots` slots; none of a row that is not `valid`
//   Held take(stage, slots, slot)                           of copies that have ended
// What is the same for all columns, like weights, a block brings to shared memory once:
//   kKeptBytes, void keep(line, areas, room, row)           of a row
//   Line kept(line, areas, room, row)                       whose addresses are there
#pragma once
#include "device/async.cuh"
#include "device/columns.cuh"

namespace kfusion::device {

/// An element in shared memory.
template <class T>
KF_DEVICE Vector<T, 1> load_kept(const T* p, int count) {
  Vector<T, 1> v{};
  if (count > 0) load_element(v, 0, p);
  return v;
}

/// F of a block, which has the same rows of all tiles: what is the same for all columns is in shared memory.
template <class F>
struct KeptRows : F {
  using Row = typename F::Row;
  char* areas;
  int room;
  Row first;

  KF_DEVICE void keep(Row end) const {
    if constexpr (F::kKeptBytes > 0) {
      const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
      for (Row row = first + thread; row < end; row += static_cast<int>(blockDim.x * blockDim.y))
        F::keep(F::line(row), areas, room, static_cast<int>(row - first));
      __syncthreads();
    }
  }
  KF_DEVICE auto line(Row row) const { return F::kept(F::line(row), areas, room, static_cast<int>(row - first)); }
};

/// Those of a block of a tile: kRows neighbouring rows of a thread where operands are crossed, else rows as far apart
/// as there are threads, so that a warp reads neighbouring ones.
template <class F, int kRows>
struct TileRows {
  using Row = typename F::Row;
  Row begin, end;
  KF_DEVICE Row operator()(int segment, int u) const {
    const int y = static_cast<int>(threadIdx.y), down = static_cast<int>(blockDim.y);
    return begin + (F::kCrosses ? (segment * down + y) * kRows + u : (segment * kRows + u) * down + y);
  }
  /// Whether threads have any rows of a segment, and whether all threads have all.
  KF_DEVICE bool some(int segment) const { return first(segment) < end; }
  KF_DEVICE bool whole(int segment) const { return first(segment + 1) <= end; }

 private:
  KF_DEVICE Row first(int segment) const { return begin + segment * kRows * static_cast<int>(blockDim.y); }
};

/// Merges what the threads of a block (kAcross, threads a column) and the blocks of a cluster have, for all of them: in
/// a warp, lanes share out the columns that they have in common; the warps' parts of a column are merged by
/// neighbouring lanes, and so are those of the blocks, which come as messages.
template <class F, int kAcross>
class TileMerge {
 public:
  static constexpr int kColumns = kAcross * F::kWidth;

  /// `room`: of a column's part, a multiple of 16 bytes. Two boxes of the cluster take turns: one is used again two
  /// rounds later, when all have answered to what was sent after reading it.
  KF_DEVICE TileMerge(char* shared, int room)
      : barriers_(reinterpret_cast<Barrier*>(shared)),
        tiles_(reinterpret_cast<Slot*>(shared + 16)),
        boxes_(shared + 64),
        room_(room) {
    all_ = boxes_ + (block_count() > 1 ? 2 * static_cast<int>(block_count()) * kColumns * room : 0);
    parts_ = all_ + kColumns * room;
    if (block_count() == 1) return;
    if (thread() == 0) make_barrier(barriers_), make_barrier(barriers_ + 1);
    fence_barriers();
    __syncthreads();
  }
  /// Before the first merge, and after the last: no block tells another anything that has not begun, or has ended.
  KF_DEVICE void meet() const {
    if (block_count() > 1) cluster_arrive(), cluster_wait();
  }

  /// `tile`: the first thread of the first block has it, and then all have.
  template <class C>
  KF_DEVICE void operator()(Columns<C, F::kWidth>& own, const C& identity, u32& tile) {
    const int across = static_cast<int>(threadIdx.x), warps = threads() / 32;
    const bool alone = block_count() == 1;
    C *parts = reinterpret_cast<C*>(parts_), *all = reinterpret_cast<C*>(all_);
    const auto mine = shared_out<kAcross>(own);
    const int first = across * F::kWidth + first_of_lane<kAcross, F::kWidth>(thread());
#pragma unroll
    for (int i = 0; i < mine.kCount; ++i)
      if (is_first<kAcross, F::kWidth>(thread())) parts[(first + i) * (warps + 1) + thread() / 32] = mine.column[i];
    __syncthreads();
    const auto part = [&](int column, int i) -> const C& { return parts[column * (warps + 1) + i]; };
    each_column(part, warps, identity, [&](int column, int lane, int lanes, const C& total) {
      if (alone && lane == 0) all[column] = total;
      for (int to = lane; !alone && to < static_cast<int>(block_count()); to += lanes) tell(column, total, to);
    });
    if (!alone) hear(all, identity, tile);
    if (thread() == 0) tiles_[2].word[0] = tile;
    __syncthreads();
    tile = tiles_[2].word[0];
#pragma unroll
    for (int j = 0; j < F::kWidth; ++j) own.column[j] = all[across * F::kWidth + j];
  }

 private:
  template <class C>
  union Message {
    C part;
    Slot slots[(sizeof(C) + 15) / 16];
  };
  static KF_DEVICE int threads() { return kAcross * static_cast<int>(blockDim.y); }
  static KF_DEVICE int thread() { return static_cast<int>(threadIdx.y) * kAcross + static_cast<int>(threadIdx.x); }

  /// use(column, lane, lanes, total) with the sum of `count` parts of each column, in all of its lanes.
  template <class C, class Part, class Use>
  static KF_DEVICE void each_column(const Part& part, int count, const C& identity, const Use& use) {
    const int lanes = maximum(minimum(threads() / kColumns, 32), 1), lane = thread() % lanes;
    for (int column = thread() / lanes; column < kColumns; column += threads() / lanes) {
      C total = identity;
      for (int i = lane; i < count; i += lanes) total.merge(part(column, i));
      merge_lanes(total, lanes);
      use(column, lane, lanes, total);
    }
  }
  template <class C>
  KF_DEVICE Message<C>* box() const {
    return reinterpret_cast<Message<C>*>(boxes_ + round_ % 2 * block_count() * kColumns * room_);
  }
  template <class C>
  KF_DEVICE void tell(int column, const C& part, int to) const {
    Message<C> message{part};
    Message<C>* place = box<C>() + static_cast<int>(block_rank()) * kColumns + column;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(message) / 16); ++i)
      send(place->slots + i, message.slots[i], barriers_ + round_ % 2, to);
  }
  /// What all blocks have told, and which tile the first one has chosen.
  template <class C>
  KF_DEVICE void hear(C* all, const C& identity, u32& tile) {
    Barrier* barrier = barriers_ + round_ % 2;
    Slot* told_tile = tiles_ + round_ % 2;
    const Slot chosen{{__shfl_sync(0xffffffffu, tile, 0)}};
    if (thread() == 0) expect(barrier, block_count() * kColumns * sizeof(Message<C>) + sizeof(Slot));
    if (block_rank() == 0 && thread() < static_cast<int>(block_count())) send(told_tile, chosen, barrier, thread());
    wait_for_messages(barrier, round_ / 2 % 2);
    const auto told = [&](int column, int block) -> const C& { return box<C>()[block * kColumns + column].part; };
    each_column(told, static_cast<int>(block_count()), identity, [&](int column, int lane, int, const C& total) {
      if (lane == 0) all[column] = total;
    });
    if (thread() == 0) tile = told_tile->word[0];
    ++round_;
  }

  Barrier* barriers_;
  Slot* tiles_;
  char *boxes_, *all_, *parts_;
  int room_;
  u32 round_ = 0;
};

/// How a thread holds its rows of a tile: kSegments segments of kRows, the first kHeld in registers.
template <int kSegments_, int kRows_, int kHeld_, int kStages_>
struct TileShape {
  static constexpr int kSegments = kSegments_, kRows = kRows_, kHeld = kHeld_, kStages = kStages_;
};

/// The segments of tile after tile, as a thread copies them; without stages, only where they lie.
template <class F, int kAcross, class Shape>
class TileRing {
 public:
  using Held = typename F::Held;
  static constexpr int kRows = Shape::kRows, kStages = Shape::kStages, kSegments = Shape::kSegments;

  KF_DEVICE TileRing(const F& f, const TileRows<F, kRows>& rows, i64 tiles, char* memory)
      : f_(f), rows_(rows), tiles_(tiles), memory_(memory) {}
  KF_DEVICE auto place(i64 tile) const {
    using Index = typename F::Index;
    return f_.place((static_cast<Index>(tile) * kAcross + static_cast<Index>(threadIdx.x)) * F::kWidth);
  }
  /// Asks for a first tile.
  KF_DEVICE void fill(i64 tile) const {
    if constexpr (kStages > 0) {
#pragma unroll
      for (int s = 0; s < kStages; ++s) ask(tile, s, s);
    }
  }
  /// The next segment has come. Once a segment, between which release() or end_copies() begins another group.
  static KF_DEVICE void wait() { wait_for_own_copies<kStages - 1>(); }
  KF_DEVICE void get(int s, Held (&held)[kRows]) const {
#pragma unroll
    for (int u = 0; u < kRows; ++u) held[u] = f_.take(memory_, slots(), slot(s, u));
  }
  /// Nobody needs segment `s` of `tile` any more: what comes kStages later is asked for.
  KF_DEVICE void release(i64 tile, int s) const {
    const int later = s + kStages;
    ask(later < kSegments ? tile : next_, later < kSegments ? later : later - kSegments, s);
  }
  /// `next`: the tile after the one that begins.
  KF_DEVICE void begin(i64 next) { next_ = next; }
  KF_DEVICE void end() {
    if constexpr (kStages > 0) first_ = (first_ + kSegments) % kStages;
  }

 private:
  static KF_DEVICE int threads() { return kAcross * static_cast<int>(blockDim.y); }
  static KF_DEVICE int slots() { return threads() * kStages * kRows; }
  KF_DEVICE int slot(int s, int u) const {
    const int stage = (first_ + s) % kStages;
    return (stage * kRows + u) * threads() + static_cast<int>(threadIdx.y) * kAcross + static_cast<int>(threadIdx.x);
  }
  /// Asks for a segment of a tile, into the stage of segment `place_of` of this tile.
  KF_DEVICE void ask(i64 tile, int segment, int place_of) const {
    if (tile < tiles_) {
      const auto at = place(tile);
#pragma unroll
      for (int u = 0; u < kRows; ++u)
        f_.start(f_.line(rows_(segment, u)), at, memory_, slots(), slot(place_of, u),
                 at.count > 0 && rows_(segment, u) < rows_.end);
    }
    end_copies();
  }

  const F& f_;
  TileRows<F, kRows> rows_;
  i64 tiles_;
  char* memory_;
  i64 next_ = 0;
  int first_ = 0;  ///< stage of the tile's first segment
};

/// A thread's rows of a tile.
template <class F, class Ring, class Shape>
struct Tile {
  static constexpr int kRows = Shape::kRows, kHeld = Shape::kHeld, kSegments = Shape::kSegments,
                       kStages = Shape::kStages;
  using Held = typename F::Held;
  const F& f;
  const Ring& ring;
  i64 number;
  typename F::At at;
  TileRows<F, kRows> rows;
  Held held[kHeld][kRows];

  KF_DEVICE auto end() const { return at.count > 0 ? rows.end : rows.begin; }

  KF_DEVICE void load() {
    const auto load = [&](const auto& line, const auto& existing, const auto& corner, int column) {
      return f.load(line, existing, corner, column);
    };
#pragma unroll
    for (int s = 0; s < kHeld; ++s) {
      if constexpr (kStages > 0) {
        ring.wait();
        ring.get(s, held[s]);
        ring.release(number, s);
      } else {
        load_rows(f, held[s], at, [&](int u) { return rows(s, u); }, end(), load);
      }
    }
  }

  /// use(line, held, fetched, u) for the rows of a segment. kWhole: all exist, so that nothing is asked.
  template <int kSweep, bool kWhole, class Use>
  KF_DEVICE void use_rows(int s, Held (&own)[kRows], const Use& use) const {
    const auto fetch = [&](const auto& line, const auto& existing, const auto& corner, int column) {
      return f.fetch(Sweep<kSweep>(), line, existing, corner, column);
    };
    decltype(fetch(f.line(0), at, f.line(0), 0)) fetched[kRows];
    load_rows<kWhole>(f, fetched, at, [&](int u) { return rows(s, u); }, end(), fetch);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      own[u].forget();
      if (kWhole || rows(s, u) < end()) use(f.line(rows(s, u)), own[u], fetched[u], u);
    }
  }
  template <int kSweep, class Use>
  KF_DEVICE void use_segment(int s, Held (&own)[kRows], const Use& use) const {
    if (at.count > 0 && rows.whole(s)) {
      use_rows<kSweep, true>(s, own, use);
    } else if (at.count > 0 && rows.some(s)) {
      use_rows<kSweep, false>(s, own, use);
    }
  }
  template <class Body>
  KF_DEVICE void for_each_held(const Body& body) {
#pragma unroll
    for (int s = 0; s < kHeld; ++s) body(s, held[s]);
  }
  /// body(segment, what is held of it). kFirst: copies must be waited for; kLast: stages are free afterwards, and come
  /// first, so that the next tile is under way for the rest of the sweep.
  template <bool kFirst, bool kLast, class Body>
  KF_DEVICE void for_each_segment(const Body& body) {
    if constexpr (!kLast) for_each_held(body);
    if constexpr (kHeld < kSegments) {
#pragma unroll 1
      for (int s = kHeld; s < kSegments; ++s) {
        Held own[kRows];
        if constexpr (kFirst) ring.wait(), end_copies();
        ring.get(s, own);
        if constexpr (kLast) ring.release(number, s);
        body(s, own);
      }
    }
    if constexpr (kLast) for_each_held(body);
  }

  template <int kSweep>
  KF_DEVICE auto reduced(const typename F::Values& values) {
    constexpr bool kLooks = F::kLooks[kSweep], kLast = kSweep + 1 == F::kSweeps;
    const Sweep<kSweep> sweep;
    auto part = f.partial(sweep);
    if constexpr (kLooks) {
      for_each_segment<kSweep == 0, false>([&](int s, auto& own) {
        use_segment<kSweep>(s, own, [&](const auto& line, auto& one, const auto& in, int) {
          f.look(sweep, line, at, one, in, values, part);
        });
      });
      part.settle();
    }
    for_each_segment<kSweep == 0 && !kLooks, kLast>([&](int s, auto& own) {
      decltype(f.crossed(sweep)) crossed[kRows];
      use_segment<kSweep>(s, own, [&](const auto& line, auto& one, const auto& in, int u) {
        f.sweep(sweep, line, at, one, in, values, part, crossed[u]);
      });
      f.uncross(crossed);
      if (rows(s, 0) < end()) {
#pragma unroll
        for (int u = 0; u < kRows; ++u) f.store(f.line(rows(s, 0)), at, u, crossed[u]);
      }
    });
    return part;
  }

  template <int kSweep, class Merge>
  KF_DEVICE void sweep(typename F::Values& values, Merge& merge, u32& after) {
    auto total = reduced<kSweep>(values);
    if constexpr (!PartialOf<F, kSweep>::kNothing) merge(total, f.partial(Sweep<kSweep>()).column[0], after);
    f.finish(Sweep<kSweep>(), values, total);
    if constexpr (kSweep + 1 < F::kSweeps) sweep<kSweep + 1>(values, merge, after);
  }
};

/// Block: (kAcross, threads a column), a power of two. Grid: clusters (or blocks) for tiles of columns. g.splits: rows
/// of a block, at most those of the shape a thread; g.warps: tiles; g.box: room of a column's part. Shared memory: the
/// stages, then what merging needs. Standing: 16 bytes for the counter of tiles, used where there are more than two a
/// cluster.
template <class F, int kAcross, class Shape>
KF_DEVICE void tiles(const F& all, const Geometry& g, char* standing) {
  using Row = typename F::Row;
  using Kept = KeptRows<F>;
  using Ring = TileRing<Kept, kAcross, Shape>;
  extern __shared__ __align__(16) char shared[];
  const Row begin = minimum(static_cast<Row>(g.splits) * static_cast<Row>(block_rank()), static_cast<Row>(g.rows));
  const TileRows<Kept, Shape::kRows> rows{begin, minimum(begin + static_cast<Row>(g.splits), static_cast<Row>(g.rows))};
  char* merged = shared;
  if constexpr (Shape::kStages > 0)
    merged += kAcross * static_cast<int>(blockDim.y) * Shape::kStages * Shape::kRows * F::kHeldBytes;
  const int room = (static_cast<int>(g.splits) + 15) / 16 * 16;
  const Kept f{all, merged, room, rows.begin};
  merged += room * F::kKeptBytes;
  TileMerge<F, kAcross> merge(merged, static_cast<int>(g.box));
  Ring ring(f, rows, g.warps, shared);
  ring.fill(cluster_index());
  f.keep(rows.end);
  merge.meet();
  const u32 teams = static_cast<u32>(cluster_count()), count = static_cast<u32>(g.warps);
  u32 number = static_cast<u32>(cluster_index()), next = number + teams;
  while (number < count) {
    u32 after = count;  // taken from the counter while this tile is under way
    if (block_rank() == 0 && threadIdx.x == 0 && threadIdx.y == 0 && next < count && 2 * teams < count)
      after = atomicInc(reinterpret_cast<u32*>(standing), count - teams - 1) + 2 * teams;  // the last leaves 0
    Tile<Kept, Ring, Shape> tile{f, ring, number, ring.place(number), rows, {}};
    ring.begin(next);
    tile.load();
    typename F::Values values = f.begin(f.line(0), tile.at);
    tile.template sweep<0>(values, merge, after);
    if (block_rank() == 0 && threadIdx.y == 0 && tile.at.count > 0) f.end(f.line(0), tile.at, values);
    ring.end();
    number = next, next = after;
  }
  merge.meet();
}

}  // namespace kfusion::device
