// Picks: gathers that take one element of each row of a value that their own kernel computes.
#pragma once
#include "kfusion/plan/fold.hpp"
#include "kfusion/positions.hpp"

namespace kfusion {

/// Along the axis that `gather` takes elements of.
Positions positions_of(const Graph& g, const FoldedGraph& folded, NodeId gather);

/// Whether every index of `gather` means an element whatever its arguments hold, as where(0 <= t and t < n, t, 0) does.
bool always_has_position(const Graph& g, const FoldedGraph& folded, NodeId gather);

}  // namespace kfusion
