// What the text of columns (columns.cpp) is told by who runs it (column_jobs.cpp), behind Call::columns.
#pragma once
#include <cstdint>

namespace kfusion::cpu::ir {

/// Numbers of a call. Without tiles the work is a list of phases: values of columns that are known before the first
/// sweep; then of each sweep its rows, and the values that it leaves. A call takes phases [first, last).
struct ColumnCall {
  std::int64_t first_phase, last_phase;
  std::int64_t first_row, last_row;  ///< that the phases of rows take
  std::int64_t rows_at_once;         ///< that go through a block of columns before the next rows do
  std::int64_t part;                 ///< where in the scratch memory the accumulators of these rows are
  std::int64_t parts;                ///< of the rows; accumulators of all are combined in their order
  std::int64_t first_part, part_bytes, array_bytes;
  std::int64_t begun_row;          ///< where accumulators begin anew: first_row, or -1 where they go on
  std::int64_t together, columns;  ///< rows of so many columns that are one (Form::together)
  std::int64_t count;              ///< elements that a column reduces
};
enum class ColumnNumber : std::uint8_t {
  kFirstPhase,
  kLastPhase,
  kFirstRow,
  kLastRow,
  kRowsAtOnce,
  kPart,
  kParts,
  kFirstPart,
  kPartBytes,
  kArrayBytes,
  kBegunRow,
  kTogether,
  kColumns,
  kCount
};

}  // namespace kfusion::cpu::ir
