// The element types that kernels read and write.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kfusion {

/// Half types are stored in two bytes and computed in float32; float64 is computed in float64.
enum class DType : std::uint8_t { kFloat16, kBFloat16, kFloat32, kFloat64 };
inline constexpr int kDTypes = 4;

constexpr std::size_t item_bytes(DType t) { return t == DType::kFloat64 ? 8 : t == DType::kFloat32 ? 4 : 2; }

/// NumPy's (and ml_dtypes') name of the type.
constexpr const char* name(DType t) {
  constexpr const char* kNames[kDTypes] = {"float16", "bfloat16", "float32", "float64"};
  return kNames[static_cast<int>(t)];
}

}  // namespace kfusion
