// Logarithms.
//
// log x = k ln 2 + log(1 + f) with 3/4 <= 1 + f < 3/2 and x = 2^k (1 + f), where log(1 + f) = f - f^2 / 2 + f^3 p(f)
// is a polynomial (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980). Coefficients:
// fit_polynomials.py.
#pragma once
#include "cpu/vector_basic.hpp"
#include "cpu/vector_libm.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// x = 2^k m, 3/4 <= m < 3/2.
struct Binary {
  FloatVec k, m;
};

#if defined(__AVX512F__)
/// Of 0, infinity, negative numbers and NaN: what makes the logarithms right.
KF_INLINE Binary binary(FloatVec x) {
  const __m512 v = (__m512)x.v, m = _mm512_maskz_getmant_ps(0xffff, v, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_nan);
  const __m512 k = _mm512_maskz_getexp_ps(0xffff, v) - _mm512_maskz_getexp_ps(0xffff, m);
  return {FloatVec((F32s)k), FloatVec((F32s)m)};
}
KF_INLINE FloatVec with_special_logarithms(FloatVec, FloatVec y) { return y; }
#else
KF_INLINE Binary binary(FloatVec x) {
  const auto subnormal = x < FloatVec(0x1p-126);
  const FloatVec normal = select(subnormal, x * FloatVec(0x1p23), x);
  const Int32Vec bits = Int32Vec::bits(normal), k = (bits - Int32Vec(0x3f400000)) >> 23;
  return {FloatVec(k) - select(subnormal, FloatVec(23), FloatVec(0)), FloatVec::bits(bits - (k << 23))};
}
/// y, but the logarithms of 0, infinity, negative numbers and NaN.
KF_INLINE FloatVec with_special_logarithms(FloatVec x, FloatVec y) {
  const FloatVec zero(0), infinity(__builtin_inff());
  const FloatVec special = select(x == zero, -infinity, select(x < zero, FloatVec(__builtin_nanf("")), x));
  return select(x > zero && x < infinity, y, special);
}
#endif

/// f^3 p(f) and f^2 / 2
struct LogTerms {
  FloatVec rest, half_square;
};
KF_INLINE LogTerms log_terms(FloatVec f) {
  const FloatVec square = f * f;
  const FloatVec p =
      polynomial(f, 0.3333344912340791401, -0.25000095919794623103, 0.19990860896837589408, -0.1664730980078269944,
                 0.14478394547069526811, -0.13161209730844738622, 0.10463053953948957465, -0.045074993317738348916);
  return {square * f * p, FloatVec(0.5) * square};
}

/// k ln 2 + log(1 + f)
KF_INLINE FloatVec log_of(FloatVec k, FloatVec f) {
  const auto [rest, half_square] = log_terms(f);
  return mad(k, FloatVec(kLn2High), f - (half_square - mad(k, FloatVec(kLn2Low), rest)));
}

KF_INLINE FloatVec log(FloatVec x) {
  const auto [k, m] = binary(x);
  return with_special_logarithms(x, log_of(k, m - FloatVec(1)));
}

/// To a base given by the logarithms of 2 and e, each in two parts: k high is exact.
struct LogBase {
  double high, low, e_high, e_low;
};
KF_INLINE FloatVec log_to_base(FloatVec x, const LogBase& base) {
  const auto [k, m] = binary(x);
  const FloatVec f = m - FloatVec(1);
  const auto [rest, half_square] = log_terms(f);
  const FloatVec l = f - half_square, l_low = ((f - l) - half_square) + rest;   // log m, in two parts
  const FloatVec k_low = base.low == 0 ? FloatVec(0) : k * FloatVec(base.low);  // k may be infinite
  const FloatVec low = mad(l, FloatVec(base.e_low), mad(l_low, FloatVec(base.e_high), k_low));
  return with_special_logarithms(x, fma(l, FloatVec(base.e_high), k * FloatVec(base.high)) + low);
}
KF_INLINE FloatVec log2(FloatVec x) { return log_to_base(x, {1, 0, 0x1.715476p0, kLog2E - 0x1.715476p0}); }
KF_INLINE FloatVec log10(FloatVec x) {
  constexpr double kHigh = 0x1.344p-2, kEHigh = 0x1.bcb7b2p-2;
  return log_to_base(x, {kHigh, 0.30102999566398119521 - kHigh, kEHigh, 0.43429448190325182765 - kEHigh});
}

/// 1 + x loses digits of x, so f = 2^-k x + (2^-k - 1), rounded once, with k that of the rounded sum. A number that
/// large that 1 does not matter is taken as it is.
KF_INLINE FloatVec log1p(FloatVec x) {
  const FloatVec one(1), zero(0);
  const auto large = x > FloatVec(0x1p64);
  const FloatVec y = select(large, x * FloatVec(0x1p-64), x), added = select(large, zero, one), sum = y + added;
  const Int32Vec k = (Int32Vec::bits(sum) - Int32Vec(0x3f400000)) >> 23;
  const FloatVec unit = FloatVec::bits(Int32Vec(0x3f800000) - (k << 23)),
                 f = fma(y, unit, select(large, -one, unit - one));
  const FloatVec result = log_of(FloatVec(k) + select(large, FloatVec(64), zero), f);
  const FloatVec special = select(x == -one, FloatVec(-__builtin_inff()), FloatVec(__builtin_nanf("")));
  const FloatVec kept = copysign(select(absolute(x) < FloatVec(0x1p-30), x, result), x);
  return select(x > -one, select(x < FloatVec(__builtin_inff()), kept, x), select(x != x, x, special));
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
