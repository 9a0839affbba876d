// How a kernel's axes become lanes and loops: which axes vectors lie along, how wide they are, and how each operand is
// reached from there.
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::codegen {

/// Which axes lie along the lanes: `kept` where nothing is reduced or columns are, `reduced` for rows.
enum class Traversal : std::uint8_t { kPointwise, kRows, kColumns };

/// Where the elements of a vector lie in an operand.
enum class Addressing : std::uint8_t {
  kDense,     ///< neighbours, at the vector's own number
  kVector,    ///< neighbours, at an offset that the vector's indices give
  kShifted,   ///< neighbours that are not of the frame
  kCrossed,   ///< neighbours along the last axis of the loop instead (device/crossed.cuh)
  kSplat,     ///< one element for all of them
  kElements,  ///< anywhere
  kStaged,    ///< in shared memory, where a span of rows lies
  kPlanes,    ///< in shared memory, spread over planes by their number modulo the width (device/planes.cuh)
  kRun        ///< neighbours from a multiple of 16 bytes on, as many as a very short row has
};

/// Elements of a row that a lane has alone: as few lanes as for a power of two where it is one element more.
inline constexpr std::int64_t kLaneElements = 17;

struct Arrangement {
  Traversal traversal = Traversal::kPointwise;
  Extents inner, outer;                   ///< along the lanes; of the loop
  int width = 1;                          ///< elements of a vector
  bool whole = true;                      ///< vectors exist with all their elements or not at all
  int frame_store = -1, frame_load = -1;  ///< whose frame the vectors lie in; none where both are -1
  int before = 0, behind = 0;             ///< of a frame: at least so many elements of a row are in none of its vectors
  bool spans = false;                     ///< rows lie one behind the other and are staged (device/spans.cuh)
  int packed = 0;                         ///< of spans, rows that one lane holds (device/packed.cuh)
  bool across = false;                    ///< some operand is contiguous along the last axis of the loop instead
  bool wide = false;                      ///< 64-bit indices along `inner`
  bool wide_outer = false;                ///< and along `outer`
  std::vector<Addressing> loads, stores;
  std::vector<Addressing> tables;  ///< where one index is that of a whole vector; else elements are taken one by one

  /// Vectors lie at multiples of their size in memory, not in the row, and are whole (device/framed.cuh).
  bool framed() const { return frame_store >= 0 || frame_load >= 0; }
  bool crossed() const {
    return std::ranges::count(loads, Addressing::kCrossed) + std::ranges::count(stores, Addressing::kCrossed) > 0;
  }
  /// Loads that lie in planes.
  std::int64_t planes() const { return std::ranges::count(loads, Addressing::kPlanes); }
  const Extents& inner_of(const Operand& o) const { return traversal == Traversal::kRows ? o.reduced : o.kept; }
  const Extents& outer_of(const Operand& o) const { return traversal == Traversal::kRows ? o.kept : o.reduced; }
  /// Does not vary along the reduced axes (of a pointwise kernel, everything varies).
  bool per_row(const Operand& o) const { return traversal != Traversal::kPointwise && o.per_row(); }
};

/// Gives a kernel without an axis to run over one of extent 1. Turns a pointwise kernel that reads across into one of
/// columns, which loops over the axis that those operands are contiguous along.
Kernel with_axes(Kernel k);

/// `aligned`: arrays begin at multiples of 16 bytes; `sums`: those of columns take part in how wide vectors are.
Arrangement arrange(const Kernel& k, bool aligned, bool sums = true);

/// Framed rows with what they share and would have to shift in planes; nothing where there is none of it, or other
/// than floats.
std::optional<Arrangement> in_planes(const Kernel& k, Arrangement a);

}  // namespace kfusion::codegen
