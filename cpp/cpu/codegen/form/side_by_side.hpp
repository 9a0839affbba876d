// Few columns whose rows follow each other in memory: some rows side by side are one row of a kernel whose columns are
// reduced. It has accumulators for each, and what these leave is combined for each column.
#pragma once
#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu::ir {

/// Rows that are one where tiles have so many registers of `lanes` columns; 1 where that takes no less time, or where
/// rows do not follow each other.
int rows_side_by_side(const Kernel& k, int lanes, int registers);

}  // namespace kfusion::cpu::ir
