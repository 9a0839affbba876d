// What holds for every plan. A plan that breaks one of these would leave memory unwritten, or read it before it is.
#pragma once
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Each computing node in one group, each value stored by the group that computes it before another one loads it, and
/// each result stored. Throws std::logic_error, which is a defect of the planner. Linear.
void check_plan(const Plan& plan);

}  // namespace kfusion
