// Half-type values that a backward pass may round otherwise than the forward pass.
#pragma once
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion::grad {

/// A kernel goes on with the float32 that it has of a half type, and rounds it where it stores it. So a pass that
/// computes such a value again may go on with another number than the first one.
struct Loose {
  std::vector<bool> rounds;  ///< by node: whether storing it rounds what was computed
  std::vector<bool> values;  ///< by node: whether it rounds, or is made of what does
};
Loose loose_values(const Graph& g);

}  // namespace kfusion::grad
