// Powers that are computed as products.
#pragma once
#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// 3, 4 or -2 where the node is a float to that power, written as a literal, which takes a tenth of the time as
/// products and is less than 2 ULP off; else 0. (Squares, roots and reciprocals are ops of their own. Higher powers
/// would add up more rounding errors.)
int power_by_products(const Graph& g, NodeId id);

}  // namespace kfusion
