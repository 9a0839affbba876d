// Kernels whose lanes are columns: each lane has a row of the kernel's own, and takes one element of it after the
// other.
//
// In tiles, some registers of columns go through all sweeps before the next do: accumulators and values stay in
// registers. Else a block of columns goes through each sweep some rows at a time, so that long stretches of memory are
// read, and accumulators wait in memory.
#pragma once
#include "cpu/codegen/form/form.hpp"

namespace kfusion::cpu::ir {

/// Appends their loops to the current text.
void write_columns(const Form& form);

}  // namespace kfusion::cpu::ir
