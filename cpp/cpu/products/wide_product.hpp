// Products of half types in float32, for which BLAS has functions: panels of both factors are converted, while they are
// in the cache.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "cpu/blas.hpp"
#include "cpu/loops/loop_kernel.hpp"

namespace kfusion::cpu {

/// A factor of a product: strides in elements, along its own axis and along the one that is summed over.
struct Side {
  DType dtype = DType::kFloat32;
  std::int64_t outer = 0, depth = 0;
};

/// Parts of a factor as float32, dense.
class Panels {
 public:
  explicit Panels(const Side& side) : side_(side) {}

  /// Makes ready for panels of this size.
  void add(std::int64_t outer, std::int64_t depth);
  void compile() const;  ///< as LoopKernel
  /// Whether there is something to convert: factors of float32 stay.
  bool are_needed() const { return side_.dtype != DType::kFloat32; }
  Matrix converted(const Matrix& from, std::int64_t outer, std::int64_t depth, std::byte* to) const;

 private:
  const Side side_;
  std::map<std::pair<std::int64_t, std::int64_t>, LoopKernel> kernels_;
};

class WideProduct {
 public:
  /// Prepares products of these extents, in any combination.
  WideProduct(const Side& left, const Side& right, const std::vector<std::int64_t>& rows,
              const std::vector<std::int64_t>& cols, const std::vector<std::int64_t>& depths);

  /// Multiplies as Blas::multiply does, but factors that lie in any way, into float32. `depth` is not 0. `scratch`: a
  /// thread's own.
  void multiply(const Blas& blas, std::int64_t rows, std::int64_t cols, std::int64_t depth, const Matrix& left,
                const Matrix& right, std::byte* result, std::int64_t pitch, std::byte* scratch) const;
  void compile() const { left_.compile(), right_.compile(); }
  std::size_t scratch_bytes() const { return static_cast<std::size_t>(left_bytes_ + right_bytes_); }

 private:
  Panels left_, right_;
  std::int64_t left_item_, right_item_;
  std::int64_t left_bytes_ = 0, right_bytes_ = 0;  ///< of the largest panels
};

/// Scratch memory that suffices for any of them.
std::size_t scratch_bytes(const std::vector<WideProduct>& products);

}  // namespace kfusion::cpu
