// Kernels that are nothing but rows of a table: a lone embedding. Each row is copied from where it is to where it goes.
#pragma once
#include <optional>

#include "cpu/fused/worker.hpp"

namespace kfusion::cpu {

/// How a program copies rows; nothing where it does more, or elements do not lie side by side in both.
std::optional<RowCopy> row_copy_of(const FusedProgram& p);

/// What the program computes.
void copy_rows(const FusedCall& call, const RowCopy& copy, int threads);

}  // namespace kfusion::cpu
