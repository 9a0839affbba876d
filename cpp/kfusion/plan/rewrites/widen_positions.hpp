// Masks and biases of positions computed where they are used: of all heads, instead of stored once for them.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The same values, not simplified: maps of positions (and of what is small beside them), which an operation on a
/// product's elements reads broadcast, computed over the operation's own shape. Nothing where there are none.
std::optional<Graph> with_positions_widened(const Graph& g);

}  // namespace kfusion
