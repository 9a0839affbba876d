// What the functions of vectors take from the machine: instructions that only some have, rare cases, functions of libm.
// cpu/codegen/machine.hpp has the same names for kernels that are generated.
#pragma once
#include "cpu/vector/libm.hpp"
#include "cpu/vector/vector.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

struct Target {
  bool avx512 = false, fma = false;
};
constexpr Target target() {
#if defined(__AVX512F__)
  return {.avx512 = true, .fma = true};
#elif defined(__FMA__)
  return {.fma = true};
#else
  return {};
#endif
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

template <class V>
KF_INLINE V relu_of_floats(V x) {
  return V(relu(x.v));
}

constexpr bool has_rounding() { return false; }  // what basic.hpp has is as fast
template <class V>
KF_INLINE V round_to_even(V x) {
  return x;
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
/// f of the lanes as doubles, rounded once.
template <class F, class... Vectors>
KF_INLINE FloatVec through_doubles(const F& f, Vectors... x) {
  using Half = VectorOf<float, kVectorBytes / 2>::Type;
  const DoubleVec low = f(DoubleVec(doubles_of(half_lanes<0>(x)))...);
  const DoubleVec high = f(DoubleVec(doubles_of(half_lanes<1>(x)))...);
  return join_lanes<float>(__builtin_convertvector(low.v, Half), __builtin_convertvector(high.v, Half));
}

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

/// Products of the lanes' lower halves. Of 64 bits.
KF_INLINE Int64Vec product_of_lower_halves(Int64Vec x, Int64Vec y) {
#if defined(__AVX512F__)
  return Int64Vec((I64s)_mm512_maskz_mul_epu32(0xff, (__m512i)x.v, (__m512i)y.v));
#elif defined(__AVX2__)
  return Int64Vec((I64s)_mm256_mul_epu32((__m256i)x.v, (__m256i)y.v));
#elif defined(__SSE2__)
  return Int64Vec((I64s)_mm_mul_epu32((__m128i)x.v, (__m128i)y.v));
#else
  return (x & Int64Vec(0xffffffff)) * (y & Int64Vec(0xffffffff));
#endif
}

// ---- where target().avx512, never called elsewhere ------------------------------------------------------------------

#if defined(__AVX512F__)
/// y 2^n
KF_INLINE FloatVec scalef(FloatVec y, FloatVec n) {
  return FloatVec((F32s)_mm512_maskz_scalef_ps(0xffff, (__m512)y.v, (__m512)n.v));
}
KF_INLINE DoubleVec scalef(DoubleVec y, DoubleVec n) {
  return DoubleVec((F64s)_mm512_maskz_scalef_pd(0xff, (__m512d)y.v, (__m512d)n.v));
}
KF_INLINE FloatVec reciprocal14(FloatVec x) { return FloatVec((F32s)_mm512_maskz_rcp14_ps(0xffff, (__m512)x.v)); }
/// x's exponent, and its mantissa in [3/4, 3/2), which is NaN of a negative number.
KF_INLINE FloatVec exponent_of(FloatVec x) { return FloatVec((F32s)_mm512_maskz_getexp_ps(0xffff, (__m512)x.v)); }
KF_INLINE DoubleVec exponent_of(DoubleVec x) { return DoubleVec((F64s)_mm512_maskz_getexp_pd(0xff, (__m512d)x.v)); }
KF_INLINE FloatVec mantissa_of(FloatVec x) {
  return FloatVec((F32s)_mm512_maskz_getmant_ps(0xffff, (__m512)x.v, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan));
}
KF_INLINE DoubleVec mantissa_of(DoubleVec x) {
  return DoubleVec((F64s)_mm512_maskz_getmant_pd(0xff, (__m512d)x.v, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan));
}
/// The entries at the last five bits of `place`.
KF_INLINE FloatVec look_up(const float (&table)[32], Int32Vec place) {
  const __m512 low = _mm512_load_ps(table), high = _mm512_load_ps(table + 16);
  return FloatVec((F32s)_mm512_permutex2var_ps(low, (__m512i)place.v, high));
}
#else
template <class V>
KF_INLINE V scalef(V y, V) {
  return y;
}
KF_INLINE FloatVec reciprocal14(FloatVec x) { return x; }
template <class V>
KF_INLINE V exponent_of(V x) {
  return x;
}
template <class V>
KF_INLINE V mantissa_of(V x) {
  return x;
}
KF_INLINE FloatVec look_up(const float (&)[32], Int32Vec place) { return FloatVec::bits(place); }
#endif

// ---- rare cases and loops -------------------------------------------------------------------------------------------

/// y, but f() where the condition holds; f is taken only where it holds for a lane, which is rare.
template <class T, class F>
KF_INLINE Vec<T> rarely(typename Vec<T>::MaskType condition, const F& f, Vec<T> y) {
  if (any(condition)) [[unlikely]]
    return select(condition, f(), y);
  return y;
}

/// Takes `step` on the values as long as `more` of them holds for a lane.
template <class Values, class More, class Step>
KF_INLINE Values repeat_while_any(Values values, const More& more, const Step& step) {
  while (any(more(values))) values = step(values);
  return values;
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
