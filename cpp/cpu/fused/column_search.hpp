// The largest or smallest element of each column and the first row that has it, in one sweep: argmax and argmin.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kfusion::cpu {

/// Rows [first, last) of some columns, which are dense in a row and at least a register of them.
struct ColumnBlock {
  const std::byte* x;  ///< of row 0
  std::int64_t row_step, first, last, columns;
  std::byte *extremes, *positions;  ///< of the columns; positions are integers of as many bytes as extremes have
};

/// How a kernel of columns takes two sweeps, for the extremes and for their positions, as one.
struct ColumnSearch {
  using Run = void (*)(const ColumnBlock& block);
  Run run = nullptr;  ///< nullptr: the kernel is another
  bool largest = true;
  int source = 0, extremes = 0, positions = 0;  ///< of FusedProgram's sources and reductions
};

}  // namespace kfusion::cpu
