// The loops of each pattern of kernels. Each appends to the current text.
#pragma once
#include "cpu/codegen/form.hpp"

namespace kfusion::cpu::ir {

void write_map(const Form& form);
void write_rows(const Form& form);
void write_columns(const Form& form);
/// The functions of one sweep of rows in pieces.
void write_sweep(const Form& form, int sweep);
void write_finish(const Form& form, int sweep);

}  // namespace kfusion::cpu::ir
