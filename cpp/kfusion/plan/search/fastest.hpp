// The fused plan by the executors, and with the functions of the library, that are quickest.
#pragma once
#include "kfusion/plan/search/variants.hpp"

namespace kfusion {

/// Whether an executor took operations into a product, say.
bool takes_operations(const Executor* executor, const Plan& plan);

/// Whether the library has functions of its own for parts of the graph that a plan may take.
bool has_alternatives(const Graph& g, const PlanOptions& options);

Counted unfused_plan(Graph g, const Device& device, const PlanOptions& options);

/// Never more bytes or kernels than `unfused`, nor predicted to take longer, but for PlanOptions::allow.
Counted fused_plan(const Graph& g, const Device& device, const PlanOptions& options, const Counted& unfused);

}  // namespace kfusion
