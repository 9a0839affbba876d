// Reductions that give the same however their elements are grouped (maxima, minima, any, all, sums and products of
// integers), taken in other groups, so that they share a kernel with their neighbours: a kernel has one set of reduced
// axes.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The largest of the largest: x.max(-1).max(-1) is x.max((-2, -1)). Of zeros of two signs it may be the other. Not
/// simplified. Nothing where there are no such reductions.
std::optional<Graph> with_reductions_joined(const Graph& g);

/// The other way: abs(y).max() is abs(y).max(-1).max() where something else of y's extents is reduced over its last
/// axis of at least `least_row` elements, a normalisation say. So the kernel of that goes over y for both, and only its
/// rows' results are reduced again. Not simplified. Nothing where there are no such reductions.
std::optional<Graph> with_reductions_split(const Graph& g, std::int64_t least_row);

}  // namespace kfusion
