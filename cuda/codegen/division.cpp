#include "codegen/division.hpp"

#include <algorithm>
#include <bit>

#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

constexpr std::int64_t kMaxSplits = 65535;   ///< blocks that a grid has along y
constexpr int kBlocksPerMultiprocessor = 4;  ///< where blocks share a reduction
constexpr std::int64_t kTicketBytes = 16;

unsigned unsigned_of(std::int64_t n) { return static_cast<unsigned>(n); }

Division divide_pointwise(const Arrangement& a, const Choice& c) {
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(divide_up(vectors_of(a), std::int64_t{c.threads} * c.vectors));
  return d;
}

Division divide_short_rows(const Arrangement& a, const Choice& c) {
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(divide_up(product(a.outer), c.threads / c.lanes));
  d.geometry = {product(a.outer), 1, 1, 0, 0};
  return d;
}

Division divide_packed(const Kernel& k, const Arrangement& a, const Choice& c) {
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(divide_up(product(a.outer), std::int64_t{c.threads} * a.packed));
  d.launch.shared_bytes = static_cast<std::size_t>(packed_slots(k, a) * c.threads * kSlotBytes);
  d.geometry = {product(a.outer), 1, 1, 0, 0};
  return d;
}

Division divide_spans(const Kernel& k, const Arrangement& a, const Choice& c) {
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(divide_up(product(a.outer), std::int64_t{c.threads} / kWarp * c.rows));
  d.launch.shared_bytes =
      static_cast<std::size_t>(c.threads / kWarp * c.rows * product(a.inner) * span_areas(k, a, c.held).bytes);
  d.geometry = {product(a.outer), 1, 1, 0, 0};
  return d;
}

/// A team of as few warps as hold the row; for few rows it has more blocks, as long as each has some warps.
Division divide_teams(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                      std::size_t partial_bytes) {
  const std::int64_t rows = product(a.outer), most = target.clusters ? kMaxCluster : 1;
  const std::int64_t needed = c.skeleton == Skeleton::kLongRows
                                  ? most * c.threads / kWarp
                                  : divide_up(vectors_of(a), std::int64_t{kWarp} * c.vectors);
  std::int64_t blocks = 1;
  while (blocks < most && needed > blocks * c.threads / kWarp) blocks *= 2;
  while (2 * blocks <= most && blocks > 1 && rows <= target.multiprocessors / (2 * blocks) && needed >= 16 * blocks)
    blocks *= 2;
  const std::int64_t warps = divide_up(needed, blocks);
  Division d;
  d.launch.block[0] = unsigned_of(warps * kWarp);
  d.launch.cluster = unsigned_of(blocks);
  d.launch.grid[0] = unsigned_of(rows * blocks);
  const std::int64_t box =
      divide_up(static_cast<std::int64_t>(partial_bytes) * warps * blocks, kSlotBytes) * kSlotBytes;
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
  // About as many rows further on as are in flight, but no more than L2 keeps until they are read.
  const std::int64_t resident = c.ahead ? std::max<std::int64_t>(1, c.least_blocks * c.threads / (warps * kWarp)) : 1;
  const std::int64_t in_l2 = target.l2_bytes / 6 / std::max<std::int64_t>(row_bytes(k, a, c), 1);
  const std::int64_t in_flight = resident * target.multiprocessors / blocks;
  const std::int64_t ahead = std::max<std::int64_t>(1, std::min(in_flight, in_l2));
  d.geometry = {rows, warps * blocks, 1, box, ahead};
  return d;
}

Division divide_ring(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                     std::size_t partial_bytes) {
  const std::int64_t rows = product(a.outer), held_bytes = bytes_of(k, a, c.held);
  RingShape ring = c.ring;
  const std::int64_t blocks = ring.blocks, room = exchange_room(static_cast<std::int64_t>(partial_bytes));
  const auto shared_bytes = [&] {
    const auto shared = static_cast<std::int64_t>(c.shared.size());
    return ring_bytes(ring, c.spread, room, held_bytes) + shared * kept_bytes(ring, c.kept);
  };
  while (ring.stages > kLeastRingStages && shared_bytes() > shared_bytes_of(ring.resident, target)) --ring.stages;
  const std::int64_t at_once = std::max<std::int64_t>(target.multiprocessors * ring.resident / blocks, 1);
  const std::int64_t teams = std::min(rows, at_once);
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.cluster = unsigned_of(c.spread ? 1 : blocks);
  d.launch.grid[0] = unsigned_of(teams * blocks);
  d.launch.resident = !c.spread;
  d.launch.cooperative = c.spread;
  d.launch.shared_bytes = static_cast<std::size_t>(shared_bytes());
  d.launch.standing_bytes =
      static_cast<std::size_t>(kTicketBytes + (c.spread ? teams * (kTicketBytes + blocks * room * 4) : 0));
  d.geometry = {rows, 0, blocks, room, ring.stages};
  return d;
}

Division divide_spread(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                       std::size_t partial_bytes) {
  const std::int64_t rows = product(a.outer);
  const SpreadCapacity spread = spread_of(a, c, target);
  const std::int64_t room = exchange_room(static_cast<std::int64_t>(partial_bytes));
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(spread.blocks);
  d.launch.grid[1] = unsigned_of(rows);
  d.launch.cooperative = true;
  d.launch.shared_bytes = static_cast<std::size_t>(spread_bytes(spread, c.threads, room, bytes_of(k, a, c.held)));
  d.launch.standing_bytes = static_cast<std::size_t>(rows * (kTicketBytes + spread.blocks * room * 4));
  d.geometry = {rows, 0, spread.blocks, room, spread.staged};
  return d;
}

/// Blocks that share a row, each with at least one chunk: a number that depends on sizes and device only.
Division divide_splits(const Arrangement& a, const Choice& c, const Target& target, std::size_t partial_bytes) {
  const std::int64_t rows = product(a.outer);
  const std::int64_t chunks = divide_up(vectors_of(a), std::int64_t{c.threads} * c.vectors);
  const std::int64_t blocks = std::int64_t{kBlocksPerMultiprocessor} * target.multiprocessors;
  const std::int64_t splits = clamp(blocks / std::max<std::int64_t>(rows, 1), 1, std::max<std::int64_t>(chunks, 1));
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(rows * splits);
  const std::int64_t box =
      divide_up(static_cast<std::int64_t>(partial_bytes) * c.threads / kWarp, kSlotBytes) * kSlotBytes;
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
  if (splits > 1) {
    d.launch.workspace_bytes = static_cast<std::size_t>(rows * splits) * partial_bytes;
    d.launch.standing_bytes = static_cast<std::size_t>(rows * kTicketBytes);
  }
  d.geometry = {rows, c.threads / kWarp, splits, box, 0};
  return d;
}

/// Blocks that share the rows of a tile, as long as multiprocessors would be idle.
std::int64_t cluster_for(std::int64_t tiles, std::int64_t down, const Target& target) {
  std::int64_t blocks = 1;
  while (target.clusters && 2 * blocks <= std::min<std::int64_t>(kMaxCluster, down) &&
         tiles * blocks < 2 * target.multiprocessors)
    blocks *= 2;
  return blocks;
}

Division divide_columns(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                        std::size_t partial_bytes) {
  const std::int64_t vectors = vectors_of(a), rows = product(a.outer);
  const std::int64_t across = std::bit_ceil(static_cast<std::uint64_t>(clamp(vectors, 1, c.lanes)));
  const std::int64_t sides = partial_bytes == 0 && a.crossed() && vectors > across ? 2 : 1;  // so that tiles are square
  std::int64_t down = c.threads / (across * sides);
  while (across * down > kWarp && down >= 2 * rows) down /= 2;
  const std::int64_t tiles = divide_up(vectors, across * sides);
  const std::int64_t blocks = std::int64_t{kBlocksPerMultiprocessor} * target.multiprocessors;
  const std::int64_t most = std::max<std::int64_t>(divide_up(rows, down * c.vectors), 1);
  const bool again = partial_bytes > 0 && k.paired.sweeps > 1;  // each sweep needs what the one before reduced
  const std::int64_t splits = partial_bytes == 0 ? std::min(most, kMaxSplits)
                              : again            ? cluster_for(tiles, down, target)
                                                 : clamp(blocks / std::max<std::int64_t>(tiles, 1), 1, most);
  Division d;
  d.launch.block[0] = unsigned_of(across);
  d.launch.block[1] = unsigned_of(down);
  d.launch.block[2] = unsigned_of(sides);
  d.launch.cluster = unsigned_of(again ? splits : 1);
  d.launch.grid[0] = unsigned_of(again ? tiles * splits : tiles);
  d.launch.grid[1] = unsigned_of(again ? 1 : splits);
  const std::int64_t box =
      column_box(across, across * down / kWarp, d.launch.cluster, static_cast<std::int64_t>(partial_bytes));
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
  if (splits > 1 && partial_bytes > 0 && !again) {
    d.launch.workspace_bytes = static_cast<std::size_t>(tiles * splits * across) * partial_bytes;
    d.launch.standing_bytes = static_cast<std::size_t>(tiles * kTicketBytes);
  }
  d.geometry = {rows, down, splits, box, 0};
  return d;
}

/// Few columns are shared by more blocks than could hold them, as long as multiprocessors would be idle.
Division divide_tiles(const Arrangement& a, const Choice& c, const Target& target, std::size_t partial_bytes) {
  const std::int64_t tiles = divide_up(vectors_of(a), c.lanes),
                     column_bytes = static_cast<std::int64_t>(partial_bytes) / a.width;
  std::int64_t blocks = c.tile.blocks;
  while (target.clusters && 2 * blocks <= kMaxCluster && 2 * blocks * tiles <= target.multiprocessors &&
         rows_of_block(a, c, 2 * blocks) > c.threads / c.lanes &&
         tile_bytes(a, c, column_bytes, 2 * blocks) <= shared_bytes_of(c.tile.resident, target))
    blocks *= 2;
  const std::int64_t resident = std::max<std::int64_t>(target.multiprocessors * c.least_blocks / blocks, 1);
  Division d;
  d.launch.block[0] = unsigned_of(c.lanes);
  d.launch.block[1] = unsigned_of(c.threads / c.lanes);
  d.launch.cluster = unsigned_of(blocks);
  d.launch.grid[0] = unsigned_of((c.tile.stages > 0 ? std::min(tiles, resident) : tiles) * blocks);
  d.launch.resident = c.tile.stages > 0;
  d.launch.standing_bytes = c.tile.stages > 0 ? kTicketBytes : 0;
  d.launch.shared_bytes = static_cast<std::size_t>(tile_bytes(a, c, column_bytes, blocks));
  d.geometry = {product(a.outer), tiles, rows_of_block(a, c, blocks), divide_up(column_bytes, kSlotBytes) * kSlotBytes,
                0};
  return d;
}

}  // namespace

Division divide(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                std::size_t partial_bytes) {
  Division d = c.skeleton == Skeleton::kPointwise    ? divide_pointwise(a, c)
               : c.skeleton == Skeleton::kShortRows  ? divide_short_rows(a, c)
               : c.skeleton == Skeleton::kPackedRows ? divide_packed(k, a, c)
               : c.skeleton == Skeleton::kSpreadRows ? divide_spread(k, a, c, target, partial_bytes)
               : c.skeleton == Skeleton::kRingRows   ? divide_ring(k, a, c, target, partial_bytes)
               : c.skeleton == Skeleton::kSpanRows   ? divide_spans(k, a, c)
               : c.skeleton == Skeleton::kSplitRows  ? divide_splits(a, c, target, partial_bytes)
               : c.skeleton == Skeleton::kColumns    ? divide_columns(k, a, c, target, partial_bytes)
               : c.skeleton == Skeleton::kTiles      ? divide_tiles(a, c, target, partial_bytes)
                                                     : divide_teams(k, a, c, target, partial_bytes);
  return d;
}

}  // namespace kfusion::codegen
