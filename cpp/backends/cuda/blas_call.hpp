// Kernels around a product that a BLAS's epilogue computes: activation(left right + added + bias).
#pragma once
#include <optional>
#include <string>

#include "kfusion/lower/contraction.hpp"
#include "kfusion/plan/executor.hpp"

namespace kfusion {

/// Whether lines of a half type whose first elements are so many apart, batches too, begin at multiples of 16 bytes.
inline bool are_lines_aligned(std::int64_t offset, std::int64_t batch, std::int64_t line) {
  return has_aligned_rows(offset | batch | line, DType::kFloat16);
}

enum class BlasActivation : std::uint8_t { kNone, kRelu, kGelu };  ///< the gelu is the one by tanh

struct BlasCall {
  Contraction products;               ///< one product; without its epilogue
  std::optional<Access> added, bias;  ///< along batches, rows and columns
  BlasActivation activation = BlasActivation::kNone;
};

/// The call of a kernel, or why it has none, as a clause ("computes ...").
std::optional<BlasCall> blas_call(const Candidate& kernel, std::string& why);

}  // namespace kfusion
