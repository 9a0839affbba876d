// Half types, stored in 16 bits and computed as float: one number at a time.
#pragma once
#include <bit>
#include <cstdint>

namespace kfusion::reference {

inline float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13, exponent = half & 0x7c00u;
  if (exponent == 0) {  // subnormal, or zero
    const auto size = std::bit_cast<std::uint32_t>(static_cast<float>(half & 0x3ffu) * 0x1p-24f);
    return std::bit_cast<float>(sign | size);
  }
  const std::uint32_t bits =
      exponent == 0x7c00u ? magnitude | 0x7f800000u : magnitude + (112u << 23);  // bias 15 -> 127
  return std::bit_cast<float>(sign | bits);
}

/// Rounds to nearest even; NaN stays NaN.
inline std::uint16_t half_of_float(float x) {
  const auto all = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = all >> 16 & 0x8000u, magnitude = all & 0x7fffffffu;
  std::uint32_t bits = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  if (magnitude < 0x38800000u)  // below 2^-14: 0.5 more leaves the half in the low bits, rounded by the adder
    bits = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  if (magnitude >= 0x47800000u) bits = 0x7c00u;
  if (magnitude > 0x7f800000u) bits = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  return static_cast<std::uint16_t>(sign | bits);
}

inline float float_of_bfloat(std::uint16_t bfloat) { return std::bit_cast<float>(std::uint32_t{bfloat} << 16); }

/// Rounds to nearest even; NaN stays NaN.
inline std::uint16_t bfloat_of_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1u), nan = bits | 0x400000u;
  return static_cast<std::uint16_t>((x != x ? nan : rounded) >> 16);
}

}  // namespace kfusion::reference
