// The memory-savings calculator: what a chain of kernels moves, apart and fused.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

namespace kfusion {

/// One kernel of a chain; sizes in elements.
struct ChainOp {
  std::int64_t input_size = 0, output_size = 0;
};

struct Savings {
  std::int64_t unfused_bytes = 0;          ///< dtype_bytes * sum(input_size + output_size)
  std::int64_t fused_bytes = 0;            ///< dtype_bytes * (first input_size + last output_size)
  std::int64_t savings_bytes = 0;          ///< unfused_bytes - fused_bytes
  double savings_pct = 0;                  ///< savings_bytes / unfused_bytes * 100, 2 decimals; 0 when that is 0
  std::optional<double> speedup_estimate;  ///< unfused_bytes / fused_bytes, 2 decimals; none when that is 0
};

/// Savings from two byte counts, both >= 0; a fused version that moves more saves a negative number.
Savings savings(std::int64_t unfused_bytes, std::int64_t fused_bytes);

/// Throws std::overflow_error where a byte count exceeds 2^63 - 1. Sizes are >= 0, dtype_bytes >= 1, ops not empty.
Savings savings(std::span<const ChainOp> ops, std::int64_t dtype_bytes);

}  // namespace kfusion
