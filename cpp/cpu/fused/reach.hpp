// How an operand of a fused kernel is reached. A kernel runs over an outer index (its rows; the rows that a column
// reduction adds up) and, for each, over a flat one: the elements of the other axes in C order, which tiles cut.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu {

enum class Reach : std::uint8_t {
  kScalar,   ///< one element for the whole kernel
  kOuter,    ///< one element for each outer index
  kDirect,   ///< dense along the flat index, or along each run of it: tiles read and write it where it lies
  kStrided,  ///< neither: elements are copied between it and a dense tile
};

inline constexpr std::int64_t kChunk = 4096;  ///< elements of a row that are reduced at a time

struct Layout {
  Reach reach = Reach::kDirect;
  int item = 4;  ///< bytes of an element in memory
  std::int64_t offset = 0;
  Extents outer, flat;      ///< strides in bytes (of an iota: in units)
  std::int64_t to_run = 0;  ///< kDirect within a run (Space::run_length): bytes from the end of one to the next one
};

inline bool all_zero(const Extents& strides) {
  return std::ranges::all_of(strides, [](std::int64_t s) { return s == 0; });
}

/// The extents of a kernel's outer and flat axes.
struct Space {
  Extents outer, flat;
  std::int64_t rows = 1, cols = 1;  ///< products of the two
  bool columns = false;             ///< the outer axes are the reduced ones: each element of a tile is a row of its own
  bool grouped = false;             ///< rows of one chunk or more that go by in groups, see FusedProgram::group
  std::int64_t run_length = 0;      ///< of long rows in several runs, each dense in memory; else 0

  explicit Space(const Kernel& k);
  Layout layout(const Operand& o, int item) const;
  /// The layout as one that is dense within a run, where it is.
  Layout by_runs(Layout l) const;

 private:
  Extents outer_of(const Extents& kept, const Extents& reduced) const;
  Extents flat_of(const Extents& kept, const Extents& reduced) const;

  bool pointwise_ = false;
  std::size_t row_axes_ = 0;  ///< of an elementwise kernel: its rows' axes, all but the last or none
};

/// An array of one element for each row, along the rows of a group.
Layout along_rows(const Layout& l);

/// Sum of index x stride for point `index` of `extents`, in C order.
inline std::int64_t offset_of(std::int64_t index, const Extents& extents, const Extents& strides) {
  if (extents.size() == 1) return index * strides[0];
  std::int64_t offset = 0;
  for (std::size_t d = extents.size(); d-- > 0; index /= extents[d]) offset += index % extents[d] * strides[d];
  return offset;
}

/// Elements [begin, begin + count) along the flat index, to a dense tile and back.
void gather(const Layout& from, const Extents& extents, const std::byte* base, std::int64_t begin, std::int64_t count,
            std::byte* tile);
void scatter(const Layout& to, const Extents& extents, std::byte* base, std::int64_t begin, std::int64_t count,
             const std::byte* tile);

/// The numbers first + offsets of the elements, as values of `dtype` (its compute type).
void count_off(const Layout& iota, const Extents& extents, std::int64_t first, DType dtype, std::int64_t begin,
               std::int64_t count, std::byte* tile);

/// `count` copies of an element.
void repeat(const std::byte* element, int item, std::int64_t count, std::byte* to);

}  // namespace kfusion::cpu
