// Sweeps of rows whose results are each a loop over an expression of arrays.
#pragma once
#include "cpu/fused/program.hpp"

namespace kfusion::cpu {

/// What an action does with a step's values: a loop, and what it reads.
struct ExpressionLoop {
  RowLoop loop;
  std::vector<int> sources, homes;  ///< homes: steps
};

/// In a sweep that makes `all`; without `run` where the action on `step` is no such loop.
ExpressionLoop expression_loop(const FusedProgram& p, int step, const Action& action, const Wanted& all);

}  // namespace kfusion::cpu
