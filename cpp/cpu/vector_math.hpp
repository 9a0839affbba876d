// The functions of scalar_math.hpp and <cmath> that expressions of ops.def use, of vectors: the same names, so that an
// expression compiles as it stands for either.
#pragma once
#include "cpu/vector.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

// ---- through libm, lane by lane ---------------------------------------------------------------------------------

// Not inlined: the calls cost far more than the registers saved around them.
#define KF_LANES_1(name, libm)                                                       \
  __attribute__((noinline)) DoubleVec name(DoubleVec x) {                            \
    for (int i = 0; i < DoubleVec::kCount; ++i) x.v[i] = __builtin_##libm(x.v[i]);   \
    return x;                                                                        \
  }                                                                                  \
  __attribute__((noinline)) FloatVec name(FloatVec x) {                              \
    for (int i = 0; i < FloatVec::kCount; ++i) x.v[i] = __builtin_##libm##f(x.v[i]); \
    return x;                                                                        \
  }
#define KF_LANES_2(name, libm)                                                               \
  __attribute__((noinline)) DoubleVec name(DoubleVec x, DoubleVec y) {                       \
    for (int i = 0; i < DoubleVec::kCount; ++i) x.v[i] = __builtin_##libm(x.v[i], y.v[i]);   \
    return x;                                                                                \
  }                                                                                          \
  __attribute__((noinline)) FloatVec name(FloatVec x, FloatVec y) {                          \
    for (int i = 0; i < FloatVec::kCount; ++i) x.v[i] = __builtin_##libm##f(x.v[i], y.v[i]); \
    return x;                                                                                \
  }
KF_LANES_1(acos, acos)
KF_LANES_1(acosh, acosh)
KF_LANES_1(asin, asin)
KF_LANES_1(asinh, asinh)
KF_LANES_1(atan, atan)
KF_LANES_1(atanh, atanh)
KF_LANES_1(cbrt, cbrt)
KF_LANES_1(cos, cos)
KF_LANES_1(cosh, cosh)
KF_LANES_1(erf, erf)
KF_LANES_1(exp, exp)
KF_LANES_1(exp2, exp2)
KF_LANES_1(expm1, expm1)
KF_LANES_1(log, log)
KF_LANES_1(log10, log10)
KF_LANES_1(log1p, log1p)
KF_LANES_1(log2, log2)
KF_LANES_1(sin, sin)
KF_LANES_1(sinh, sinh)
KF_LANES_1(tan, tan)
KF_LANES_1(tanh, tanh)
KF_LANES_2(atan2, atan2)
KF_LANES_2(hypot, hypot)
KF_LANES_2(power_of_floats, pow)
KF_LANES_2(remainder_of_division, fmod)
#undef KF_LANES_1
#undef KF_LANES_2

// ---- signs and rounding -----------------------------------------------------------------------------------------

template <class T>
KF_INLINE Vec<T> sign_bit() {
  return Vec<T>::bits(Vec<typename IntegerOf<sizeof(T)>::Type>(1) << (8 * sizeof(T) - 1));
}
template <class T>
KF_INLINE Vec<T> bits_and(Vec<T> x, Vec<T> y) {
  return Vec<T>((typename Vec<T>::Native)((typename Vec<T>::Unsigned)x.v & (typename Vec<T>::Unsigned)y.v));
}
template <class T>
KF_INLINE Vec<T> bits_or(Vec<T> x, Vec<T> y) {
  return Vec<T>((typename Vec<T>::Native)((typename Vec<T>::Unsigned)x.v | (typename Vec<T>::Unsigned)y.v));
}
template <class T>
KF_INLINE Vec<T> bits_xor(Vec<T> x, Vec<T> y) {
  return Vec<T>((typename Vec<T>::Native)((typename Vec<T>::Unsigned)x.v ^ (typename Vec<T>::Unsigned)y.v));
}
template <class T>
KF_INLINE Vec<T> bits_and_not(Vec<T> x, Vec<T> y) {
  return Vec<T>((typename Vec<T>::Native)((typename Vec<T>::Unsigned)x.v & ~(typename Vec<T>::Unsigned)y.v));
}

template <class T>
KF_INLINE Vec<T> absolute(Vec<T> x) {
  if constexpr (kIsFloat<T>) return bits_and_not(x, sign_bit<T>());
  if constexpr (kIsBool<T>) return x;
  return select(x < Vec<T>(0), -x, x);
}
template <class T>
KF_INLINE Vec<T> copysign(Vec<T> x, Vec<T> y) {
  return bits_or(bits_and_not(x, sign_bit<T>()), bits_and(y, sign_bit<T>()));
}
/// -1, 0 or 1; NaN for NaN.
template <class T>
KF_INLINE Vec<T> sign(Vec<T> x) {
  const Vec<T> zero(0);
  return select(x > zero, Vec<T>(1), select(x < zero, Vec<T>(-1), select(x == zero, zero, x)));
}

KF_INLINE FloatVec sqrt(FloatVec x) {
#if defined(__AVX512F__)
  return FloatVec((F32s)_mm512_maskz_sqrt_ps(0xffff, (__m512)x.v));
#elif defined(__AVX2__)
  return FloatVec((F32s)_mm256_sqrt_ps((__m256)x.v));
#elif defined(__SSE2__)
  return FloatVec((F32s)_mm_sqrt_ps((__m128)x.v));
#else
  for (int i = 0; i < FloatVec::kCount; ++i) x.v[i] = __builtin_sqrtf(x.v[i]);
  return x;
#endif
}
KF_INLINE DoubleVec sqrt(DoubleVec x) {
#if defined(__AVX512F__)
  return DoubleVec((F64s)_mm512_maskz_sqrt_pd(0xff, (__m512d)x.v));
#elif defined(__AVX2__)
  return DoubleVec((F64s)_mm256_sqrt_pd((__m256d)x.v));
#elif defined(__SSE2__)
  return DoubleVec((F64s)_mm_sqrt_pd((__m128d)x.v));
#else
  for (int i = 0; i < DoubleVec::kCount; ++i) x.v[i] = __builtin_sqrt(x.v[i]);
  return x;
#endif
}

/// Halves to even. What is at least 2^23 (2^52) is an integer already; a smaller number loses its fraction when that
/// is added and taken off again.
template <class T>
KF_INLINE Vec<T> rint(Vec<T> x) {
  if constexpr (!kIsFloat<T>) {
    return x;
  } else {
    const Vec<T> large(sizeof(T) == 8 ? 0x1p52 : 0x1p23), a = absolute(x);
    return select(a < large, copysign((a + large) - large, x), x);
  }
}
template <class T>
KF_INLINE Vec<T> floor(Vec<T> x) {
  if constexpr (!kIsFloat<T>) return x;
  const Vec<T> r = rint(x);
  return copysign(select(r > x, r - Vec<T>(1), r), x);  // -0 where x is
}
template <class T>
KF_INLINE Vec<T> ceil(Vec<T> x) {
  if constexpr (!kIsFloat<T>) return x;
  const Vec<T> r = rint(x);
  return copysign(select(r < x, r + Vec<T>(1), r), x);
}
template <class T>
KF_INLINE Vec<T> trunc(Vec<T> x) {
  if constexpr (!kIsFloat<T>) return x;
  const Vec<T> a = absolute(x), r = rint(a);
  return copysign(select(r > a, r - Vec<T>(1), r), x);
}

// ---- division of integers, and its floats' counterparts ----------------------------------------------------------

/// Has y's sign, or is a zero of y's sign. By 0: NaN, or 0 for integers.
template <class T>
KF_INLINE Vec<T> remainder(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  const V zero(0);
  if constexpr (kIsFloat<T>) {
    const V r = remainder_of_division(x, y);
    return select(r == zero, copysign(zero, y), select((r < zero) != (y < zero), r + y, r));
  } else {
    const V r = x % select(y == zero || y == V(-1), V(1), y);  // the smallest integer by -1 traps
    return select(r != zero && (r < zero) != (y < zero), r + y, r);
  }
}

/// floor(x / y) of the exact quotient. By 0: x / y, or 0 for integers; the smallest integer by -1 is itself.
template <class T>
KF_INLINE Vec<T> floor_divide(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  const V zero(0), one(1);
  if constexpr (kIsFloat<T>) {
    const V r = remainder_of_division(x, y);
    V q = (x - r) / y;  // an integer but for its rounding
    q = select(r != zero && (r < zero) != (y < zero), q - one, q);
    const V below = floor(q), nearest = select(q - below > V(0.5), below + one, below);
    return select(y == zero, x / y, select(q == zero, copysign(zero, x / y), nearest));
  } else {
    const V by = select(y == zero || y == V(-1), one, y), q = x / by, r = x - q * by;
    const V floored = select(r != zero && (r < zero) != (y < zero), q - one, q);
    return select(y == zero, zero, select(y == V(-1), -x, floored));
  }
}

/// Of integers, wrapped; to a negative power truncated, so 0 but for bases of 1 and -1.
template <class T>
KF_INLINE Vec<T> power(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  if constexpr (kIsFloat<T>) {
    return power_of_floats(x, y);
  } else {
    const V zero(0), one(1), minus(-1);
    const auto odd = (y & one) != zero;
    const V inverse = select(x == one || (x == minus && !odd), one, select(x == minus, minus, zero));
    V result = one, left = select(y > zero, y, zero), square = x;
    for (; any(left != zero); left = left >> 1, square = square * square)
      result = select((left & one) != zero, result * square, result);
    return select(y < zero, inverse, result);
  }
}

// ---- functions of floats ----------------------------------------------------------------------------------------

/// log(exp(x) + exp(y)): the larger plus what the smaller adds, so that nothing overflows.
template <class T>
KF_INLINE Vec<T> logaddexp(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  const V larger = select(x > y, x, y), added = log1p(exp(-absolute(x - y)));
  return select(x == y, x + V(0.693147180559945309417), larger + added);
}

/// 1 / (1 + exp(-x)), never through the exponential of a large number.
template <class T>
KF_INLINE Vec<T> sigmoid(Vec<T> x) {
  using V = Vec<T>;
  const V one(1), e = exp(-absolute(x));
  return select(x >= V(0), one, e) / (one + e);
}

// ---- choice -----------------------------------------------------------------------------------------------------

/// NaN where either is NaN.
template <class T>
KF_INLINE Vec<T> maximum(Vec<T> x, Vec<T> y) {
  return select(x >= y || x != x, x, y);
}
template <class T>
KF_INLINE Vec<T> minimum(Vec<T> x, Vec<T> y) {
  return select(x <= y || x != x, x, y);
}

/// The other where one is NaN.
template <class T>
KF_INLINE Vec<T> maximum_number(Vec<T> x, Vec<T> y) {
  return select(x >= y || y != y, x, y);
}
template <class T>
KF_INLINE Vec<T> minimum_number(Vec<T> x, Vec<T> y) {
  return select(x <= y || y != y, x, y);
}

// ---- tests and bits ---------------------------------------------------------------------------------------------

template <class T>
KF_INLINE auto isinf(Vec<T> x) {
  if constexpr (kIsFloat<T>)
    return absolute(x) == Vec<T>(__builtin_inf());
  else
    return x != x;
}
template <class T>
KF_INLINE auto isfinite(Vec<T> x) {
  if constexpr (kIsFloat<T>)
    return absolute(x) < Vec<T>(__builtin_inf());
  else
    return x == x;
}

template <class T>
KF_INLINE Vec<T> invert(Vec<T> x) {
  if constexpr (kIsBool<T>)
    return Vec<T>(x == Vec<T>(0));
  else
    return ~x;
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
