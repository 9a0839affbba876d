// What this version has kernels for.
#pragma once
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Sets `executable`, or `missing` to what is not there.
void mark_executable(const Graph& g, Group& group);

}  // namespace kfusion
