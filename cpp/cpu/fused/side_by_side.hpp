// Sums of few columns: several rows lie side by side, as one of more columns.
#pragma once
#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu {

/// How many rows of a kernel of columns go side by side: 1 where its arrays do not lie so, or columns are many.
std::int64_t rows_side_by_side(const Kernel& k);

/// The kernel with `count` rows side by side: its columns come `count` times, and its results are those of each.
Kernel side_by_side(const Kernel& k, std::int64_t count);

}  // namespace kfusion::cpu
