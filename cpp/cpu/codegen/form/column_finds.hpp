// Reductions of whole columns to the place of an extreme, which one sweep finds: argmax and argmin.
#pragma once
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu::ir {

/// Those of a kernel's searches that are taken so: places count rows, and nothing else uses the extreme.
std::vector<Search> column_searches(const Kernel& k);
/// Steps that these compute on the way, the extreme included.
std::vector<bool> steps_of_searches(const Kernel& k);

}  // namespace kfusion::cpu::ir
