// Indices that are data and have no position: the first one of a call, for the message.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "kfusion/error.hpp"
#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu {

/// The first index of a call that was found to be out of bounds. Nothing is read there; the caller throws. Generated
/// code knows where its fields lie.
struct IndexFault {
  std::atomic<std::int32_t> table{-1};
  std::int64_t index = 0;

  void report(int of_table, std::int64_t value) {
    std::int32_t none = -1;
    if (table.compare_exchange_strong(none, of_table)) index = value;
  }

  /// Throws IndexError where something was reported.
  void check(const std::vector<Table>& tables) const {
    if (table < 0) return;
    const Table& t = tables[static_cast<std::size_t>(table)];
    throw IndexError(out_of_bounds(t.function, index, t.axis, t.positions));
  }
};

}  // namespace kfusion::cpu
