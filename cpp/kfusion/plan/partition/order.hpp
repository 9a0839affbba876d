// An order of nodes that depends on what is computed, not on how it was written.
#pragma once
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// A rank for each node: larger than those of its arguments, and the same for x + y as for y + x.
std::vector<int> ranks(const Graph& g);

}  // namespace kfusion
