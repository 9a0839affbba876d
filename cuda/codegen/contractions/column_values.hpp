// What an epilogue needs of a column that is no element of a half type: computed once for a tile.
#pragma once
#include <vector>

#include "codegen/contractions/epilogue_printer.hpp"

namespace kfusion::codegen {

/// Steps whose value depends on the column alone, and that others than such need: of batch norm the mean,
/// 1 / sqrt(variance + epsilon), the weight and the bias. Empty where all of them are vectors that arrive with slices
/// (`boxes`), where the epilogue reduces, or where they are too many for shared memory.
std::vector<int> column_values(const Contraction& c, const Boxes& boxes);

}  // namespace kfusion::codegen
