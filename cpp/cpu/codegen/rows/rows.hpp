// Kernels of rows that stay in the cache: one sweep over a row after the other, then the next row.
#pragma once
#include "cpu/codegen/form/form.hpp"

namespace kfusion::cpu::ir {

/// Appends their loops to the current text.
void write_rows(const Form& form);

}  // namespace kfusion::cpu::ir
