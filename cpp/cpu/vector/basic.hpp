// What functions of vectors are made of: bits, rounding, fused steps, double precision for floats.
#pragma once
#include "cpu/vector/vector.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

// ---- signs and rounding -----------------------------------------------------------------------------------------

template <class T>
KF_INLINE Vec<T> sign_bit() {
  return Vec<T>::bits(Vec<typename IntegerOf<sizeof(T)>::Type>(1) << (8 * sizeof(T) - 1));
}
template <class T>
KF_INLINE Vec<T> absolute(Vec<T> x) {
  if constexpr (kIsFloat<T>) return x & ~sign_bit<T>();
  if constexpr (kIsBool<T>) return x;
  return select(x < Vec<T>(0), -x, x);
}
template <class T>
KF_INLINE Vec<T> copysign(Vec<T> x, Vec<T> y) {
  return (x & ~sign_bit<T>()) | (y & sign_bit<T>());
}
/// -1, 0 or 1; NaN for NaN.
template <class T>
KF_INLINE Vec<T> sign(Vec<T> x) {
  const Vec<T> zero(0);
  return select(x > zero, Vec<T>(1), select(x < zero, Vec<T>(-1), select(x == zero, zero, x)));
}

/// max(x, 0), of zeros either; NaN stays NaN.
template <class T>
KF_INLINE Vec<T> relu(Vec<T> x) {
  if constexpr (kIsFloat<T>) return Vec<T>(relu(x.v));
  return select(x < Vec<T>(0), Vec<T>(0), x);
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

// ---- tests ------------------------------------------------------------------------------------------------------

template <class T>
KF_INLINE auto isinf(Vec<T> x) {
  if constexpr (kIsFloat<T>)
    return absolute(x) == Vec<T>(__builtin_inf());
  else
    return x != x;
}
/// Where either is NaN.
KF_INLINE Mask<4> unordered(FloatVec x, FloatVec y) {
#if defined(__AVX512F__)
  return Mask<4>::of(_mm512_movm_epi32(_mm512_cmp_ps_mask((__m512)x.v, (__m512)y.v, _CMP_UNORD_Q)));
#elif defined(__AVX2__)
  return Mask<4>::of(_mm256_cmp_ps((__m256)x.v, (__m256)y.v, _CMP_UNORD_Q));
#else
  return x != x || y != y;
#endif
}
template <class T>
KF_INLINE auto isfinite(Vec<T> x) {
  if constexpr (kIsFloat<T>)
    return absolute(x) < Vec<T>(__builtin_inf());
  else
    return x == x;
}

// ---- floats in double precision ----------------------------------------------------------------------------------

/// f of the lanes as doubles, rounded once.
template <class F, class... Vectors>
KF_INLINE FloatVec through_doubles(const F& f, Vectors... x) {
  using Half = VectorOf<float, kVectorBytes / 2>::Type;
  const DoubleVec low = f(DoubleVec(doubles_of(half_lanes<0>(x)))...);
  const DoubleVec high = f(DoubleVec(doubles_of(half_lanes<1>(x)))...);
  return join_lanes<float>(__builtin_convertvector(low.v, Half), __builtin_convertvector(high.v, Half));
}

// ---- the steps that polynomials are made of ----------------------------------------------------------------------

/// x * y + z, rounded once or twice, whichever is faster.
KF_INLINE FloatVec mad(FloatVec x, FloatVec y, FloatVec z) {
#if defined(__AVX512F__)
  return FloatVec((F32s)_mm512_fmadd_ps((__m512)x.v, (__m512)y.v, (__m512)z.v));
#elif defined(__FMA__)
  return FloatVec((F32s)_mm256_fmadd_ps((__m256)x.v, (__m256)y.v, (__m256)z.v));
#else
  return x * y + z;
#endif
}
KF_INLINE DoubleVec mad(DoubleVec x, DoubleVec y, DoubleVec z) {
#if defined(__AVX512F__)
  return DoubleVec((F64s)_mm512_fmadd_pd((__m512d)x.v, (__m512d)y.v, (__m512d)z.v));
#elif defined(__FMA__)
  return DoubleVec((F64s)_mm256_fmadd_pd((__m256d)x.v, (__m256d)y.v, (__m256d)z.v));
#else
  return x * y + z;
#endif
}

/// x * y + z of the exact product. Where there is no such instruction, floats take it in double precision, rounded once
/// but for the rarest of ties.
KF_INLINE FloatVec fma(FloatVec x, FloatVec y, FloatVec z) {
#if defined(__FMA__)
  return mad(x, y, z);
#else
  return through_doubles([](DoubleVec a, DoubleVec b, DoubleVec c) { return a * b + c; }, x, y, z);
#endif
}

#if defined(__FMA__)
KF_INLINE DoubleVec fma(DoubleVec x, DoubleVec y, DoubleVec z) { return mad(x, y, z); }
#else
/// x in two parts of 26 bits, for |x| < 2^996.
struct Halves {
  DoubleVec high, low;
};
KF_INLINE Halves halves(DoubleVec x) {
  const DoubleVec scaled = x * DoubleVec(0x1p27 + 1), high = scaled - (scaled - x);
  return {high, x - high};
}
/// The errors of the product and of the sum, found exactly, are added at the end (T. J. Dekker, "A floating-point
/// technique for extending the available precision", 1971).
KF_INLINE DoubleVec fma(DoubleVec x, DoubleVec y, DoubleVec z) {
  const auto [xh, xl] = halves(x);
  const auto [yh, yl] = halves(y);
  const DoubleVec product = x * y, of_product = ((xh * yh - product) + xh * yl + xl * yh) + xl * yl;
  const DoubleVec sum = product + z, added = sum - product, of_sum = (product - (sum - added)) + (z - added);
  return sum + (of_sum + of_product);
}
#endif

/// c0 + c1 x + c2 x^2 + ... by Horner's rule.
template <class T>
KF_INLINE Vec<T> polynomial(Vec<T>, double c) {
  return Vec<T>(c);
}
template <class T, class... More>
KF_INLINE Vec<T> polynomial(Vec<T> x, double c, More... more) {
  return mad(polynomial(x, more...), x, Vec<T>(c));
}

/// min(x, bound) and max(x, bound) that keep an x of NaN: x86's give the second operand where either is NaN.
KF_INLINE FloatVec at_most(FloatVec x, FloatVec bound) {
#if defined(__AVX512F__)
  return FloatVec((F32s)_mm512_maskz_min_ps(0xffff, (__m512)bound.v, (__m512)x.v));
#elif defined(__AVX2__)
  return FloatVec((F32s)_mm256_min_ps((__m256)bound.v, (__m256)x.v));
#else
  return select(x > bound, bound, x);
#endif
}
KF_INLINE FloatVec at_least(FloatVec x, FloatVec bound) {
#if defined(__AVX512F__)
  return FloatVec((F32s)_mm512_maskz_max_ps(0xffff, (__m512)bound.v, (__m512)x.v));
#elif defined(__AVX2__)
  return FloatVec((F32s)_mm256_max_ps((__m256)bound.v, (__m256)x.v));
#else
  return select(x < bound, bound, x);
#endif
}
KF_INLINE FloatVec at_most(FloatVec x, double limit) { return at_most(x, FloatVec(limit)); }
KF_INLINE FloatVec at_least(FloatVec x, double limit) { return at_least(x, FloatVec(limit)); }
KF_INLINE DoubleVec at_most(DoubleVec x, double limit) { return select(x > DoubleVec(limit), DoubleVec(limit), x); }
KF_INLINE DoubleVec at_least(DoubleVec x, DoubleVec bound) {
#if defined(__AVX512F__)
  return DoubleVec((F64s)_mm512_maskz_max_pd(0xff, (__m512d)bound.v, (__m512d)x.v));
#elif defined(__AVX2__)
  return DoubleVec((F64s)_mm256_max_pd((__m256d)bound.v, (__m256d)x.v));
#else
  return select(x < bound, bound, x);
#endif
}
KF_INLINE DoubleVec at_least(DoubleVec x, double limit) { return at_least(x, DoubleVec(limit)); }

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
