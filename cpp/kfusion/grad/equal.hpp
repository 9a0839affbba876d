// Which nodes of a graph have the same value, before anything is simplified.
#pragma once
#include <vector>

#include "kfusion/graph/builder.hpp"

namespace kfusion::grad {

/// By node: the first one that does the same with the same values, often itself. A view of all of x, in order, is x.
std::vector<NodeId> first_equal(const Graph& g);

/// Applies GraphBuilder::replace to all nodes with these values.
void replace_values(GraphBuilder& graph, const NodeIds& nodes, const NodeIds& by);

}  // namespace kfusion::grad
