// Generated column kernels that read once: a block, or a cluster of blocks, keeps all rows of some columns in shared
// memory for all sweeps.
#pragma once
#include "device/columns.cuh"

namespace kfusion::device {

/// Values in shared memory, in planes of as many bytes as a thread moves at once: without conflicts of banks.
template <class V>
class Planes {
  static constexpr int kBytes = static_cast<int>(sizeof(V));
  using Word = typename Choose<kBytes % 16 == 0, Slot, typename Choose<kBytes % 8 == 0, u64, u32>::type>::type;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));

 public:
  KF_DEVICE Planes(char* memory, int values) : words_(reinterpret_cast<Word*>(memory)), values_(values) {}
  KF_DEVICE void put(int i, const V& value) const {
    Word word[kWords];
    memcpy(word, &value, sizeof value);
#pragma unroll
    for (int k = 0; k < kWords; ++k) words_[k * values_ + i] = word[k];
  }
  KF_DEVICE V get(int i) const {
    Word word[kWords];
#pragma unroll
    for (int k = 0; k < kWords; ++k) word[k] = words_[k * values_ + i];
    V value;
    memcpy(&value, word, sizeof value);
    return value;
  }

 private:
  Word* words_;
  int values_;
};

/// What a cluster has of the columns: this block's rows of them, room for `share` rows, and this thread's columns.
template <class F, int kUnroll>
struct ColumnTile {
  using Row = typename F::Row;
  using Held = typename F::Held;
  Planes<Held> planes;
  typename F::At at;
  Row begin, end;
  int share;

  /// The number of row `first` of this thread, and how far apart it and the following ones are: rows of neighbouring
  /// threads are neighbours in memory, so that banks are shared out evenly.
  struct Rows {
    int number, apart;
  };
  KF_DEVICE Rows rows(Row first) const {
    const int across = static_cast<int>(blockDim.x), down = static_cast<int>(blockDim.y);
    const int y = static_cast<int>(threadIdx.y), from = static_cast<int>(first - begin) - y * kUnroll;
    const int rest = (share - from) / kUnroll, apart = rest < down ? rest : down;
    return {(from + y) * across + static_cast<int>(threadIdx.x), apart * across};
  }

  /// A thread keeps what it will use itself, so that no barrier is needed.
  KF_DEVICE void load(const F& f) const {
    const auto load = [&](const auto& line, const auto& existing, const auto& corner, int column) {
      return f.load(line, existing, corner, column);
    };
    const Row step = kUnroll * static_cast<int>(blockDim.y);
    for (Row r = begin + kUnroll * static_cast<int>(threadIdx.y); r < end; r += step) {
      Held held[kUnroll];
      load_rows(f, held, at, r, end, load);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) planes.put(rows(r).number + u * rows(r).apart, held[u]);
    }
  }
  KF_DEVICE void get(Row first, Held (&held)[kUnroll]) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) held[u] = planes.get(rows(first).number + u * rows(first).apart);
  }
};

/// Asks for the same rows of the columns of another cluster, so that memory is busy while these are reduced.
template <class F, class Tile>
KF_DEVICE void prefetch_tile(const F& f, const Tile& tile, i64 cluster) {
  using Row = typename F::Row;
  const i64 columns = static_cast<i64>(blockDim.x) * F::kWidth, rest = f.elements() - cluster * columns;
  if (rest <= 0) return;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  for (Row r = tile.begin + static_cast<Row>(thread); r < tile.end; r += static_cast<int>(blockDim.x * blockDim.y))
    f.prefetch(f.line(r), static_cast<typename F::Index>(cluster * columns),
               static_cast<int>(rest < columns ? rest : columns));
}

template <int kSweep, class F, int kUnroll>
KF_DEVICE void sweep_tile(const F& f, const ColumnTile<F, kUnroll>& tile, typename F::Values& values,
                          ColumnExchange& exchange) {
  const Sweep<kSweep> sweep;
  const auto hold = [&](typename F::Row first, auto& held) { tile.get(first, held); };
  auto total = sweep_column<kUnroll, kSweep>(f, tile.at, hold, values, tile.begin, tile.end);
  exchange.merge(total, f.partial(sweep));
  f.finish(sweep, values, total);
  if constexpr (kSweep + 1 < F::kSweeps) sweep_tile<kSweep + 1>(f, tile, values, exchange);
}

/// Block: (columns, shares), both powers of two. Grid: a cluster (or block) for each tile of columns. g.box: two boxes
/// of the exchange come before the tile in shared memory, which has room for g.splits rows of it, a multiple of
/// kUnroll.
template <class F, int kUnroll>
KF_DEVICE void tiles(const F& f, const Geometry& g) {
  using Index = typename F::Index;
  using Row = typename F::Row;
  extern __shared__ __align__(16) char shared[];
  const auto at = f.place((static_cast<Index>(cluster_index()) * blockDim.x + threadIdx.x) * F::kWidth);
  const int share = static_cast<int>(g.splits);
  const Row rows = static_cast<Row>(g.rows), begin = static_cast<Row>(share) * static_cast<Row>(block_rank());
  const Row end = at.count <= 0 ? begin : rows - begin < share ? rows : begin + share;
  ColumnExchange exchange(shared, static_cast<int>(g.box));
  const ColumnTile<F, kUnroll> tile{{shared + 2 * g.box, share * static_cast<int>(blockDim.x)}, at, begin, end, share};
  tile.load(f);
  if (g.ahead > 0) prefetch_tile(f, tile, cluster_index() + g.ahead);
  typename F::Values values = f.begin(f.line(0), at);
  sweep_tile<0>(f, tile, values, exchange);
  if (block_rank() == 0 && threadIdx.y == 0 && at.count > 0) f.end(f.line(0), at, values);
  exchange.finish();
}

}  // namespace kfusion::device
