// What is known of values of a graph, whatever its inputs hold.
#pragma once
#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// What a node is a view of, through all views; itself where it is none.
NodeId without_views(const Graph& g, NodeId n);

/// No element is below 0 (-0 is not). Some may be NaN.
bool is_never_negative(const Graph& g, NodeId n);

/// Each element is 0 or 1, as of a bool in another dtype.
bool is_zero_or_one(const Graph& g, NodeId n);

/// A scalar that no argument of the call gives, also where it is broadcast: its node, else -1.
NodeId known_constant(const Graph& g, NodeId n);

}  // namespace kfusion
