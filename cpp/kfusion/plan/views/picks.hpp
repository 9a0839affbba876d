// Picks: gathers that take one element of each row of a value that their own kernel computes, or of one vector for all
// rows of such a value.
#pragma once
#include "kfusion/plan/views/fold.hpp"
#include "kfusion/positions.hpp"

namespace kfusion {

/// Along the axis that `gather` takes elements of.
Positions positions_of(const Graph& g, const FoldedGraph& folded, NodeId gather);

/// Whether elements are taken of a vector of `extent` elements, each of which may be the one.
bool is_vector_along(const Access& from, std::int64_t extent);

/// Whether every index of `gather` means an element whatever its arguments hold, as where(0 <= t and t < n, t, 0) does.
bool always_has_position(const Graph& g, const FoldedGraph& folded, NodeId gather);

}  // namespace kfusion
