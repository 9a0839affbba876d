// device/tiles.cuh: reductions along outer axes that take several sweeps: columns in registers and shared memory of a
// block or a cluster that stays, read once, while the next ones are copied.
#include <span>

#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

/// How columns are held: `row_bytes` of each row by neighbouring lanes; by a thread, segments of `rows` rows, of which
/// as many as `held` in registers and the others in some of its `stages`; by at least `blocks` blocks of `threads`
/// threads, of which a multiprocessor has room for `resident`.
struct TileShape {
  int row_bytes, threads, resident, blocks, segments, held, stages, rows = 0;
};

/// Segments of 64 bytes a thread. Measured (results/kernels.md): 256 bytes of a row are read and written quicker than
/// 128.
struct TilesPolicy {
  static constexpr int kSegmentBytes = 64, kMostSegmentRows = 8;
  static constexpr TileShape kStaged[] = {
      {512, 128, 4, 1, 4, 4, 4},   //    64 rows of float32
      {256, 64, 8, 1, 4, 4, 4},    //    64: what needs more room to merge, as half types do
      {512, 256, 2, 1, 4, 4, 4},   //   128
      {256, 256, 2, 1, 4, 4, 4},   //   256
      {256, 512, 1, 1, 4, 4, 4},   //   512
      {256, 512, 1, 1, 6, 4, 6},   //   768
      {256, 256, 2, 2, 8, 4, 5},   //  1024
      {256, 512, 1, 1, 8, 4, 5},   //  1024: without clusters
      {256, 512, 1, 2, 7, 4, 5},   //  1792
      {256, 256, 2, 4, 8, 4, 5},   //  2048
      {256, 512, 1, 2, 8, 4, 5},   //  2048: what needs more room for its exchange, as half types do
      {256, 256, 2, 8, 8, 4, 5},   //  4096
      {256, 512, 1, 4, 8, 4, 5},   //  4096
      {256, 256, 2, 16, 8, 4, 4},  //   8192
      {256, 512, 1, 8, 8, 4, 5},   //   8192
      {128, 256, 2, 8, 8, 4, 5},   //   8192
      {128, 256, 2, 16, 8, 4, 5},  // 16384
      {128, 512, 1, 8, 8, 4, 6},   // 16384
      {128, 512, 1, 16, 8, 4, 6},  // 32768
      {128, 512, 1, 16, 8, 4, 5},  // 32768: with weights
      {64, 512, 1, 16, 8, 4, 6},   // 65536
      {64, 512, 1, 1, 8, 4, 5},    //  4096: without clusters
      {64, 512, 1, 1, 4, 4, 4},    //  2048: with less shared memory
  };
  /// Shapes without stages, for what threads cannot copy.
  static constexpr TileShape kDirect[] = {
      {512, 128, 4, 1, 4, 4, 0}, {512, 256, 2, 1, 4, 4, 0}, {256, 256, 2, 1, 4, 4, 0}, {128, 256, 2, 1, 4, 4, 0},
      {128, 512, 1, 1, 4, 4, 0}, {128, 512, 1, 2, 4, 4, 0}, {128, 512, 1, 4, 4, 4, 0}, {128, 512, 1, 8, 4, 4, 0},
      {64, 512, 1, 8, 4, 4, 0},  {64, 512, 1, 16, 4, 4, 0},
  };
};

struct Tiles : Configuration {
  TileShape tile{};
  int lanes = kWarp;   ///< that share a row of a tile
  int held_bytes = 0;  ///< of a vector of each held load
  int kept_bytes = 0;  ///< of a row: of values that are the same for all columns

  /// Columns that another sweep would read again, where there is room.
  static std::optional<Tiles> choose(const Problem& p) {
    if (p.a.traversal != Traversal::kColumns || p.k.paired.sweeps == 1) return {};
    Tiles c;
    c.traits.held = p.held;
    int vector_bytes = 4;
    for (std::size_t i = 0; i < p.k.loads.size(); ++i) {
      if (p.a.loads[i] == Addressing::kSplat) c.traits.held[i] = false;
      const int bytes = p.a.width * static_cast<int>(item_bytes(p.k.loads[i].dtype));
      if (c.traits.held[i]) vector_bytes = std::max(vector_bytes, bytes);
    }
    if (std::ranges::count(c.traits.held, true) == 0) return {};
    c.held_bytes = static_cast<int>(bytes_of(p.k, p.a, c.traits.held));
    c.keep_row_values(p);
    const bool staged = c.can_copy(p);
    for (const TileShape& shape : staged ? std::span<const TileShape>(TilesPolicy::kStaged) : TilesPolicy::kDirect)
      if (c.take(shape, p, vector_bytes)) return c;
    return {};
  }

  /// What threads can copy for themselves: whole vectors of 4 bytes or more.
  bool can_copy(const Problem& p) const {
    for (std::size_t i = 0; i < p.k.loads.size(); ++i) {
      const bool neighbours = p.a.loads[i] == Addressing::kDense || p.a.loads[i] == Addressing::kVector;
      const bool whole = p.a.whole && neighbours && p.a.width * item_bytes(p.k.loads[i].dtype) >= 4;
      if (traits.held[i] && !whole) return false;
    }
    return true;
  }

  /// Weights and the like, the same for all columns, not only for those of a vector: a block has the same rows of all
  /// its tiles.
  void keep_row_values(const Problem& p) {
    traits.shares_row_values = true;
    for (std::size_t i = 0; i < p.k.loads.size(); ++i) {
      const Operand& o = p.k.loads[i];
      const bool alike = std::ranges::all_of(p.a.inner_of(o), [](std::int64_t stride) { return stride == 0; });
      if (p.a.loads[i] != Addressing::kSplat || !alike || p.a.per_row(o)) continue;
      traits.shared.push_back(static_cast<int>(i));
      kept_bytes += static_cast<int>(item_bytes(o.dtype));
    }
  }

  /// The shape with rows in a segment: as many as operands that lie across need, then of fewer segments. What computes
  /// much has half the threads, with twice the registers. False where it has no room for all rows.
  bool take(TileShape shape, const Problem& p, int vector_bytes) {
    using Policy = TilesPolicy;
    shape.rows = p.a.crossed()
                     ? p.a.width
                     : static_cast<int>(clamp(Policy::kSegmentBytes / held_bytes, 1, Policy::kMostSegmentRows));
    const int times = std::max(shape.rows * held_bytes / Policy::kSegmentBytes, 1);
    for (int* segments : {&shape.segments, &shape.held, &shape.stages})
      if (*segments > 0) *segments = std::max(*segments / times, 1);
    if (is_heavy(p.k)) shape.threads /= 2;
    tile = shape, threads = shape.threads, least_blocks = shape.resident;
    lanes = std::clamp(shape.row_bytes / vector_bytes, 1, kWarp);
    if (shape.stages > 0) traits.staging = Traits::Staging::kOwnCopies;
    return shape.blocks <= most_blocks(p.target) && threads % lanes == 0 &&
           rows_of_block(p, shape.blocks) <= shape.rows * shape.segments * (threads / lanes) &&
           shared_bytes(p, column_bound(p.k), shape.blocks) <= shared_bytes_of(shape.resident, p.target);
  }

  /// Rows that each of so many blocks has: as many as all its threads have alike.
  std::int64_t rows_of_block(const Problem& p, std::int64_t blocks) const {
    const std::int64_t alike = threads / lanes * (p.a.crossed() ? tile.rows : 1);
    return divide_up(product(p.a.outer), blocks * alike) * alike;
  }

  /// Shared memory of a block that sends results to `blocks` blocks, itself included; `column_bytes`: a column's
  /// partial result.
  std::int64_t shared_bytes(const Problem& p, std::int64_t column_bytes, std::int64_t blocks) const {
    const std::int64_t room = whole_slots(column_bytes), columns = lanes * p.a.width;
    const std::int64_t parts = threads / kWarp + 1, told = blocks > 1 ? 2 * blocks : 0;
    const std::int64_t kept = whole_slots(rows_of_block(p, blocks)) * kept_bytes;
    return kept + threads * tile.stages * tile.rows * held_bytes + 4 * kSlotBytes + columns * room * (1 + parts + told);
  }

  std::string call() const override {
    return listed(lanes) + ", TileShape<" + listed(tile.segments, tile.rows, tile.held, tile.stages) + ">";
  }

  /// Few columns are shared by more blocks than could hold them, as long as multiprocessors would be idle.
  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t tiles = divide_up(vectors_of(p.a), lanes), column_bytes = partial_bytes / p.a.width;
    std::int64_t blocks = tile.blocks;
    while (p.target.clusters && 2 * blocks <= kMaxCluster && 2 * blocks * tiles <= p.target.multiprocessors &&
           rows_of_block(p, 2 * blocks) > threads / lanes &&
           shared_bytes(p, column_bytes, 2 * blocks) <= shared_bytes_of(tile.resident, p.target))
      blocks *= 2;
    const std::int64_t at_once = std::max<std::int64_t>(p.target.multiprocessors * least_blocks / blocks, 1);
    Division d({(tile.stages > 0 ? std::min(tiles, at_once) : tiles) * blocks}, {lanes, threads / lanes},
               Geometry{product(p.a.outer), tiles, rows_of_block(p, blocks), whole_slots(column_bytes)});
    d.launch.cluster = static_cast<unsigned>(blocks);
    d.launch.resident = tile.stages > 0;
    d.launch.standing_bytes = tile.stages > 0 ? kTicketBytes : 0;
    d.launch.shared_bytes = static_cast<std::size_t>(shared_bytes(p, column_bytes, blocks));
    return d;
  }
};

}  // namespace

Skeleton tiles() { return skeleton<Tiles>("tiles", "device/tiles.cuh", false, true); }

}  // namespace kfusion::codegen
