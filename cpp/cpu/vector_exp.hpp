// The exponential and what is made of it: exp2, expm1, tanh, sigmoid, erf.
//
// e^x = 2^n e^r with n the integer nearest to x / ln 2 and |r| <= ln(2) / 2, where e^r is a polynomial (W. J. Cody and
// W. Waite, "Software Manual for the Elementary Functions", 1980). Coefficients: fit_polynomials.py.
#pragma once
#include "cpu/vector_basic.hpp"
#include "cpu/vector_libm.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// Added and taken off again, it rounds to an integer, which stands in the sum's last bits meanwhile.
constexpr float kRounder = 0x1.8p23f;
constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2High = 0x1.62e4p-1, kLn2Low = 1.4286068203094172321e-6;  // n kLn2High is exact for |n| < 512

/// x = n ln 2 + r
struct ReducedExponent {
  FloatVec rounded, n, r;  ///< rounded: kRounder + n
};
KF_INLINE ReducedExponent reduce_exponent(FloatVec x) {
  const FloatVec rounded = mad(x, FloatVec(kLog2E), FloatVec(kRounder)), n = rounded - FloatVec(kRounder);
  return {rounded, n, mad(n, FloatVec(-kLn2Low), mad(n, FloatVec(-kLn2High), x))};
}

/// (e^r - 1 - r) / r^2
KF_INLINE FloatVec exp_rest(FloatVec r) {
  return polynomial(r, 0.49999998154746646579, 0.16666543633024360824, 0.041667199577238139839,
                    0.0083665190619774866612, 0.0013882538394382944032);
}

/// 2^n for -126 <= n <= 127, of kRounder + n.
KF_INLINE FloatVec power_of_two(FloatVec rounded) {
  return FloatVec::bits((Int32Vec::bits(rounded) << 23) + Int32Vec(0x3f800000));
}

/// y 2^n, for -252 <= n <= 254; infinite or subnormal where it must be.
KF_INLINE FloatVec scale(FloatVec y, [[maybe_unused]] FloatVec rounded, [[maybe_unused]] FloatVec n) {
#if defined(__AVX512F__)
  return FloatVec((F32s)_mm512_maskz_scalef_ps(0xffff, (__m512)y.v, (__m512)n.v));
#else
  const Int32Vec bits = Int32Vec::bits(rounded) - Int32Vec(0x4b400000), half = bits >> 1, one(0x3f800000);
  return y * FloatVec::bits((half << 23) + one) * FloatVec::bits(((bits - half) << 23) + one);
#endif
}

/// e^r where e^x = 2^n e^r.
KF_INLINE FloatVec exp_of_reduced(FloatVec r) { return fma(mad(exp_rest(r), r, FloatVec(1)), r, FloatVec(1)); }

KF_INLINE FloatVec exp(FloatVec x) {
  const auto [rounded, n, r] = reduce_exponent(at_least(at_most(x, 89), -104));
  return scale(exp_of_reduced(r), rounded, n);
}

KF_INLINE FloatVec exp2(FloatVec x) {
  const FloatVec y = at_least(at_most(x, 129), -151), rounded = y + FloatVec(kRounder),
                 n = rounded - FloatVec(kRounder), r = y - n;
  const FloatVec p = polynomial(r, 0.6931471879275457908, 0.24022649794087003315, 0.055503574322486443813,
                                0.0096182375547282239742, 0.0013390735569575005689, 0.00015403501890854690312);
  return scale(fma(p, r, FloatVec(1)), rounded, n);
}

/// 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)): half, so that 2^128 does not overflow; e^r - 1 itself where n is 0.
KF_INLINE FloatVec expm1(FloatVec x) {
  const auto [rounded, n, r] = reduce_exponent(at_least(at_most(x, 89), -18));
  const FloatVec q = mad(exp_rest(r), r * r, r), h = power_of_two(rounded - FloatVec(1));
  const FloatVec scaled = fma(h, q, h - FloatVec(0.5));
  return copysign(select(n == FloatVec(0), q, scaled + scaled), x);
}

/// 1 - 2 / (e^2|x| + 1), an odd polynomial for small |x|.
KF_INLINE FloatVec tanh(FloatVec x) {
  const FloatVec a = absolute(x), one(1);
  const auto [rounded, n, r] = reduce_exponent(at_most(a + a, 20));
  const FloatVec large = one - FloatVec(2) / mad(exp_of_reduced(r), power_of_two(rounded), one);
  const FloatVec t = a * a, p = polynomial(t, -0.33333298005014648145, 0.13331924221459991138, -0.053783839078520863114,
                                           0.020796002318355774242, -0.0058951941525741688792);
  return copysign(select(a < FloatVec(0.6), mad(a * t, p, a), large), x);
}

/// 1 / (1 + e^-x), never through the exponential of a large number.
KF_INLINE DoubleVec sigmoid(DoubleVec x) {
  const DoubleVec one(1), e = exp(-absolute(x));
  return select(x >= DoubleVec(0), one, e) / (one + e);
}
/// The quotient's error and that of 1 + e are taken off again, which leaves that of e.
KF_INLINE FloatVec sigmoid(FloatVec x) {
  const FloatVec one(1), e = exp(-absolute(x)), numerator = select(x >= FloatVec(0), one, e);
  const FloatVec sum = one + e, lost = e - (sum - one), inverse = one / sum, y = numerator * inverse;
  return mad(mad(-y, lost, fma(-y, sum, numerator)), inverse, y);
}

/// x + x p(x^2) for small |x|, else 1 - e^p(|x|), whose exponential is erfc.
KF_INLINE FloatVec erf(FloatVec x) {
  const FloatVec a = absolute(x), t = a * a, one(1);
  const FloatVec p = polynomial(t, 0.12837914580540088932, -0.37612468631122791565, 0.11281552485392931867,
                                -0.0267570357031767356, 0.0049791319553691335235, -0.00059194274786980467439);
  const FloatVec exponent = polynomial(at_most(a, 4), -0.00021134094787848192077, -1.1276110877324668873,
                                       -0.63729063227060094543, -0.10383671109192225002, 0.022181285672111468642,
                                       -0.0030317927640244721952, 0.00019477467725222137686);
  const auto [rounded, n, r] = reduce_exponent(exponent);
  const FloatVec large = one - exp_of_reduced(r) * power_of_two(rounded);
  return copysign(select(a < FloatVec(0.9375), mad(a, p, a), large), x);
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
