#include "kfusion/savings.hpp"

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "kfusion/checked.hpp"

namespace kfusion {
namespace {

/// a / b (a >= 0, b > 0) rounded once to the nearest double, as Python divides integers; converting the operands first
/// would round three times from 2^53 up.
double divide(std::int64_t a, std::int64_t b) {
  if (a == 0) return 0;
  const auto bits = [](std::int64_t v) { return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(v))); };
  // Scaled up, the quotient has 63 or 64 bits (and the numerator at most 126); what is cut off stays as a sticky last
  // bit, and the one conversion rounds.
  const int shift = 63 + bits(b) - bits(a);
  const auto numerator = static_cast<unsigned __int128>(a) << shift;
  const auto denominator = static_cast<unsigned __int128>(b);
  auto quotient = static_cast<std::uint64_t>(numerator / denominator);
  if (numerator % denominator != 0) quotient |= 1;
  return std::ldexp(static_cast<double>(quotient), -shift);
}

/// Rounded to 2 decimals by the decimal expansion of `v`, ties to even, as Python's round(v, 2).
double round2(double v) {
  char text[400];  // up to 309 digits before the point
  std::snprintf(text, sizeof text, "%.2f", v);
  return std::strtod(text, nullptr);
}

}  // namespace

Savings savings(std::int64_t unfused_bytes, std::int64_t fused_bytes) {
  Savings s{unfused_bytes, fused_bytes, unfused_bytes - fused_bytes, 0, std::nullopt};
  const double part = unfused_bytes > 0 ? divide(std::abs(s.savings_bytes), unfused_bytes) : 0;
  s.savings_pct = round2((s.savings_bytes < 0 ? -part : part) * 100);
  if (fused_bytes > 0) s.speedup_estimate = round2(divide(unfused_bytes, fused_bytes));
  return s;
}

Savings savings(std::span<const ChainOp> ops, std::int64_t dtype_bytes) {
  std::int64_t unfused = 0;
  for (const ChainOp& op : ops)
    unfused = checked_add(unfused, checked_multiply(checked_add(op.input_size, op.output_size), dtype_bytes));
  const std::int64_t ends = checked_add(ops.front().input_size, ops.back().output_size);
  return savings(unfused, checked_multiply(ends, dtype_bytes));
}

}  // namespace kfusion
