// A plan as plain dicts, ready for JSON: the one place that knows its schema on the C++ side.
#pragma once
#include <pybind11/pybind11.h>

#include "kfusion/plan/prices/traffic.hpp"

namespace kfusion {

/// A graph planned fused and unfused, counted and priced.
struct PricedPlans {
  Plan fused, unfused;
  PlanCost fused_cost, unfused_cost, library_cost;
};

/// "composites", "groups", "unfused_groups", "refusals", "fused", "unfused", "library", "savings" and
/// "predicted_speedup".
pybind11::dict to_dict(const PricedPlans& plans, const Device& device);

}  // namespace kfusion
