#include "codegen/contractions/tile.hpp"

#include <algorithm>
#include <cmath>

#include "kfusion/divide_up.hpp"

namespace kfusion::codegen {
namespace {

/// What was measured fastest on an H200 (results/kernels.md). Three stages leave room for a box for every element of a
/// tile, which pays where the depth is small or a matrix comes by boxes; tiles of 256 x 192 move the fewest bytes,
/// which also leaves more power for the clock.
constexpr Tile kStored[] = {
    {128, 256, 4, 2, 1, 2},
    {128, 256, 3, 2, 1, 4},
    {256, 192, 3, 1, 2, 3},
    {128, 128, 6, 2, 1, 2},
};
/// A product of few rows is one of few columns, turned: then no tile has more rows than there are. Its elements are
/// few, so they are stored without boxes; all shared memory is for slices, as memory is what such products wait for.
constexpr Tile kFewRows[] = {
    {128, 16, 12, 1, 1, 0, false, 8, true},
    {128, 32, 11, 1, 1, 0, false, 8, true},
    {128, 64, 9, 1, 1, 0, false, 8, true},
};
/// Two products: a half of a tile's columns is the one's, the other half the other's.
constexpr Tile kGates[] = {
    {256, 192, 3, 2, 1, 3, false, 4},
    {128, 256, 3, 2, 1, 4},
};
constexpr Tile kReduced[] = {{128, 256, 4, 2, 1, 0, true}};

/// Bytes of the left factor that blocks walk together while they reduce: they are read again for each tile along the
/// columns, and have to stay in L2 beside what else passes.
constexpr std::int64_t kWalkedBytes = 16 << 20, kMostWalked = 32, kLeastWalked = 4;

/// Bytes that reach a multiprocessor in a cycle, elements x 64
/// of depth that it multiplies in one, and what an element costs at a tile's end.
constexpr double kBytesPerCycle = 58, kElementsPerCycle = 32, kEndElements = 20, kStartCycles = 5000;
constexpr std::int64_t kShortDepth = 2048;

/// And what one costs of each array that threads load or store themselves: a second result of 8192 x 4096 takes 110 us
/// more than boxes would, three such arrays of 8192 x 5504 500 us (H200, bfloat16).
constexpr double kLooseCycles = 0.75;

/// And of each array more than one result that moves by boxes: 13 to 17 us of 8192 x 4096, two of them 32 to 35, three
/// 51 (H200, bfloat16, depth 1024).
constexpr double kBoxCycles = 0.1;

/// What the power limit leaves of the clock while tensor cores are busy: 0.79 to 0.82, measured for products from 10^10
/// to 10^12 operations (H100). Where they wait for bytes the clock stays: 16 rows by 4096 x 4096 take 17.3 us there,
/// which is 16.8 with all of it and 20.3 with 0.8.
constexpr double kClockShare = 0.8;

/// Bytes in a cycle that L2 gives to each of so many blocks: the fewer, the more. Measured on an H100 by 4096 x 4096,
/// in blocks, columns of a turned tile and microseconds: 32, 16, 17.5; 64, 16, 19.5; 64, 32, 21.1; 64, 64, 22.5; 96,
/// 64, 25.6; 128, 16, 24.0; 128, 32, 25.0; 128, 64, 27.9; and 128 of 128 x 128, in clusters, 27.9.
double cache_bytes_per_cycle(double blocks, const Target& target) {
  return 63.5 - 27 * blocks / target.multiprocessors;
}

/// Cluster tiles of all products.
std::int64_t units_of(const Tile& t, const TileProblem& p) {
  if (p.apart.empty()) {
    const std::int64_t down = t.turned ? p.tiles_along(t.rows * t.down) : divide_up(p.rows, t.rows * t.down);
    const std::int64_t across =
        t.turned ? divide_up(p.rows, t.cols * t.across) : p.tiles_along(t.cols / p.products * t.across);
    return p.batches * down * across;
  }
  std::int64_t units = 0;
  for (const auto& [rows, cols] : p.apart)
    units += divide_up(rows, std::int64_t{t.rows} * t.down) * divide_up(cols, std::int64_t{t.cols} * t.across);
  return units;
}

bool fits(const Tile& t, const TileProblem& p, const Target& target) {
  if (t.turned && !p.apart.empty()) return false;
  if (t.shared_bytes(t.turned ? 0 : p.vectors, t.turned ? 0 : p.column_values, p.products) > target.shared_bytes)
    return false;
  const int part = t.cols / std::max(p.products, t.down);
  return !(t.turned ? p.across_a : p.across_b) || part % 64 == 0;  // boxes along the columns have 64
}

/// Rounds of tiles, and what one takes.
struct Predicted {
  double rounds, slices, products, bytes, end;  ///< products, bytes: cycles of a slice

  double cycles() const { return rounds * (slices * std::max(products, bytes) + end) + kStartCycles; }
  double peak_cycles() const {
    return rounds * (slices * std::max(products / kClockShare, bytes) + end / kClockShare) + kStartCycles;
  }
};

Predicted predicted(const Tile& t, const TileProblem& p, const Target& target) {
  const auto units = static_cast<double>(units_of(t, p));
  const double elements = t.rows * t.cols;
  const bool all_boxes = t.slots >= 4;  // of two alike
  const int boxes = p.operands + std::max(p.results - 1, 0);
  const bool wants_boxes = p.operands > 0 || p.results > 1 || p.depth <= kShortDepth;
  const double end = elements / kEndElements *
                         (p.reduces                              ? 0.25
                          : t.turned || all_boxes != wants_boxes ? 1.5
                                                                 : 1.0) +
                     elements / p.products * (kLooseCycles * p.loose + kBoxCycles * boxes);
  const double blocks = std::min<double>(units * t.cluster(), target.multiprocessors);
  const double cached = (t.rows / t.across + t.cols / t.down) * 128;  // blocks of a cluster share the rest
  const double bytes =
      std::max((t.rows + t.cols) * 128 / kBytesPerCycle, cached / cache_bytes_per_cycle(blocks, target));
  return {std::ceil(units / (target.multiprocessors / t.cluster())),
          static_cast<double>(divide_up(p.depth, std::int64_t{64})), elements / kElementsPerCycle, bytes, end};
}

}  // namespace

int Tile::shared_bytes(int vectors, int values, int products) const {
  const int stage = (rows + cols) * 128, box = 64 * 128, vector = (cols * 2 + 127) / 128 * 128;
  return stages * (stage + 16) + 2 * slots * (box + 16) + vectors * (stages + 1) * vector +
         2 * values * cols / products * 4 + 16;
}

std::int64_t TileProblem::tiles_along(std::int64_t columns) const {
  std::int64_t tiles = beside.empty() ? divide_up(cols, columns) : 0;
  for (const std::int64_t of : beside) tiles += divide_up(of, columns);
  return tiles;
}

std::string Tile::text(const std::string& type, bool across_a, bool across_b, bool beside, bool sums,
                       bool apart) const {
  std::string options;
  const auto add = [&](bool is, const char* name) {
    if (is) options += (options.empty() ? "" : " | ") + std::string(name);
  };
  add(across_a, "kAcrossA"), add(across_b, "kAcrossB"), add(lag, "kLag"), add(turned && beside, "kTurned");
  add(sums, "kSums"), add(apart, "kApart");
  std::string text = "Tile<" + type;
  for (const int n : {rows, cols, stages, down, across, slots}) text += ", " + std::to_string(n);
  return text + ", " + (options.empty() ? "0" : options) + ">";
}

ChosenTile choose_tile(const TileProblem& p, const Target& target) {
  ChosenTile best{};
  const auto consider = [&](const auto& tiles) {
    for (const Tile& t : tiles) {
      if (!fits(t, p, target)) continue;
      const Predicted c = predicted(t, p, target);
      if (best.cycles == 0 || c.cycles() < best.cycles)
        best = {t, c.cycles(), c.peak_cycles(), c.bytes > c.products / kClockShare};
    }
  };
  if (p.reduces) {
    consider(kReduced);
    const std::int64_t bytes = std::int64_t{2} * best.tile.rows * best.tile.down * p.depth;
    best.tile.group = static_cast<int>(std::clamp(kWalkedBytes / bytes, kLeastWalked, kMostWalked));
  } else if (p.products > 1) {
    consider(kGates);
  } else {
    consider(kStored);
    consider(kFewRows);
  }
  return best;
}

int reduced_parts(const TileProblem& p, const Tile& tile, const Target& target) {
  constexpr double kPerPart = 0.5;  // tiles' time for the start and end of one
  const std::int64_t tiles = std::max<std::int64_t>(1, divide_up(p.cols, std::int64_t{tile.cols}));
  const double lines = static_cast<double>(p.batches * divide_up(p.rows, std::int64_t{tile.rows} * tile.down));
  const double clusters = target.multiprocessors / tile.cluster();
  int best = 1;
  double least = 0;
  for (int parts = 1; parts <= std::min<std::int64_t>(tiles, 64); ++parts) {
    const auto steps = static_cast<double>(divide_up(tiles, std::int64_t{parts}));
    const double time = std::ceil(lines * parts / clusters) * (steps + kPerPart);
    if (least == 0 || time < 0.98 * least) best = parts, least = time;
  }
  return best;
}

}  // namespace kfusion::codegen
