// PlanOptions as C++ reads them.
#pragma once
#include <pybind11/pybind11.h>

#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Reads a dict with any of "fuse", "allow", "forbid", "max_inputs", "max_outputs" and "executors"; where that is
/// absent, `executors`. Throws TypeError and ValueError.
PlanOptions read_options(const pybind11::dict& options, Executors executors);

/// The options of a plan that the existing executors run.
PlanOptions options_to_run(bool fuse);

/// Throws ValueError for names in `allow` and `forbid` that nothing in a plan's graph has: such a pair would silently
/// do nothing.
void check_names(const Graph& planned, const PlanOptions& options);

}  // namespace kfusion
