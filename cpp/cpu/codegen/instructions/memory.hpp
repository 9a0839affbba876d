// Registers from and to memory as bits: parts of them, and elements one by one.
#pragma once
#include <string>

#include "cpu/codegen/instructions/flow.hpp"

namespace kfusion::cpu::ir {

/// "i32" of 4 bytes.
inline std::string bits_of_item(int item) { return "i" + std::to_string(8 * item); }

/// 0, 1, 2, ... in the lanes.
std::string numbered(const std::string& scalar);
/// A value in every lane.
std::string splat_of(const std::string& scalar, const std::string& value);
/// A mask that is true in the first `count` lanes.
std::string mask_of(const Number& count);

/// Whether registers of such items are read and written in part; else that would be a branch for each lane.
bool can_mask(const TargetFacts& target, int item);
/// What lies in memory where `mask` says, and 0 elsewhere.
std::string load_lanes(const Pointer& from, int item, const std::string& mask);
void store_lanes(const std::string& lanes, int item, const Pointer& to, const std::string& mask);

/// `count` elements, one after the other.
void copy_elements(const Pointer& from, const Number& from_stride, const Pointer& to, const Number& to_stride, int item,
                   const Number& count);

}  // namespace kfusion::cpu::ir
