#include "cpu/strided.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kfusion::cpu {
namespace {

/// Strides of one side of a move.
struct Layout {
  std::int64_t row, col;
};

template <int kItem>
void move_rows(std::int64_t rows, std::int64_t cols, const std::byte* from, Layout source, std::byte* to,
               Layout target) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c)
      std::memcpy(to + r * target.row + c * target.col, from + r * source.row + c * source.col, kItem);
}

/// Down the columns, a few columns at a time: as many as fill a line of the dense side, whose lines (one per row)
/// then stay in the first-level cache until they are complete.
template <int kItem>
void move_columns(std::int64_t rows, std::int64_t cols, const std::byte* from, Layout source, std::byte* to,
                  Layout target) {
  constexpr std::int64_t kBlock = 64 / kItem;
  for (std::int64_t begin = 0; begin < cols; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, cols);
    for (std::int64_t c = begin; c < end; ++c)
      for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(to + r * target.row + c * target.col, from + r * source.row + c * source.col, kItem);
  }
}

template <int kItem>
void move(const Tile& tile, const std::byte* from, Layout source, std::byte* to, Layout target) {
  if (tile.rows > 1 && std::abs(tile.row_stride) < std::abs(tile.col_stride)) {
    move_columns<kItem>(tile.rows, tile.cols, from, source, to, target);
  } else {
    move_rows<kItem>(tile.rows, tile.cols, from, source, to, target);
  }
}

void move_any(const Tile& tile, const std::byte* from, Layout source, std::byte* to, Layout target) {
  if (tile.item == 2) return move<2>(tile, from, source, to, target);
  if (tile.item == 4) return move<4>(tile, from, source, to, target);
  move<8>(tile, from, source, to, target);
}

}  // namespace

void gather(const Tile& tile, const std::byte* from, std::byte* to, std::int64_t pitch) {
  move_any(tile, from, {tile.row_stride, tile.col_stride}, to, {pitch, tile.item});
}

void scatter(const Tile& tile, const std::byte* from, std::int64_t pitch, std::byte* to) {
  move_any(tile, from, {pitch, tile.item}, to, {tile.row_stride, tile.col_stride});
}

}  // namespace kfusion::cpu
