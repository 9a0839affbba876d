// The functions that expressions of ops.def name, with the meaning that kfusion/ops/scalar_math.hpp gives them, and
// conversions with that of kfusion/reference/elements.hpp. Generated code stands in this namespace, so that it finds
// these before CUDA's own.
#pragma once
#include "device/prelude.cuh"

namespace kfusion::device::scalar {

template <class T>
inline constexpr bool kIsFloat = T(1) / T(2) != T(0);
template <class T>
inline constexpr bool kIsBool = sizeof(T) == 1;

// ---- of floats ------------------------------------------------------------------------------------------------------

#define KF_FUNCTION(name)                              \
  KF_DEVICE float name(float x) { return name##f(x); } \
  KF_DEVICE double name(double x) { return ::name(x); }
#define KF_FUNCTION_2(name)                                        \
  KF_DEVICE float name(float x, float y) { return name##f(x, y); } \
  KF_DEVICE double name(double x, double y) { return ::name(x, y); }
KF_FUNCTION(acos)
KF_FUNCTION(acosh)
KF_FUNCTION(asin)
KF_FUNCTION(asinh)
KF_FUNCTION(atan)
KF_FUNCTION(atanh)
KF_FUNCTION(cbrt)
KF_FUNCTION(cos)
KF_FUNCTION(cosh)
KF_FUNCTION(erf)
KF_FUNCTION(exp)
KF_FUNCTION(exp2)
KF_FUNCTION(expm1)
KF_FUNCTION(fabs)
KF_FUNCTION(log)
KF_FUNCTION(log10)
KF_FUNCTION(log1p)
KF_FUNCTION(log2)
KF_FUNCTION(sin)
KF_FUNCTION(sinh)
KF_FUNCTION(sqrt)
KF_FUNCTION(tan)
KF_FUNCTION(tanh)
KF_FUNCTION_2(atan2)
KF_FUNCTION_2(copysign)
KF_FUNCTION_2(fmod)
KF_FUNCTION_2(hypot)
KF_FUNCTION_2(pow)

// ---- rounding: integers are round already ---------------------------------------------------------------------------

#define KF_ROUNDING(name) \
  KF_FUNCTION(name)       \
  template <class T>      \
  KF_DEVICE T name(T x) { \
    return x;             \
  }
KF_ROUNDING(floor)
KF_ROUNDING(ceil)
KF_ROUNDING(rint)
KF_ROUNDING(trunc)
#undef KF_ROUNDING
#undef KF_FUNCTION_2
#undef KF_FUNCTION

// ---- choice ---------------------------------------------------------------------------------------------------------

template <class T>
KF_DEVICE T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

/// NaN where either is NaN.
template <class T>
KF_DEVICE T maximum(T x, T y) {
  return x >= y || x != x ? x : y;
}
template <class T>
KF_DEVICE T minimum(T x, T y) {
  return x <= y || x != x ? x : y;
}

#if __CUDA_ARCH__ >= 800
KF_DEVICE float maximum(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
KF_DEVICE float minimum(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
#endif

/// max(x, 0), of zeros either; NaN stays NaN. For floats one instruction, where a comparison and a choice are two.
template <class T>
KF_DEVICE T relu(T x) {
  return maximum(x, T(0));
}

/// The other where one is NaN.
template <class T>
KF_DEVICE T maximum_number(T x, T y) {
  return x >= y || y != y ? x : y;
}
template <class T>
KF_DEVICE T minimum_number(T x, T y) {
  return x <= y || y != y ? x : y;
}

// ---- arithmetic -----------------------------------------------------------------------------------------------------

/// Has y's sign, or is a zero of y's sign. By 0: NaN, or 0 for integers.
template <class T>
KF_DEVICE T remainder(T x, T y) {
  if constexpr (kIsFloat<T>) {
    const T r = fmod(x, y);
    if (r == T(0)) return copysign(T(0), y);
    return (r < T(0)) != (y < T(0)) ? r + y : r;
  } else {
    if (y == T(0) || y == T(-1)) return T(0);
    const T r = x % y;
    return r != T(0) && (r < T(0)) != (y < T(0)) ? r + y : r;
  }
}

/// floor(x / y) of the exact quotient. By 0: x / y, or 0 for integers; the smallest integer by -1 is itself.
template <class T>
KF_DEVICE T floor_divide(T x, T y) {
  if constexpr (kIsFloat<T>) {
    if (y == T(0)) return x / y;
    const T r = fmod(x, y);
    T q = (x - r) / y;
    if (r != T(0) && (r < T(0)) != (y < T(0))) q -= T(1);
    if (q == T(0)) return copysign(T(0), x / y);
    const T below = floor(q);
    return q - below > T(0.5) ? below + T(1) : below;
  } else {
    if (y == T(0)) return T(0);
    if (y == T(-1)) return -x;
    const T q = x / y;
    return x % y != T(0) && (x < T(0)) != (y < T(0)) ? q - T(1) : q;
  }
}

/// x to the power y. Integers wrap; a negative power is truncated.
template <class T>
KF_DEVICE T power(T x, T y) {
  if constexpr (kIsFloat<T>) {
    return pow(x, y);
  } else {
    if (y < T(0)) return x == T(1) || (x == T(-1) && y % T(2) == T(0)) ? T(1) : x == T(-1) ? T(-1) : T(0);
    T result = T(1);
    for (; y > T(0); y /= T(2), x *= x)
      if (y % T(2) != T(0)) result *= x;
    return result;
  }
}

template <class T>
KF_DEVICE T absolute(T x) {
  if constexpr (kIsFloat<T>) {
    return fabs(x);
  } else if constexpr (kIsBool<T>) {
    return x;
  } else {
    return x < T(0) ? -x : x;
  }
}

/// -1, 0 or 1; NaN for NaN.
template <class T>
KF_DEVICE T sign(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == T(0) ? T(0) : x;
}

/// log(exp(x) + exp(y)): the larger plus what the smaller adds, so that nothing overflows.
template <class T>
KF_DEVICE T logaddexp(T x, T y) {
  if (x == y) return x + T(0.693147180559945309417);  // infinities too
  const T distance = x - y;
  return distance > T(0) ? x + log1p(exp(-distance)) : y + log1p(exp(distance));
}

/// 1 / (1 + exp(-x)), never through the exponential of a large number.
template <class T>
KF_DEVICE T sigmoid(T x) {
  const T e = exp(-fabs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

// ---- tests and bits -------------------------------------------------------------------------------------------------

/// The largest value of T, infinity for floats.
template <class T>
KF_DEVICE constexpr T highest() {
  if constexpr (kIsFloat<T>) {
    return static_cast<T>(__int_as_float(0x7f800000));
  } else if constexpr (kIsBool<T>) {
    return T(1);
  } else {
    return static_cast<T>((u64(1) << (8 * sizeof(T) - 1)) - 1);
  }
}
template <class T>
KF_DEVICE constexpr T lowest() {
  return kIsFloat<T> ? -highest<T>() : static_cast<T>(kIsBool<T> ? T(0) : -highest<T>() - T(1));
}

template <class T>
KF_DEVICE bool isinf(T x) {
  if constexpr (kIsFloat<T>) return fabs(x) == highest<T>();
  return false;
}
template <class T>
KF_DEVICE bool isfinite(T x) {
  if constexpr (kIsFloat<T>) return fabs(x) < highest<T>();
  return true;
}

template <class T>
KF_DEVICE T left_shift(T x, T count) {
  return count < 0 || count >= T(8 * sizeof(T)) ? T(0) : static_cast<T>(static_cast<u64>(x) << count);
}
template <class T>
KF_DEVICE T right_shift(T x, T count) {
  return static_cast<T>(x >> (count < 0 || count >= T(8 * sizeof(T)) ? T(8 * sizeof(T) - 1) : count));
}

/// 32 random bits for each position: Philox 4x32-10 of (position / 4, stream) by a key gives a block of four words.
/// That of the last position is kept, since the next one is often in it. T has 64 bits.
class RandomWords {
 public:
  KF_DEVICE RandomWords(i64 stream, i64 key) : stream_(static_cast<u64>(stream)), key_(static_cast<u64>(key)) {}

  KF_DEVICE i64 at(i64 position) {
    if (const i64 block = position >> 2; block != block_) compute(block);
    const u32 lower = (position & 1) != 0 ? word1_ : word0_, upper = (position & 1) != 0 ? word3_ : word2_;
    return (position & 2) != 0 ? upper : lower;
  }

 private:
  KF_DEVICE void compute(i64 block) {
    block_ = block;
    word0_ = static_cast<u32>(block), word1_ = static_cast<u32>(static_cast<u64>(block) >> 32);
    word2_ = static_cast<u32>(stream_), word3_ = static_cast<u32>(stream_ >> 32);
    u32 key0 = static_cast<u32>(key_), key1 = static_cast<u32>(key_ >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const u32 high0 = __umulhi(0xcd9e8d57u, word2_), high2 = __umulhi(0xd2511f53u, word0_);
      const u32 low1 = 0xcd9e8d57u * word2_, low3 = 0xd2511f53u * word0_;
      word0_ = high0 ^ word1_ ^ key0;
      word1_ = low1;
      word2_ = high2 ^ word3_ ^ key1;
      word3_ = low3;
      key0 += 0x9e3779b9u;
      key1 += 0xbb67ae85u;
    }
  }

  i64 block_ = lowest<i64>();  // of no position
  u64 stream_, key_;
  u32 word0_ = 0, word1_ = 0, word2_ = 0, word3_ = 0;
};

template <class T>
KF_DEVICE T philox(T position, T stream, T key) {
  return RandomWords(stream, key).at(position);
}

template <class T>
KF_DEVICE T invert(T x) {
  if constexpr (kIsBool<T>) return x == T(0);
  return ~x;
}

// ---- conversions ----------------------------------------------------------------------------------------------------

/// C++'s conversion where it is defined. NaN and what an integer type cannot hold become its smallest integer; integers
/// wrap; a bool is what is not 0.
template <class To, class From>
KF_DEVICE To convert(From x) {
  if constexpr (kIsBool<To>) {
    return x != From(0);
  } else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    constexpr From kEnd = -static_cast<From>(lowest<To>());  // a power of 2, so exact
    return x >= -kEnd && x < kEnd ? static_cast<To>(x) : lowest<To>();
  } else {
    return static_cast<To>(x);
  }
}

/// The float nearest to `x` towards 0, its last bit set where it is not exact: rounding that to a half type rounds `x`
/// once.
template <class From>
KF_DEVICE float rounded_to_odd(From x) {
  const double wide = static_cast<double>(x);
  const float nearest = static_cast<float>(wide);
  if (nearest == wide || wide != wide) return nearest;
  const bool away = (nearest > wide) == (wide > 0);
  const u32 bits = __float_as_uint(nearest);
  return __uint_as_float((away ? bits - 1 : bits) | 1u);
}
KF_DEVICE float rounded_to_odd(float x) { return x; }

/// `x` as a half type H stores it.
template <class H, class From>
KF_DEVICE float rounded(From x) {
  float lo, hi;
  unpack_pair<H>(pack_pair<H>(rounded_to_odd(x), 0.0f), lo, hi);
  return lo;
}

}  // namespace kfusion::device::scalar
