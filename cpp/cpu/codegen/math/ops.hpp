// The ops of a kernel as IR: values of SSA names, and what becomes of them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu/codegen/instructions/ir.hpp"
#include "kfusion/dtype.hpp"
#include "kfusion/ops/op.hpp"

namespace kfusion::cpu::ir {

/// A value of compute type `type` (half types are held as float32, bools as i1): a vector, or a number for a whole row.
struct Value {
  std::string name;
  DType type = DType::kFloat32;
  bool vector = true;
};

/// LLVM's scalar types: "float", "double", "i1", "i32", "i64".
const char* compute_type(DType t);
/// A type as it lies in memory: half types are "i16", bools "i8".
const char* memory_type(DType t);

/// A constant, as a number.
Value constant(double value, DType type);
Value constant(std::int64_t value, DType type);
/// The number in every lane; a vector stays itself.
Value broadcast(const Value& x);

/// A row of ops.def over arguments of one compute type (a condition is bool). One of them a vector: the result is, too.
/// Throws std::logic_error where the row does not take the type.
Value apply(Op op, DType type, std::span<const Value> arguments);

/// Whether an op has a quick version for bfloat16 (quick.hpp), and its value. Where it has none it is slower or as
/// fast.
bool has_quick_version(Op op, const TargetFacts& target);
Value apply_quick(Op op, const Value& x);

/// Applies an op to several registers: a core then has independent instructions at hand in long functions.
std::vector<Value> apply(Op op, DType type, std::span<const std::vector<Value>> arguments);

/// Converts to another dtype, by the rules of reference/elements.hpp; a half type is rounded to, and held as float32.
Value cast(const Value& x, DType from, DType to);

/// Takes a register or a number as it lies in memory: its name has memory_type(memory).
Value widen(const Value& raw, DType memory);
/// What is stored; half types are rounded.
Value narrow(const Value& x, DType memory);

}  // namespace kfusion::cpu::ir
