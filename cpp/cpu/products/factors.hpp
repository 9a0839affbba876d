// The factors of products for BLAS: in place, or copied where it cannot read them so.
#pragma once
#include <vector>

#include "cpu/blas.hpp"
#include "cpu/buffer.hpp"
#include "kfusion/lower/contraction.hpp"

namespace kfusion::cpu {

class Factors {
 public:
  explicit Factors(const Blas& blas) : blas_(blas) {}

  struct Placed {
    Matrix matrix;
    Extents batch_axes, batches;  ///< extents, and strides in elements
    std::int64_t item = 0;

    /// The part of a batch that begins with an element along the product's own axis.
    Matrix at(std::int64_t batch, std::int64_t outer) const;
    /// Whether no element is infinite or NaN.
    bool is_finite(DType dtype, std::int64_t extent, std::int64_t depth) const;
  };

  /// `extent` along the product's own axis, `depth` along the one that is summed over. `merged`: all batches, along one
  /// axis, are rows of one matrix. Copies live as long as this. Half types, which BLAS does not know, stay in place.
  Placed place(const Factor& f, const std::byte* base, const Extents& batch_axes, std::int64_t extent,
               std::int64_t depth, bool merged);

 private:
  const Blas& blas_;
  std::vector<Buffer> copies_;
};

}  // namespace kfusion::cpu
