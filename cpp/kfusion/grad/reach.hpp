// What gradients read of a graph, and where they pass.
#pragma once
#include <vector>

#include "kfusion/graph/builder.hpp"

namespace kfusion::grad {

/// Whether a node hands gradients on. A result of a call is reached through the first one, whatever that is.
bool passes(const GraphBuilder& graph, NodeId id);
/// The nodes to which it hands them.
const NodeIds& sources(const GraphBuilder& graph, NodeId id);

/// Those of `candidates` that the gradients of `inputs` need, for some cotangents of `outputs`.
std::vector<NodeId> needed_backward(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs,
                                    const std::vector<NodeId>& candidates);

/// Those of `outputs` through which gradients reach some of `inputs`.
std::vector<NodeId> reaching(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs);

/// For each of `inputs`, whether gradients of some of `outputs` reach it: else torch has none for it, and not zeros.
std::vector<bool> reached(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs);

}  // namespace kfusion::grad
