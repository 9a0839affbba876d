// Which values of columns wait in memory between phases, and where.
#pragma once
#include <vector>

#include "cpu/codegen/rows/row_plan.hpp"

namespace kfusion::cpu::ir {

struct ColumnPlan {
  explicit ColumnPlan(const Form& form);

  int phases() const { return 1 + 2 * static_cast<int>(sweeps.size()); }
  /// Those that a phase leaves: values known when `ready` sweeps are done.
  std::vector<int> held_after(const Form& form, int ready) const;

  /// The sweeps that are done when a step's value is known.
  int ready(const Form& form, int step) const;

  std::vector<Sweep> sweeps;
  std::vector<Search> searches;  ///< that the sweeps of their extremes take
  std::vector<int> kept;         ///< steps, each of which has a register for each element of a tile (Form::in_tiles)
  std::vector<int> held;         ///< steps, each of which has an array along a block's columns
  std::vector<int> reductions;   ///< steps, each of which has an array of accumulators

 private:
  void take_searches(const Form& form);
};

/// A lane has so many bytes: columns lie alike in all arrays.
inline constexpr std::int64_t kLaneBytes = 8;

/// What a call needs that takes blocks of so many columns in so many parts of the rows; tiles need it for so many rows.
struct ColumnScratch {
  ColumnScratch(const Form& form, const ColumnPlan& plan, std::int64_t columns, std::int64_t parts, std::int64_t rows);

  std::int64_t array_bytes, first_part, part_bytes, bytes;
};

}  // namespace kfusion::cpu::ir
