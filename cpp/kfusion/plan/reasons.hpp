// The sentence for each refusal, in the user's op names.
#pragma once
#include <string>

#include "kfusion/plan/partition.hpp"

namespace kfusion {

/// The name that reports give a node: its stage's.
const std::string& label(const Graph& g, NodeId n);

/// One sentence: why `producer` and `consumer` are in different kernels.
std::string sentence(const Graph& g, const Partition& p, const Device& device, const PlanOptions& options,
                     Reason reason, NodeId producer, NodeId consumer);

}  // namespace kfusion
