// Where the values of a plan lie while it runs: in the caller's arrays, or in memory that values share in turn.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// The node that is stored for output `i`: what it is a view of.
NodeId stored_for(const Plan& plan, std::size_t output);

// These stand in the place of an offset, for a value that lies
inline constexpr std::int64_t kKept = -1;   // in the memory of the library that computes it
inline constexpr std::int64_t kLent = -2;   // in memory of its own, from the kernel that stores it to the last reader
inline constexpr std::int64_t kTaken = -3;  // where a kept, lent or donated one lay

/// Where a slot gets its address before a group runs.
struct Start {
  int slot;
  int from;            ///< the slot whose memory it takes; -1: none, it is lent
  std::int64_t bytes;  ///< of memory that is lent
};

/// Slots: first the inputs, then the outputs, then the values between kernels.
struct Slots {
  std::map<NodeId, int> of;  ///< of inputs and of what kernels store
  int inputs = 0, outputs = 0;
  std::vector<std::int64_t> offsets;          ///< of the values between kernels, in bytes, or kKept, ...
  std::int64_t bytes = 0;                     ///< that they need at most
  std::vector<std::pair<int, int>> repeated;  ///< outputs (second) that are the same value as an earlier one

  std::vector<std::vector<Start>> starts;  ///< by group
  /// By group: the slots of kept, lent and donated values whose memory no later one reads.
  std::vector<std::vector<int>> released;

  int end() const { return inputs + outputs + static_cast<int>(offsets.size()); }
  bool is_between(int slot) const { return slot >= inputs + outputs && slot < end(); }
  std::int64_t offset(int slot) const { return offsets[static_cast<std::size_t>(slot - inputs - outputs)]; }
};

/// The slots of all values, and which of them libraries keep. Their memory is not yet given out.
Slots assign_slots(const Plan& plan);

/// Whether a group stores each element of one slot where it has read the same element of another, and reads that one
/// nowhere else.
using MayTake = std::function<bool(std::size_t group, int stored, int read)>;

/// Gives out the memory between kernels: a value's goes to another one when its last reader is done, or to what that
/// reader stores where it may. Values of at least `lent` bytes get memory of their own.
void place_values(Slots& slots, const Plan& plan, std::int64_t lent, const MayTake& may_take);

}  // namespace kfusion
