// The element types of arrays.
#pragma once
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

namespace kfusion {

/// Half types are stored in two bytes and computed in float32; float64 is computed in float64. bool, int32 and int64
/// are for masks, indices and comparisons. The floats come first: kernels are tabled by them.
enum class DType : std::uint8_t { kFloat16, kBFloat16, kFloat32, kFloat64, kBool, kInt32, kInt64 };
inline constexpr int kFloatDTypes = 4;
inline constexpr int kDTypes = 7;

constexpr bool is_float(DType t) { return static_cast<int>(t) < kFloatDTypes; }
constexpr bool is_half(DType t) { return t == DType::kFloat16 || t == DType::kBFloat16; }
/// What values of a dtype are computed in.
constexpr DType compute_dtype(DType t) { return is_half(t) ? DType::kFloat32 : t; }
constexpr bool is_integer(DType t) { return t == DType::kInt32 || t == DType::kInt64; }

constexpr std::size_t item_bytes(DType t) {
  constexpr std::size_t kBytes[] = {2, 2, 4, 8, 1, 4, 8};
  static_assert(std::size(kBytes) == kDTypes);
  return kBytes[static_cast<int>(t)];
}

/// NumPy's (and ml_dtypes') name of the type.
constexpr const char* name(DType t) {
  constexpr const char* kNames[] = {"float16", "bfloat16", "float32", "float64", "bool", "int32", "int64"};
  static_assert(std::size(kNames) == kDTypes);
  return kNames[static_cast<int>(t)];
}

/// The type of that name, if it is one of ours.
constexpr std::optional<DType> dtype_named(std::string_view text) {
  for (int i = 0; i < kDTypes; ++i) {
    if (text == name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return std::nullopt;
}

/// `value` as a float dtype `t` stores it: nearest, ties to even, infinite beyond the largest.
double rounded(double value, DType t);

}  // namespace kfusion
