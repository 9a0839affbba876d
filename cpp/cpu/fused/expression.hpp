// What a sweep makes of the elements of a row, as an expression: numbers of the row, arrays, and the ops that combine
// them. Backward passes have such sweeps: several arrays, each read once, and few operations.
#pragma once
#include <array>
#include <cstdint>

#include "kfusion/dtype.hpp"
#include "kfusion/ops/op.hpp"

namespace kfusion::cpu {

struct Term {
  enum class Kind : std::uint8_t {
    kArray,   ///< its elements, as they lie in memory
    kNumber,  ///< of the row
    kPlace,   ///< whether the element's position is a number of the row
    kMap
  };
  Kind kind = Kind::kNumber;
  Op op = Op::input;               ///< kMap
  DType dtype = DType::kFloat32;   ///< kArray: in memory; kPlace: of the number
  std::int32_t operand = -1;       ///< of TileContext::at
  std::array<int, 3> arguments{};  ///< kMap: earlier terms
};

/// Each term after its arguments; the last one is the result. All are floats of one compute type.
struct Expression {
  static constexpr int kMost = 24;
  std::array<Term, kMost> terms{};
  int count = 0;
  DType held = DType::kFloat32;
};

}  // namespace kfusion::cpu
