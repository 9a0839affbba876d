// Quotients by one number, as a row of softmax has them.
#pragma once
#include <vector>

#include "cpu/codegen/math/ops.hpp"

namespace kfusion::cpu::ir {

/// The bits of the division in 0.7 of its time with AVX-512 (AVX2: no gain, so it divides): of the product with the
/// reciprocal, what is missing is taken once more (P. W. Markstein, "Computation of elementary functions on the IBM
/// RISC System/6000 processor", 1990). Registers of which an element could underflow or overflow are divided.
class Divisor {
 public:
  /// By a float32, a number; written where its row begins.
  explicit Divisor(const Value& number);

  /// Divides several registers: one branch serves all of them. `quick`: a product will do, since half types do not show
  /// its error. `is_end`: of a row, taken once, where a division takes no longer and is less to compile.
  std::vector<Value> divide(const std::vector<Value>& x, bool quick = false, bool is_end = false) const;

 private:
  std::string number_, inverse_, is_usable_;
};

}  // namespace kfusion::cpu::ir
