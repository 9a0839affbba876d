// What elements are computed in, and how they are read, written and converted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kfusion/dtype.hpp"

namespace kfusion::reference {

/// Any address will do: an array may start at any byte. A bool is what is not 0, whatever its byte.
template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  if constexpr (sizeof(T) == 1) return value != 0;
  return value;
}
template <class T>
void store(std::byte* p, T value) {
  if constexpr (sizeof(T) == 1) value = value != 0;
  std::memcpy(p, &value, sizeof value);
}

/// The compute type T of ops.def for values held as `t`.
template <DType t>
struct ComputeOf;
template <>
struct ComputeOf<DType::kFloat32> {
  using type = float;
};
template <>
struct ComputeOf<DType::kFloat64> {
  using type = double;
};
template <>
struct ComputeOf<DType::kBool> {
  using type = std::uint8_t;
};
template <>
struct ComputeOf<DType::kInt32> {
  using type = std::int32_t;
};
template <>
struct ComputeOf<DType::kInt64> {
  using type = std::int64_t;
};

/// C++'s conversion where it is defined. NaN and what an integer type cannot hold become its smallest integer, as on
/// x86; integers wrap; a bool is what is not 0.
template <class To, class From>
To convert(From x) {
  if constexpr (sizeof(To) == 1) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From kEnd = -static_cast<From>(std::numeric_limits<To>::min());  // a power of 2, so exact
    return x >= -kEnd && x < kEnd ? static_cast<To>(x) : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace kfusion::reference
