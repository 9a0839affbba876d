#include "codegen/generate.hpp"

#include <stdexcept>

namespace kfusion::codegen {

CudaKernel::CudaKernel(const Kernel& kernel, const Target&, bool) {
  throw std::logic_error("no CUDA text for " + kernel.name);
}

std::vector<std::byte> CudaKernel::parameters(const std::byte* const*, std::byte* const*, const double*,
                                              std::byte*) const {
  return {};
}

}  // namespace kfusion::codegen
