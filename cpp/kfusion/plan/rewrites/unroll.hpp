// Short reductions written out: ((a - b)**2).sum(-1) of 3 elements is a sum of three squares, elementwise operations
// over what the reduction keeps. Where that is reduced again, over other axes, both are one kernel then: a kernel has
// one set of reduced axes.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// Which reductions are written out.
struct Unroll {
  std::int64_t most = 0;  ///< elements that they reduce
  /// Also of values of which there are many more than of what they are computed from (a distance for each pair),
  /// whether or not they are reduced again.
  bool products = false;
};

/// The same values; sums may be rounded otherwise. Not simplified. Nothing where there is no such reduction.
std::optional<Graph> unrolled(const Graph& g, const Unroll& what);

}  // namespace kfusion
