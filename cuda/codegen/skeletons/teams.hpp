// Rows in registers of a warp or of a team, and rows that a team reads again: what the skeletons of device/rows.cuh
// share.
#pragma once
#include "codegen/capacity.hpp"

namespace kfusion::codegen {

/// How rows of up to so many bytes are held: `slots` of 16 bytes a lane, in blocks of `warps` warps of which a
/// multiprocessor has registers for `resident`, `blocks` of them a row.
struct TeamShape {
  int slots, warps, resident, blocks;
  bool light = false;  ///< for vectors of four elements that need not be shifted: else warps have too much to do
};

/// The smallest that has room for the rows; null where none has, and for what all blocks should share.
const TeamShape* team_for(const Problem& p);

/// Whether such rows have a block of their own, or several: else less than a warp, or one, holds them.
bool is_team(const Problem& p, const TeamShape& shape);

/// Vectors of a row that a lane can hold in so many slots: a power of two.
std::int64_t vectors_in(const Problem& p, std::int64_t slots);

/// Blocks of a team of which each has up to `threads` threads, where a row keeps `warps` warps busy; few rows have more
/// blocks, as long as each has some warps. `resident`: teams of a multiprocessor that look at rows further on, of
/// `bytes` bytes.
struct TeamNeeds {
  int threads;
  std::int64_t warps, bytes;
  bool ahead;
  int least_blocks;
};
Division team_division(const Problem& p, const TeamNeeds& needs, std::int64_t partial_bytes);

/// Rows that fit nowhere are read again in every sweep.
struct StreamPolicy {
  static constexpr int kThreads = 256, kLeastBlocks = 2, kLeastBlocksInDoubles = 1;
  static constexpr int kBytesInFlight = 64, kMostVectors = 4;
};

}  // namespace kfusion::codegen
