// Loops of reductions that search (kfusion::Search).
#pragma once
#include <optional>

#include "cpu/fused/program.hpp"

namespace kfusion::cpu {

/// The loop of a search, which needs x in memory, and the step of its number.
struct SearchLoop {
  RowLoop loop;
  int number = 0;
};

/// The step whose elements the reduction compares with a number of the row; -1 where it is no search.
int searched_by(const FusedProgram& p, const Reduction& r);

/// Of an array, or of what an earlier sweep than that of `wanted` has left in its home; else nothing.
std::optional<SearchLoop> search_of(const FusedProgram& p, const Reduction& r, const Wanted& wanted);

/// Of a kernel of columns whose first two sweeps are the extremes of an array and their positions.
ColumnSearch column_search_of(const FusedProgram& p);

}  // namespace kfusion::cpu
