// From parts to groups: what each kernel loads and stores, how often it sweeps, in which order the kernels run.
#pragma once
#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {

/// The groups, in an order in which they can run, and group_of. `plan`: has its graph, and that folded.
void finish(Plan& plan, const Partition& partition, const Device& device);

}  // namespace kfusion
