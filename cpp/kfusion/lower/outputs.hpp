// Where a kernel stores: results of the function lie as the caller's arrays do, all else in C order.
#pragma once
#include <vector>

#include "kfusion/lower/space.hpp"

namespace kfusion {

/// A value that a kernel stores: where the elements of its C order lie.
struct Stored {
  NodeId node = 0;
  Access to;
};

/// By node: the first output that is it, or a view of it; -1: none.
std::vector<int> first_outputs(const Plan& plan);

/// Where a value lies that a group stores.
Access stored_at(const Plan& plan, NodeId n, const OutputStrides& outputs, const std::vector<int>& output_of);

/// What the group stores; cuts `space` where strides change within an axis. Throws std::logic_error for strides that
/// required_strides() does not allow.
std::vector<Stored> stored_values(const Plan& plan, const Group& group, const OutputStrides& outputs,
                                  const std::vector<int>& output_of, Space& space);

}  // namespace kfusion
