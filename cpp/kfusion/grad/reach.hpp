// What gradients read of a graph, and where they pass.
#pragma once
#include <vector>

#include "kfusion/graph/builder.hpp"

namespace kfusion::grad {

/// Those of `candidates` that the gradients of `inputs` need, for some cotangents of `outputs`.
std::vector<NodeId> needed_backward(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs,
                                    const std::vector<NodeId>& candidates);

/// Those of `outputs` through which gradients reach some of `inputs`.
std::vector<NodeId> reaching(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs);

}  // namespace kfusion::grad
