// What this version has kernels for.
#pragma once
#include <string>

#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Whether such a group is loops over its domain, which `lower` makes a kernel of.
bool is_loops(GroupKind kind);

/// What this version lacks to run the group; empty where it is loops or one contraction or gathering, which the array
/// library's own function computes.
std::string missing_for(const Group& group);

}  // namespace kfusion
