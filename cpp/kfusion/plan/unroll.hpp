// Short reductions written out: ((a - b)**2).sum(-1) of 3 elements is a sum of three squares, elementwise operations
// over what the reduction keeps. Where that is reduced again, over other axes, both are one kernel then: a kernel has
// one set of reduced axes.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The same values; sums may be rounded otherwise. Not simplified. Nothing where there is no such reduction.
/// `products`: also of values of which there are many more than of what they are computed from (a distance for each
/// pair), whether or not they are reduced again.
std::optional<Graph> unrolled(const Graph& g, bool products);

}  // namespace kfusion
