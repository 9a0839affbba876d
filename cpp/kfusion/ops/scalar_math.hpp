// The functions that expressions of ops.def use beyond C++'s operators, for each compute type: float, double, int32_t,
// int64_t, and uint8_t holding 0 or 1 for bool. What NumPy's function of the name gives is given to the bit where its
// result is exact.
//
// Integers wrap, so files that include this are compiled with -fwrapv. Nothing but <cmath> is used, and types are told
// apart by arithmetic, so that device code can have the same functions.
#pragma once
#include <cmath>
#include <cstdint>

namespace kfusion::scalar {

template <class T>
inline constexpr bool kIsFloat = T(1) / T(2) != T(0);
template <class T>
inline constexpr bool kIsBool = sizeof(T) == 1;

using std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atan2, std::atanh;
using std::cbrt, std::copysign, std::cos, std::cosh, std::erf, std::exp, std::exp2, std::expm1, std::hypot;
using std::log, std::log10, std::log1p, std::log2, std::sin, std::sinh, std::sqrt, std::tan, std::tanh;

// ---- arithmetic -------------------------------------------------------------------------------------------------

/// Has y's sign, or is a zero of y's sign. By 0: NaN, or 0 for integers.
template <class T>
T remainder(T x, T y) {
  if constexpr (kIsFloat<T>) {
    const T r = std::fmod(x, y);
    if (r == T(0)) return std::copysign(T(0), y);
    return (r < T(0)) != (y < T(0)) ? r + y : r;
  } else {
    if (y == T(0) || y == T(-1)) return T(0);  // the smallest integer by -1 traps
    const T r = x % y;
    return r != T(0) && (r < T(0)) != (y < T(0)) ? r + y : r;
  }
}

/// floor(x / y) of the exact quotient. By 0: x / y, or 0 for integers; the smallest integer by -1 is itself.
template <class T>
T floor_divide(T x, T y) {
  if constexpr (kIsFloat<T>) {
    if (y == T(0)) return x / y;
    const T r = std::fmod(x, y);
    T q = (x - r) / y;  // an integer but for its rounding
    if (r != T(0) && (r < T(0)) != (y < T(0))) q -= T(1);
    if (q == T(0)) return std::copysign(T(0), x / y);
    const T below = std::floor(q);
    return q - below > T(0.5) ? below + T(1) : below;
  } else {
    if (y == T(0)) return T(0);
    if (y == T(-1)) return -x;
    const T q = x / y;
    return x % y != T(0) && (x < T(0)) != (y < T(0)) ? q - T(1) : q;
  }
}

/// x to the power y. Integers wrap; a negative power is truncated, so 0 but for bases of 1 and -1 (NumPy raises an
/// error there, which a kernel cannot).
template <class T>
T power(T x, T y) {
  if constexpr (kIsFloat<T>) {
    return std::pow(x, y);
  } else {
    if (y < T(0)) return x == T(1) || (x == T(-1) && y % T(2) == T(0)) ? T(1) : x == T(-1) ? T(-1) : T(0);
    T result = T(1);
    for (; y > T(0); y /= T(2), x *= x)
      if (y % T(2) != T(0)) result *= x;
    return result;
  }
}

template <class T>
T absolute(T x) {
  if constexpr (kIsFloat<T>) {
    return std::fabs(x);
  } else if constexpr (kIsBool<T>) {
    return x;
  } else {
    return x < T(0) ? -x : x;
  }
}

/// -1, 0 or 1; NaN for NaN.
template <class T>
T sign(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == T(0) ? T(0) : x;
}

// ---- functions of floats ----------------------------------------------------------------------------------------

/// log(exp(x) + exp(y)): the larger plus what the smaller adds, so that nothing overflows.
template <class T>
T logaddexp(T x, T y) {
  if (x == y) return x + T(0.693147180559945309417);  // infinities too
  const T distance = x - y;
  return distance > T(0) ? x + std::log1p(std::exp(-distance)) : y + std::log1p(std::exp(distance));
}

/// 1 / (1 + exp(-x)), never through the exponential of a large number.
template <class T>
T sigmoid(T x) {
  const T e = std::exp(-std::fabs(x));
  return x >= T(0) ? T(1) / (T(1) + e) : e / (T(1) + e);
}

// ---- rounding: integers are round already -----------------------------------------------------------------------

template <class T>
T floor(T x) {
  if constexpr (kIsFloat<T>) return std::floor(x);
  return x;
}
template <class T>
T ceil(T x) {
  if constexpr (kIsFloat<T>) return std::ceil(x);
  return x;
}
template <class T>
T rint(T x) {
  if constexpr (kIsFloat<T>) return std::rint(x);
  return x;
}
template <class T>
T trunc(T x) {
  if constexpr (kIsFloat<T>) return std::trunc(x);
  return x;
}

// ---- choice -----------------------------------------------------------------------------------------------------

/// x where the condition holds, else y.
template <class Condition, class T>
T select(Condition condition, T x, T y) {
  return condition ? x : y;
}

/// max(x, 0), of zeros either; NaN stays NaN.
template <class T>
T relu(T x) {
  return x < T(0) ? T(0) : x;
}

/// NaN where either is NaN.
template <class T>
T maximum(T x, T y) {
  return x >= y || x != x ? x : y;
}
template <class T>
T minimum(T x, T y) {
  return x <= y || x != x ? x : y;
}

/// The other where one is NaN.
template <class T>
T maximum_number(T x, T y) {
  return x >= y || y != y ? x : y;
}
template <class T>
T minimum_number(T x, T y) {
  return x <= y || y != y ? x : y;
}

// ---- tests and bits ---------------------------------------------------------------------------------------------

template <class T>
bool isinf([[maybe_unused]] T x) {
  if constexpr (kIsFloat<T>) return std::isinf(x);
  return false;
}
template <class T>
bool isfinite([[maybe_unused]] T x) {
  if constexpr (kIsFloat<T>) return std::isfinite(x);
  return true;
}

template <class T>
T left_shift(T x, T count) {
  if (count < 0 || count >= T(8 * sizeof(T))) return 0;
  return static_cast<T>(x << count);
}
template <class T>
T right_shift(T x, T count) {
  return static_cast<T>(x >> (count < 0 || count >= T(8 * sizeof(T)) ? T(8 * sizeof(T) - 1) : count));
}

/// 32 random bits: a word of a block of four, Philox 4x32-10 of (position / 4, stream) by a key (Salmon, Moraes, Dror
/// and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011). T has 64 bits.
template <class T>
T philox(T position, T stream, T key) {
  constexpr int kRounds = 10;
  const auto low = [](T x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](auto x) { return static_cast<std::uint32_t>(static_cast<std::uint64_t>(x) >> 32); };
  const T block = position >> 2;
  std::uint32_t word[] = {low(block), high(block), low(stream), high(stream)};
  std::uint32_t keys[] = {low(key), high(key)};
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = std::uint64_t{0xd2511f53} * word[0], b = std::uint64_t{0xcd9e8d57} * word[2];
    word[0] = high(b) ^ word[1] ^ keys[0];
    word[1] = static_cast<std::uint32_t>(b);
    word[2] = high(a) ^ word[3] ^ keys[1];
    word[3] = static_cast<std::uint32_t>(a);
    keys[0] += 0x9e3779b9;
    keys[1] += 0xbb67ae85;
  }
  return static_cast<T>(word[position & 3]);
}

template <class T>
T invert(T x) {
  if constexpr (kIsBool<T>) return x == T(0);
  return ~x;
}

}  // namespace kfusion::scalar
