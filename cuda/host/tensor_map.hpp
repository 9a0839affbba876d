// Matrices as the copy engine of compute capability 9.0 is told of them.
#pragma once
#include <cstddef>

#include "codegen/contractions/contraction_kernel.hpp"

namespace kfusion::cuda {

/// Writes the 128 bytes of a CUtensorMap of `m`, which begins at `address` (a multiple of 16), to `to`. Throws
/// DeviceError where the driver has none, std::logic_error for a matrix that the copy engine does not take.
void encode(const codegen::BoxedMatrix& m, const void* address, std::byte* to);

}  // namespace kfusion::cuda
