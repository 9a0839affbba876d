// Random words of many positions at once.
#pragma once
#include <vector>

#include "cpu/codegen/math/ops.hpp"

namespace kfusion::cpu::ir {

/// Registers that blocks of four words fill.
inline constexpr int kRegistersOfBlocks = 4;

/// Words (philox) of registers of positions. Where kRegistersOfBlocks have positions that follow each other from a
/// multiple of 4 on, a block serves four; others are taken register by register.
std::vector<Value> random_words(const std::vector<Value>& positions, const Value& stream, const Value& key);

}  // namespace kfusion::cpu::ir
