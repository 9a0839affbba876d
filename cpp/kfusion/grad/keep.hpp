// What a forward pass keeps for a backward pass that is planned apart from it.
#pragma once
#include <vector>

#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/device.hpp"

namespace kfusion::grad {

/// The values that take longer to compute again than to store and load: products of enough depth, and what the array
/// library's functions give, which is stored anyway. Of two graphs of one function the same, in the same order.
std::vector<NodeId> worth_keeping(const Graph& g, const Device& device);

/// Those of `candidates` that the gradients of `inputs` need, for some cotangents of `outputs`.
std::vector<NodeId> needed_backward(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs,
                                    const std::vector<NodeId>& candidates);

/// Those of `outputs` through which gradients reach some of `inputs`.
std::vector<NodeId> reaching(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs);

/// torch's function for what several nodes compute, where these make more than it reads and gives: the scores of
/// attention. Nothing of any other.
bool is_large_inside(const Graph& g, const LibraryForm& form);

}  // namespace kfusion::grad
