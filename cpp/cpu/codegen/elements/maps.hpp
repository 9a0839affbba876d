// Elementwise kernels, row by row along the last axis; where that is short, blocks of rows along the last two.
#pragma once
#include "cpu/codegen/form/form.hpp"

namespace kfusion::cpu::ir {

/// Appends their loops to the current text.
void write_map(const Form& form);

}  // namespace kfusion::cpu::ir
