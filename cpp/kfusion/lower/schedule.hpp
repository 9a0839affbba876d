// When each value of a kernel is known. What both executors go by.
#pragma once
#include <vector>

#include "kfusion/lower/kernel.hpp"

namespace kfusion {

/// Sets the level of every step and both schedules, from steps, pairs and the strides of operands; and idioms.
void set_schedule(Kernel& k);

/// The element steps that a sweep of Kernel::paired computes, in order: not what only the second of a pair takes.
std::vector<int> element_steps(const Kernel& k, int sweep);

/// The reductions that a sweep of Kernel::paired makes, of a pair the first.
std::vector<int> reductions(const Kernel& k, int sweep);

}  // namespace kfusion
