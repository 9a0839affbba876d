// Products with what cuBLASLt's kernels compute on them before they are stored. The library is loaded by name when it
// is first needed: a build knows no header of it.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "host/cuda.hpp"
#include "kfusion/dtype.hpp"

namespace kfusion::cuda {

/// Whether this process can load the library. Looked for once.
bool has_cublaslt();

enum class LtActivation : std::uint8_t { kNone, kRelu, kGelu };  ///< the gelu is the one by tanh

/// Where a matrix lies, of which one axis has neighbours: `step` elements from one line of them to the next.
struct LtMatrix {
  std::int64_t step = 0, batch = 0;
  bool turned = false;  ///< the neighbours are along the columns' depth or the rows' depth, as LtProduct says
};

/// result = activation(left right + added + bias), all of one half type, sums in float32. All begin at multiples of 16
/// bytes.
struct LtProduct {
  DType dtype = DType::kBFloat16;
  std::int64_t batches = 1, rows = 1, cols = 1, depth = 1;
  LtMatrix left;    ///< turned: neighbours along the rows, else along the depth
  LtMatrix right;   ///< turned: neighbours along the columns, else along the depth
  LtMatrix added;   ///< neighbours along the columns
  LtMatrix result;  ///< likewise
  bool adds = false, has_bias = false;
  LtActivation activation = LtActivation::kNone;
};

struct LtAddresses {
  const std::byte *left, *right, *added, *bias;  ///< of their first elements
  std::byte* result;
};

/// The kernel that the library's heuristic takes for a product on a device.
class LtKernel {
 public:
  /// Throws NoSuchKernel where there is no library that works, or no kernel.
  LtKernel(const LtProduct& product, int device);
  LtKernel(LtKernel&&) noexcept;
  ~LtKernel();

  std::size_t workspace_bytes() const;
  /// Enqueues it. The workspace begins at a multiple of 256 bytes.
  void run(const LtAddresses& addresses, std::byte* workspace, int device, Stream stream) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace kfusion::cuda
