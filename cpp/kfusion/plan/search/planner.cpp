// Plans as callers ask for them.
#include <algorithm>

#include "kfusion/plan/search/fastest.hpp"
#include "kfusion/plan/search/library_alternatives.hpp"

namespace kfusion {

bool PlanOptions::beyond_executors() const { return std::ranges::count(executors, &anyone()) > 0; }

PlanPair make_plans(const Graph& g, const Device& device, const PlanOptions& options) {
  Counted unfused = unfused_plan(g, device, options);
  std::optional<Plan> library;
  if (has_alternatives(g, options)) {
    library = unfused_plan(as_library_runs(g), device, options).take();
  }
  if (options.fuse) {
    Plan chosen = fused_plan(g, device, options, unfused).take_with_refusals();
    return {std::move(chosen), std::move(unfused).take_with_refusals(), std::move(library)};
  }
  Plan plan = std::move(unfused).take_with_refusals();
  return {plan, std::move(plan), std::move(library)};
}

std::vector<Plan> rival_plans(const Graph& g, const Device& device, const PlanOptions& options) {
  const Counted unfused = unfused_plan(g, device, options);
  const Graph whole = prepared(g, options);
  std::vector<Plan> plans;
  plans.push_back(Planner(whole, device, options).fused(unfused, false).take());
  for (const Executor* e : options.executors) {
    if (!takes_operations(e, plans[0])) continue;
    PlanOptions without = options;
    std::erase(without.executors, e);
    Counted other = Planner(whole, device, without).fused(unfused, false);
    if (other.runs()) plans.push_back(std::move(other).take());
  }
  plans.push_back(Planner(whole, device, options).fused(unfused).take());
  return plans;
}

Plan make_plan(const Graph& g, const Device& device, const PlanOptions& options) {
  Counted unfused = unfused_plan(g, device, options);
  return options.fuse ? fused_plan(g, device, options, unfused).take() : std::move(unfused).take();
}

}  // namespace kfusion
