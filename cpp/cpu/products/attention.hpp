// softmax(q k^T) v block by block: scores of some queries and some keys by BLAS, the steps on them while they are in
// the cache, and the weighted values by BLAS again. What blocks of keys leave is scaled by their largest scores.
#pragma once
#include <memory>

#include "cpu/blas.hpp"
#include "cpu/products/piece.hpp"
#include "kfusion/lower/attention.hpp"

namespace kfusion::cpu {

/// The arrays of one call: of each the address of element 0.
struct AttentionArrays {
  const std::byte *queries, *keys, *values;
  const std::byte* const* score_loads;   ///< by load of the scores' epilogue; of products' elements: any
  const std::byte* const* output_loads;  ///< by load of the output's
  std::byte* const* stores;
};

class AttentionKernel {
 public:
  /// Takes floats of one dtype, with elements. Half types are computed in float32.
  explicit AttentionKernel(Attention a);
  AttentionKernel(AttentionKernel&&) noexcept;
  ~AttentionKernel();

  /// Thread-safe. Bits do not depend on threads.
  void run(const AttentionArrays& arrays, const double* parameters) const;

 private:
  class Run;
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

/// Blocks of keys that a mask of positions cuts off have whole ones: there is a kernel for each extent.
inline constexpr std::int64_t kKeyStep = 256;

/// Queries and keys of a block.
Block attention_block(const Contraction& scores);

}  // namespace kfusion::cpu
