// Indices that are data: which element one means, and what is said of one that means none.
#pragma once
#include <cstdint>
#include <string>

namespace kfusion {

/// An axis along which elements are taken at positions that are read.
struct Positions {
  std::int64_t extent = 0;   ///< of the axis
  bool nonnegative = false;  ///< a negative index means none; else it counts from the end

  /// Whether `index` means an element, number `position(index)` of the axis.
  constexpr bool has(std::int64_t index) const { return index < extent && index >= (nonnegative ? 0 : -extent); }
  constexpr std::int64_t position(std::int64_t index) const { return index < 0 ? index + extent : index; }
};

/// "take: index 7 is out of bounds for axis 0 with size 5".
inline std::string out_of_bounds(const std::string& function, std::int64_t index, int axis, const Positions& p) {
  return function + ": index " + std::to_string(index) + " is out of bounds for axis " + std::to_string(axis) +
         " with size " + std::to_string(p.extent) +
         (index < 0 && p.nonnegative ? ", where indices must not be negative" : "");
}

}  // namespace kfusion
