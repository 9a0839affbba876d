// Rows beyond what a block holds, which bulk copies bring on chip: what ring_rows and spread_rows share.
#pragma once
#include "codegen/capacity.hpp"

namespace kfusion::codegen {

/// Vectors of a lane in a segment.
inline constexpr int kSegmentVectors = 4;

/// A team has `blocks` blocks of `warps` warps, of which a multiprocessor has room for `resident`; a warp has
/// `segments` in registers and `stages` more on their way.
struct RingShape {
  int segments, warps, resident, blocks, stages;
  constexpr std::int64_t block_bytes() const { return kWarp * kSlotBytes * kSegmentVectors * segments * warps; }
};

/// What matters of rows to rings.
struct RingNeeds {
  std::int64_t bytes, held_bytes;  ///< of a row, of a vector, in registers
  std::vector<int> shared;         ///< operands that all rows share: weights and the like
  bool whole, light;               ///< no vector ends early; vectors of four elements, which leave warps less to do
  bool fetches;                    ///< sweeps load more than what is held
  bool planed;                     ///< and from planes
  explicit RingNeeds(const Problem& p);
  bool single() const { return held_bytes <= kSlotBytes; }
};

/// Longer rows (bytes) no block of a multiprocessor's own holds.
inline constexpr std::int64_t kMostTeamBytes = 128 << 10;

/// Whether bulk copies can bring all that is held of rows, which several sweeps use.
bool can_ring(const Problem& p);

/// The smallest that has room for such rows and suits them; null where none has.
const RingShape* ring_for(const RingNeeds& needs, const Target& target);

/// Rows that no cluster holds, or so few that clusters would leave multiprocessors idle.
bool are_few(const RingShape* ring, const Problem& p);

}  // namespace kfusion::codegen
