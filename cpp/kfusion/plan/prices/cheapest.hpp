// Who runs each kernel of a plan.
#pragma once
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Gives each group the executor that runs it for least, or says what is missing.
void choose_executors(Plan& plan, const Executors& asked, const Device& device);

}  // namespace kfusion
