// Where the library has a function of its own for what several nodes compute: which of them a plan takes.
#pragma once
#include <vector>

#include "kfusion/plan/prices/traffic.hpp"

namespace kfusion {

/// The graph with calls of the library in the place of the nodes of the chosen alternatives, one entry for each of
/// g.alternatives; what only those nodes read is dead then.
Graph with_library_calls(const Graph& g, const std::vector<bool>& chosen);

/// The graph with all calls that the library has, which also give what backward passes read of the steps that they
/// stand for: to be counted, not to be run.
Graph as_library_runs(Graph g);

/// What an alternative costs by a plan of the graph.
struct AlternativeCost {
  double kernels_us = 0;        ///< of the kernels that have a part of it
  double library_us = 0;        ///< of the library's one kernel, by its bytes and operations
  bool alone = true;            ///< those kernels compute nothing else
  std::ptrdiff_t products = 0;  ///< that it computes
};

/// For each of g.alternatives. `plan`: of g, with stages named as make_stage_names_unique names them, and what it
/// costs.
std::vector<AlternativeCost> alternative_costs(const Graph& g, const Plan& plan, const PlanCost& cost,
                                               const Device& device);

}  // namespace kfusion
