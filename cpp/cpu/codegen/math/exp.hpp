// The exponential and what is made of it: exp2, expm1, tanh, sigmoid, erf.
//
// e^x = 2^n e^r with n the integer nearest to x / ln 2 and |r| <= ln(2) / 2, where e^r is a polynomial (W. J. Cody and
// W. Waite, "Software Manual for the Elementary Functions", 1980). Coefficients: fit_polynomials.py.
#pragma once
#include "cpu/codegen/math/basic.hpp"
#include "cpu/codegen/math/pieces.hpp"

namespace kfusion::cpu::ir {
namespace {

constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

template <class T>
struct Exponent {
  /// Added and taken off again, it rounds to an integer, which stands in the sum's last bits meanwhile.
  static constexpr double kRounder = 0x1.8p23;
  static constexpr int kFractionBits = 23, kBias = 127;
  static constexpr double kLn2High = 0x1.62e4p-1, kLn2Low = 0x1.7f7d1cf79abcap-20;  // n kLn2High is exact
  static constexpr double kOverflow = 89, kUnderflow = -104;                        // e^x is infinite, is 0
};
template <>
struct Exponent<double> {
  static constexpr double kRounder = 0x1.8p52;
  static constexpr int kFractionBits = 52, kBias = 1023;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr double kOverflow = 710, kUnderflow = -746;
};

/// x to the nearest integer n: kRounder + n, and n.
template <class T>
struct Rounded {
  Vec<T> bits, n;
};
template <class T>
inline Rounded<T> rounded(Vec<T> with_rounder) {
  return {with_rounder, with_rounder - Vec<T>(Exponent<T>::kRounder)};
}

/// 2^n where that is a normal number.
template <class T>
inline Vec<T> power_of_two(Rounded<T> n) {
  using E = Exponent<T>;
  using Integers = Vec<typename IntegerOf<sizeof(T)>::Type>;
  return Vec<T>::bits((Integers::bits(n.bits) << E::kFractionBits) + (Integers(E::kBias) << E::kFractionBits));
}

/// y 2^n; infinite or subnormal where it must be.
template <class T>
inline Vec<T> scale(Vec<T> y, Rounded<T> n) {
  if (target().avx512) return scalef(y, n.n);
  const Vec<T> rounder(Exponent<T>::kRounder);
  const Rounded<T> half = rounded(mad(n.n, Vec<T>(0.5), rounder)), rest = rounded((n.n - half.n) + rounder);
  return y * power_of_two(half) * power_of_two(rest);
}

/// x = n ln 2 + r, r = high - n kLn2Low rounded, high exact
template <class T>
struct ReducedExponent {
  Rounded<T> n;
  Vec<T> high, r;
};
template <class T>
inline ReducedExponent<T> reduce_exponent(Vec<T> x) {
  using E = Exponent<T>;
  const Rounded<T> n = rounded(mad(x, Vec<T>(kLog2E), Vec<T>(E::kRounder)));
  const Vec<T> high = mad(n.n, Vec<T>(-E::kLn2High), x);
  return {n, high, mad(n.n, Vec<T>(-E::kLn2Low), high)};
}

/// (e^r - 1 - r) / r^2
inline FloatVec exp_rest(FloatVec r) {
  return polynomial(r, 0.49999998154378745487, 0.16666543635825750287, 0.041667199795389963808,
                    0.0083665186826603748274, 0.0013882517872581152771);
}
inline DoubleVec exp_rest(DoubleVec r) {
  return polynomial(r, 0.50000000000000051802, 0.16666666666666589291, 0.041666666666576751761,
                    0.0083333333333895550194, 0.001388888893156495789, 0.00019841269718976975181,
                    0.000024801505274279611509, 2.755740759169291164e-6, 2.7626037526423452831e-7,
                    2.5053752094030233419e-8);
}
template <class T>
inline Vec<T> exp_of_reduced(Vec<T> r) {
  return fma(mad(exp_rest(r), r, Vec<T>(1)), r, Vec<T>(1));
}

template <class T>
inline Vec<T> exp(Vec<T> x) {
  using E = Exponent<T>;
  const auto reduced = reduce_exponent(at_least(at_most(x, E::kOverflow), E::kUnderflow));
  return scale(exp_of_reduced(reduced.r), reduced.n);
}

/// 2^n e^(r ln 2), |r| <= 1/2; of floats, the second factor is a polynomial in r.
template <class T>
inline Vec<T> exp2(Vec<T> x) {
  using E = Exponent<T>;
  const Vec<T> y = at_least(at_most(x, E::kOverflow * kLog2E), E::kUnderflow * kLog2E);
  const Rounded<T> n = rounded(y + Vec<T>(E::kRounder));
  const Vec<T> r = y - n.n;
  if constexpr (sizeof(T) == 8) return scale(exp_of_reduced(r * Vec<T>(kLn2)), n);
  const Vec<T> p = polynomial(r, 0.6931471879275457908, 0.24022649794087003315, 0.055503574322486443813,
                              0.0096182375547282239742, 0.0013390735569575005689, 0.00015403501890854690312);
  return scale(fma(p, r, Vec<T>(1)), n);
}

/// 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)): half, so that 2^n does not overflow; e^r - 1 itself where n is 0. The
/// larger terms are added first, without the rounding error of r.
template <class T>
inline Vec<T> expm1(Vec<T> x) {
  const Vec<T> half(0.5), one(1);
  const auto [n, high, r] = reduce_exponent(at_least(at_most(x, Exponent<T>::kOverflow), -40));
  const Vec<T> low = mad(exp_rest(r), r * r, n.n * Vec<T>(-Exponent<T>::kLn2Low));  // e^r - 1 = high + low
  const Vec<T> size = power_of_two(Rounded<T>{n.bits - one, n.n});
  const Vec<T> scaled = mad(size, low, mad(size, high, size - half));
  return copysign(select(n.n == Vec<T>(0), high + low, scaled + scaled), x);
}

/// (tanh(x) - x) / x^3 of t = x^2
inline FloatVec tanh_rest(FloatVec t) {
  return polynomial(t, -0.33333298005014648145, 0.13331924221459991138, -0.053783839078520863114,
                    0.020796002318355774242, -0.0058951941525741688792);
}
inline DoubleVec tanh_rest(DoubleVec t) {
  return polynomial(t, -0.33333333333333325048, 0.13333333333331760586, -0.053968253967211117198,
                    0.021869488501410358244, -0.0088632348499395367604, 0.0035921195384223809902,
                    -0.0014557632573847215513, 0.00058961859215939685321, -0.00023750230715025018958,
                    0.000092470610711073492558, -0.000031159163532623084187, 6.494605757102554413e-6);
}
/// 1 - 2 / (e^2|x| + 1), an odd polynomial for small |x|.
template <class T>
inline Vec<T> tanh(Vec<T> x) {
  if constexpr (sizeof(T) == 4)
    if (target().avx512) return by_pieces(x, kTanhPieces);
  const Vec<T> a = absolute(x), t = a * a, one(1);
  const auto [n, high, r] = reduce_exponent(at_most(a + a, 40));
  const Vec<T> large = one - Vec<T>(2) / mad(exp_of_reduced(r), power_of_two(n), one);
  return copysign(select(a < Vec<T>(0.6), mad(a * t, tanh_rest(t), a), large), x);
}

/// 1 / x to 14 bits or more, for what is put right afterwards.
template <class T>
inline Vec<T> near_reciprocal(Vec<T> x) {
  if constexpr (sizeof(T) == 4)
    if (target().avx512) return reciprocal14(x);
  return Vec<T>(1) / x;
}

/// 1 / (1 + e^-x), never through the exponential of a large number. The quotient's error and that of the sum are taken
/// off again, which leaves that of the exponential.
template <class T>
inline Vec<T> sigmoid(Vec<T> x) {
  const Vec<T> one(1), minus = x | sign_bit<T>();  // -|x|, and e^minus cannot overflow
  const auto reduced = reduce_exponent(at_least(minus, Exponent<T>::kUnderflow));
  const Vec<T> e = scale(exp_of_reduced(reduced.r), reduced.n), numerator = select(x >= Vec<T>(0), one, e);
  const Vec<T> sum = one + e, lost = e - (sum - one), inverse = near_reciprocal(sum), y = numerator * inverse;
  return mad(mad(-y, lost, fma(-y, sum, numerator)), inverse, y);
}

/// x + x p(x^2) for small |x|, else 1 - e^p(|x|), whose exponential is erfc.
inline FloatVec erf(FloatVec x) {
  if (target().avx512) return by_pieces(x, kErfPieces);
  const FloatVec a = absolute(x), t = a * a, one(1);
  const FloatVec p = polynomial(t, 0.12837914580540088932, -0.37612468631122791565, 0.11281552485392931867,
                                -0.0267570357031767356, 0.0049791319553691335235, -0.00059194274786980467439);
  const FloatVec exponent = polynomial(at_most(a, 4), -0.00021134094787848192077, -1.1276110877324668873,
                                       -0.63729063227060094543, -0.10383671109192225002, 0.022181285672111468642,
                                       -0.0030317927640244721952, 0.00019477467725222137686);
  const auto [n, high, r] = reduce_exponent(exponent);
  const FloatVec large = one - exp_of_reduced(r) * power_of_two(n);
  return copysign(select(a < FloatVec(0.9375), mad(a, p, a), large), x);
}

}  // namespace
}  // namespace kfusion::cpu::ir
