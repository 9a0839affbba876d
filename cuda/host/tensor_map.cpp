#include "host/tensor_map.hpp"

#include <cudaTypedefs.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "host/runtime.hpp"

namespace kfusion::cuda {
namespace {

using Encode = PFN_cuTensorMapEncodeTiled_v12000;

Encode encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
        "looking for a function of the driver");
#else
  check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found),
        "looking for a function of the driver");
#endif
  if (!function)
    throw DeviceError("kfusion: the NVIDIA driver has no cuTensorMapEncodeTiled (CUDA 12.0); update the driver");
  return reinterpret_cast<Encode>(function);
}

CUtensorMapSwizzle swizzle(int bytes) {
  return bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
         : bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                       : CU_TENSOR_MAP_SWIZZLE_NONE;
}

}  // namespace

void encode(const codegen::BoxedMatrix& m, const void* address, std::byte* to) {
  static const Encode encode = encoder();
  cuuint64_t sizes[5], strides[4];
  std::ranges::copy(m.sizes, sizes), std::ranges::copy(m.strides_bytes, strides);
  const cuuint32_t box[] = {static_cast<cuuint32_t>(m.box[0]), static_cast<cuuint32_t>(m.box[1]), 1, 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  const auto type = m.is_bfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map;
  const CUresult status = encode(&map, type, static_cast<cuuint32_t>(m.axes), const_cast<void*>(address), sizes,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle(m.swizzle_bytes),
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS)
    throw std::logic_error("kfusion: the copy engine does not take a matrix of " + std::to_string(m.sizes[0]) + " x " +
                           std::to_string(m.sizes[1]) + " elements (error " + std::to_string(status) + ")");
  static_assert(sizeof map == 128);
  std::memcpy(to, &map, sizeof map);
}

}  // namespace kfusion::cuda
