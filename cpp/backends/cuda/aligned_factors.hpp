// Factors of products where the copy engine finds matrices: at multiples of 16 bytes.
#pragma once
#include <cstddef>
#include <vector>

#include "kfusion/lower/contraction.hpp"
#include "runtime/backend.hpp"

namespace kfusion {

/// The bytes of a part of a workspace, so that the next one begins at a multiple of 256.
constexpr std::size_t workspace_part(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Factors that may begin anywhere, and room in the workspace for copies of those that do.
class AlignedFactors {
 public:
  /// `kernel_bytes` of the workspace, before the copies, are the kernel's.
  explicit AlignedFactors(std::size_t kernel_bytes) : end_(workspace_part(kernel_bytes)) {}

  /// A factor of one of `c`'s products, with `extent` rows or columns.
  void add(const Factor& f, const Contraction& c, std::int64_t extent);

  std::size_t size() const { return copies_.size(); }
  /// Bytes of workspace, the kernel's included.
  std::size_t workspace_bytes() const { return end_; }

  /// Copies factor `i` of `array`, unless the copy engine can read it there, and lets `array` point to where it would
  /// begin.
  void bring(std::size_t i, const std::byte*& array, const Frame& f) const;

 private:
  struct Copy {
    std::size_t at, bytes;  ///< in the workspace
    std::ptrdiff_t offset;  ///< of the factor in its array
  };

  std::vector<Copy> copies_;
  std::size_t end_;
};

}  // namespace kfusion
