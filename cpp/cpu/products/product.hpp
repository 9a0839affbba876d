// Matrix products with what follows them, block by block: BLAS computes a block of the product into a thread's own
// memory, and a kernel of loops takes it from there while it is in the cache.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "cpu/blas.hpp"
#include "cpu/products/piece.hpp"

namespace kfusion::cpu {

/// How a Contraction is cut. Depends on shapes and the machine, not on threads.
struct Cut {
  Block block;                  ///< those at the ends may be smaller
  std::int64_t parts = 1;       ///< blocks along the axis that is reduced
  std::int64_t blocks[3] = {};  ///< along batches, rows and columns
};
Cut cut_of(const Contraction& c);

class ProductKernel {
 public:
  /// Factors and products must be floats of one dtype, with elements. Half types are computed in float32.
  explicit ProductKernel(Contraction c);
  ProductKernel(ProductKernel&&) noexcept;
  ~ProductKernel();

  /// Computes every store. By product the address of element 0 of its factors' arrays, and by load and store of the
  /// epilogue those of theirs (of products' elements: any); at any alignment. Stores lie nowhere else. Thread-safe.
  void run(const std::byte* const* left, const std::byte* const* right, const std::byte* const* loads,
           std::byte* const* stores, const double* parameters) const;

 private:
  class Run;
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace kfusion::cpu
