// Between an array of any strides and dense rows in a scratch buffer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kfusion::cpu {

/// A block of rows x cols elements of `item` bytes (2, 4 or 8); strides in bytes, any sign, any alignment.
struct Tile {
  std::int64_t rows, cols, row_stride, col_stride;
  int item;
};

/// Copies the tile at `from` into rows that are `pitch` bytes apart, each dense. Where neighbouring rows are closer
/// together than neighbouring columns (a transposed array), it goes down the columns, so that a cache line is read
/// once.
void gather(const Tile& tile, const std::byte* from, std::byte* to, std::int64_t pitch);

/// The way back.
void scatter(const Tile& tile, const std::byte* from, std::int64_t pitch, std::byte* to);

}  // namespace kfusion::cpu
