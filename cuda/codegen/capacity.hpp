// What a lane, a warp, a block and a cluster have room for: whom `choose` asks which skeleton can hold a row, and
// `divide` how many of them it takes.
#pragma once
#include <algorithm>

#include "codegen/choice.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::codegen {

inline constexpr std::int64_t kSlotBytes = 16;  ///< what a lane loads at once
inline constexpr int kWarp = 32;
inline constexpr int kMaxCluster = 8, kLargestCluster = 16;  ///< blocks: on all GPUs that have clusters, on some

inline std::int64_t clamp(std::int64_t n, std::int64_t low, std::int64_t high) {
  return std::max(low, std::min(n, high));
}

/// Shared memory that each of so many blocks can have that share a multiprocessor.
std::int64_t shared_bytes_of(int resident, const Target& target);

// ---- rows -----------------------------------------------------------------------------------------------------------

/// Vectors of a row: the most that one can have.
std::int64_t vectors_of(const Arrangement& a);

/// Registers of a thread that the chosen loads of one vector take, in bytes.
std::int64_t bytes_of(const Kernel& k, const Arrangement& a, const std::vector<bool>& chosen);

/// Bytes that a row takes in registers.
std::int64_t row_bytes(const Kernel& k, const Arrangement& a, const Choice& c);

/// Elements in a slot, the most of all staged operands: spans that begin with a multiple of it begin with a slot.
std::int64_t span_unit(const Kernel& k, const Arrangement& a);

/// Where what is staged lies in shared memory, and how much that is: bytes an element. Results take the place of a load
/// that registers hold.
struct SpanAreas {
  std::vector<std::int64_t> loads, stores;
  std::int64_t bytes = 0;
};
SpanAreas span_areas(const Kernel& k, const Arrangement& a, const std::vector<bool>& held);

/// Slots of the largest staged operand that a lane holds of rows.
std::int64_t packed_slots(const Kernel& k, const Arrangement& a);

/// Functions of doubles take many registers.
bool in_doubles(const Kernel& k);

/// It computes much, or needs many registers for what it computes.
bool is_heavy(const Kernel& k);

/// What matters of rows to rings.
struct RingNeeds {
  std::int64_t bytes, held_bytes;  ///< of a row, of a vector, in registers
  std::size_t shared;              ///< operands that all rows share
  bool whole, light;               ///< no vector ends early; vectors of four elements, which leave warps less to do
  bool fetches;                    ///< sweeps load more than what is held
  constexpr bool single() const { return held_bytes <= kSlotBytes; }
};

struct RingCapacity {
  RingShape shape;
  bool (*suits)(const RingNeeds&);
  constexpr std::int64_t block_bytes() const {
    return kWarp * kSlotBytes * kSegmentVectors * shape.segments * shape.warps;
  }
};
inline constexpr RingCapacity kSpreadRing{{4, 16, 1, 0, 4}, nullptr};  ///< as many blocks as there are
inline constexpr int kLeastRingStages = 2;

/// The smallest that has room for such rows and suits them; null where none has.
const RingCapacity* ring_for(const RingNeeds& needs, const Target& target);

/// For so many rows. Of small blocks a team has no more than it needs; where blocks are spread, as many as each row can
/// have of all. What computes much has half the warps, with twice the registers.
RingShape fit(const RingCapacity& ring, const Kernel& k, const RingNeeds& needs, std::int64_t rows,
              const Target& target);

/// Bytes of a device::Told, of partial results of so many bytes.
std::int64_t exchange_room(std::int64_t partial_bytes);

/// What a block takes of shared memory besides what all rows share: `room` bytes a message, `held_bytes` a vector.
std::int64_t ring_bytes(const RingShape& ring, bool spread, std::int64_t room, std::int64_t held_bytes);

/// So many segments of each warp, of an operand that all rows share.
std::int64_t kept_bytes(const RingShape& ring, std::int64_t segments);

/// A row of few, shared by `blocks` blocks: so many vectors a lane in shared memory, after those in registers.
struct SpreadCapacity {
  std::int64_t blocks, staged;
};
inline constexpr int kSpreadThreads = 512;
SpreadCapacity spread_of(const Arrangement& a, const Choice& c, const Target& target);
std::int64_t spread_bytes(const SpreadCapacity& spread, int threads, std::int64_t room, std::int64_t held_bytes);

/// At least as much as the partial results of a sweep take.
std::int64_t partial_bound(const Kernel& k);

// ---- columns --------------------------------------------------------------------------------------------------------

/// At least as much as a partial result of one column takes.
std::int64_t column_bound(const Kernel& k);

/// Lanes that share a row of a tile; `vector_bytes`: at most of an operand that they hold.
int tile_lanes(const TileShape& tile, int vector_bytes);

/// The smallest shape that has room for all rows; no segments where none has. `staged`: threads can copy what they
/// hold, c.held_bytes of a row.
TileShape tile_for(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target, int vector_bytes,
                   bool staged);

/// Rows that each of so many blocks has: as many as all its threads have alike.
std::int64_t rows_of_block(const Arrangement& a, const Choice& c, std::int64_t blocks);

/// Shared memory of a block that tells so many blocks, itself included; `column_bytes`: of a column's partial result.
std::int64_t tile_bytes(const Arrangement& a, const Choice& c, std::int64_t column_bytes, std::int64_t blocks);

/// Bytes of one box of a ColumnExchange.
std::int64_t column_box(std::int64_t across, std::int64_t warps, std::int64_t blocks, std::int64_t partial_bytes);

}  // namespace kfusion::codegen
