// From parts to groups: what each kernel loads and stores, how often it sweeps, in which order the kernels run.
#pragma once
#include <vector>

#include "kfusion/plan/partition.hpp"

namespace kfusion {

/// What passes after the merging have found out about a part.
struct Extras {
  std::vector<NodeId> deferred;  ///< as in Group
  bool attention = false;
};

/// The groups, in an order in which they can run, and group_of.
void finish(Plan& plan, const Partition& partition, const FoldedGraph& folded, const std::vector<Extras>& extras,
            const Device& device);

}  // namespace kfusion
