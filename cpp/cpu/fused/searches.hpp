// Finds reductions that search: the smallest of where(x == number of the row, position, n), as argmax has.
#pragma once
#include <optional>

#include "cpu/fused/program.hpp"

namespace kfusion::cpu {

/// What a search reads, as steps, and its loop, which needs x in memory.
struct Search {
  RowLoop loop;
  int x = 0, number = 0;
};

/// The step whose elements the reduction over `choice` compares with a number of the row; -1 where it is no search.
int searched_by(const FusedProgram& p, int choice, const Reduction& r);

/// Of an array, or of what an earlier sweep than that of `wanted` has left in its home; else nothing.
std::optional<Search> search_of(const FusedProgram& p, int choice, const Reduction& r, const Wanted& wanted);

/// Of a kernel of columns whose first two sweeps are the extremes of an array and their positions.
ColumnSearch column_search_of(const FusedProgram& p);

}  // namespace kfusion::cpu
