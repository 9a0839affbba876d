// Where the values of a plan lie while it runs: in the caller's arrays, or in memory that values share in turn.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// The node that is stored for output `i`: what it is a view of.
NodeId stored_for(const Plan& plan, std::size_t output);

/// The offset of a value that stays in the memory of the library that computes it.
inline constexpr std::int64_t kKept = -1;

/// Slots: first the inputs, then the outputs, then the values between kernels.
struct Slots {
  std::map<NodeId, int> of;  ///< of inputs and of what kernels store
  int inputs = 0, outputs = 0;
  std::vector<std::int64_t> offsets;          ///< of the values between kernels, in bytes; kKept for some
  std::int64_t bytes = 0;                     ///< that they need at most
  std::vector<std::pair<int, int>> repeated;  ///< outputs (second) that are the same value as an earlier one

  /// By group: the kept values that no later one reads.
  std::vector<std::vector<int>> released;

  int end() const { return inputs + outputs + static_cast<int>(offsets.size()); }
};

/// A value's memory is given to another one when its last reader is done.
Slots assign_slots(const Plan& plan);

}  // namespace kfusion
