// Finds sweeps that search: the smallest of where(x == number of the row, position, n), as argmax has.
#pragma once
#include "cpu/fused/program.hpp"

namespace kfusion::cpu {

/// The loop of a sweep that computes no more than that of an array in memory; without `run` where it is another.
RowLoop search_of(const FusedProgram& p, const Wanted& wanted);

}  // namespace kfusion::cpu
