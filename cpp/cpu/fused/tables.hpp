// Elements at positions that are data: what a step that takes some of a table needs of it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cpu/fused/reach.hpp"
#include "cpu/index_fault.hpp"
#include "kfusion/positions.hpp"

namespace kfusion::cpu {

/// A table at an outer index.
struct TileTable {
  const std::byte* base = nullptr;                       ///< of element 0 of a run, at position 0
  const Extents *extents = nullptr, *strides = nullptr;  ///< of a run, in bytes
  std::int64_t step = 0;                                 ///< bytes from position to position
  Positions positions;
  int number = 0;         ///< of Kernel::tables
  int item = 4;           ///< bytes of an element
  int index_bytes = 8;    ///< of an index
  int vector_bytes = 64;  ///< of a register
  IndexFault* fault = nullptr;

  /// Where the elements at an index begin, from `from` on; nullptr, and a report, for one that has no position.
  const std::byte* at(const std::byte* from, std::int64_t index) const {
    if (positions.has(index)) return from + positions.position(index) * step;
    fault->report(number, index);
    return nullptr;
  }
};

/// Elements [begin, begin + count) of a run, each at its index, to a dense tile; 0 for an index without a position.
/// `indices`: as registers of so many elements leave them. By value, so that a step can call it and still jump.
void take_elements(const TileTable& table, std::int64_t begin, std::int64_t count, const std::byte* indices,
                   std::int64_t per_register, std::byte* tile);

}  // namespace kfusion::cpu
