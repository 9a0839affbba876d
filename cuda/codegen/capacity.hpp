// What a lane, a warp, a block and a cluster have room for: whom `choose` asks which skeleton can hold a row, and
// `divide` how many of them it takes.
#pragma once
#include <algorithm>

#include "codegen/choice.hpp"

namespace kfusion::codegen {

inline constexpr std::int64_t kSlotBytes = 16;  ///< what a lane loads at once
inline constexpr int kWarp = 32, kMaxCluster = 8;

inline std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
inline std::int64_t clamp(std::int64_t n, std::int64_t low, std::int64_t high) {
  return std::max(low, std::min(n, high));
}

// ---- rows -----------------------------------------------------------------------------------------------------------

/// Vectors of a row: the most that one can have.
std::int64_t vectors_of(const Arrangement& a);

/// Registers of a thread that the chosen loads of one vector take, in bytes.
std::int64_t bytes_of(const Kernel& k, const Arrangement& a, const std::vector<bool>& chosen);

/// Bytes that a row takes in registers.
std::int64_t row_bytes(const Kernel& k, const Arrangement& a, const Choice& c);

/// Functions of doubles take many registers.
bool in_doubles(const Kernel& k);

/// It computes much, or needs many registers for what it computes.
bool is_heavy(const Kernel& k);

/// Teams of `blocks` blocks that stay: `segments` of kSegmentVectors vectors a lane in registers, `stages` more a warp
/// on their way.
struct RingCapacity {
  int segments, warps, resident, blocks, stages;
  constexpr std::int64_t block_bytes() const { return kWarp * kSlotBytes * kSegmentVectors * segments * warps; }
};
inline constexpr RingCapacity kSpreadRing{4, 16, 1, 0, 4};  ///< as many blocks as there are

/// What computes much has half the warps, with twice the registers.
RingCapacity fit(const RingCapacity& ring, const Kernel& k);

/// The smallest that has room for so many bytes; null where none has.
const RingCapacity* ring_for(std::int64_t bytes, const Target& target);

// ---- columns --------------------------------------------------------------------------------------------------------

/// Columns in shared memory: vectors of a row, rows of a block, blocks of a cluster; no blocks where there is no room.
struct Tile {
  std::int64_t across = 0, rows = 0, blocks = 0;
  int at_once = 1;  ///< blocks that a multiprocessor has room for
};
inline constexpr int kTilesAtOnce = 3;

/// Rows of a tile that each of so many blocks has.
std::int64_t rows_of_block(std::int64_t rows, std::int64_t blocks, const Choice& c);

/// Bytes of one box of a ColumnExchange.
std::int64_t column_box(std::int64_t across, std::int64_t warps, std::int64_t blocks, std::int64_t partial_bytes);

/// 128 bytes of a row, 64 where the columns are too long; some blocks share a multiprocessor if they can,
/// which measured best on an H200.
Tile tile_of(const Arrangement& a, const Choice& c, const Target& target, std::int64_t partial_bytes);

}  // namespace kfusion::codegen
