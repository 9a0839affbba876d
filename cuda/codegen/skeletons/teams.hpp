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

/// Teams of blocks like those of `c`, one for each row, which keeps `warps` warps busy and has `bytes` bytes; few rows
/// have more blocks, as long as each has some warps. `ahead`: rows further on are brought to L2.
Division divide_teams(const Problem& p, const Configuration& c, std::int64_t warps, std::int64_t bytes, bool ahead,
                      std::int64_t partial_bytes);

/// Rows that fit nowhere are read again in every sweep.
struct StreamedRows : Configuration {
  int vectors = 1;  ///< in flight

  explicit StreamedRows(const Problem& p);
  std::string call() const override { return listed(vectors); }
};

}  // namespace kfusion::codegen
