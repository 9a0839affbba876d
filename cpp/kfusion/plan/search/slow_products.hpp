// Which products an executor would run faster without the operations that it takes with them.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "kfusion/plan/prices/traffic.hpp"

namespace kfusion {

/// Kernels around products that do the same: the products' names by name_in_variants(), and what they lose in all.
struct SlowProducts {
  std::set<std::string> names;
  double lost_us = 0;
};

/// Products in a plan's kernels that `executor` runs (anyone(): that none runs) for which a kernel of the library each,
/// and one more for the operations, would take less time, by bytes and operations; the largest loss first.
std::vector<SlowProducts> slow_products(const Plan& plan, const PlanCost& cost, const Executor* executor,
                                        const Device& device);

/// Whether an executor runs a kernel; of anyone(), whether none does.
inline bool is_run_by(const Group& group, const Executor* executor) {
  return group.executor == (executor == &anyone() ? nullptr : executor);
}

}  // namespace kfusion
