// Which skeleton of device/*.cuh runs a kernel, and what of that is static in its text.
#pragma once
#include <vector>

#include "codegen/arrangement.hpp"
#include "codegen/generate.hpp"

namespace kfusion::codegen {

enum class Skeleton : std::uint8_t {
  kPointwise,
  kPackedRows,
  kSpanRows,
  kShortRows,
  kTeamRows,
  kSpreadRows,
  kRingRows,
  kLongRows,
  kSplitRows,
  kColumns,
  kTiles
};

/// kRingRows: vectors a lane in a segment.
inline constexpr int kSegmentVectors = 4;

/// kRingRows: a team has `blocks` blocks of `warps` warps, of which a multiprocessor has room for `resident`; a warp
/// has `segments` in registers and `stages` more on their way.
struct RingShape {
  int segments, warps, resident, blocks, stages;
};

/// kTiles: how columns are held. `row_bytes` of each row by neighbouring lanes; by a thread, segments of `rows` rows,
/// of which as many as `held` in registers and the others in some of its `stages`; by at least `blocks` blocks of
/// `threads` threads, of which a multiprocessor has room for `resident`.
struct TileShape {
  int row_bytes, threads, resident, blocks, segments, held, stages, rows = 0;
};

/// What is static in the text. Sizes of `outer` (of `inner` where nothing is reduced) play no part, but for whether
/// they are few.
struct Choice {
  Skeleton skeleton = Skeleton::kPointwise;
  int vectors = 1;  ///< that a thread has at a time (kPackedRows: rows); kSpreadRows: in registers
  int lanes = 32;   ///< kShortRows, kSpanRows: that share a row; kColumns, kTiles: that have its columns
  int threads = 256, least_blocks = 2;  ///< __launch_bounds__
  int rows = 0;                         ///< kSpanRows: of a warp
  bool ahead = false;                   ///< kTeamRows: rows further on are brought to L2
  bool spread = false;                  ///< kRingRows: teams of blocks anywhere, instead of in clusters
  bool staged = false;                  ///< kSpreadRows: not all vectors are in registers
  std::vector<bool> held;               ///< by load: stays in registers for all sweeps
  std::vector<int> shared;  ///< loads that shared memory keeps; kRingRows: of all rows, kTiles: of all columns
  int kept = 0;             ///< kRingRows: segments of a warp of which it does; kTiles: bytes of a row
  int held_bytes = 0;       ///< kTiles: of a vector of each of them
  RingShape ring{};         ///< kRingRows
  TileShape tile{};         ///< kTiles
};
Choice choose(const Kernel& k, const Arrangement& a, const Target& target);

}  // namespace kfusion::codegen
