// Logarithms.
//
// log x = k ln 2 + log(1 + f) with 3/4 <= 1 + f < 3/2 and x = 2^k (1 + f). For floats, log(1 + f) = f - f^2 / 2 +
// f^3 p(f) with a polynomial p (W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980). For
// doubles it is 2 atanh(s) with s = f / (2 + f), a polynomial in s^2, of half the degree (K. C. Ng's formula in Sun's
// fdlibm, 1993).
// Coefficients: fit_polynomials.py.
#pragma once
#include "cpu/codegen/math/exp.hpp"

namespace kfusion::cpu::ir {
namespace {

/// x = 2^k m, 3/4 <= m < 3/2.
template <class T>
struct Binary {
  Vec<T> k, m;
};

/// Takes a positive normal number. Its bits less those of 3/4 have k as exponent; k becomes a number when it stands in
/// the last bits of kRounder.
template <class T>
inline Binary<T> binary_of_normal(Vec<T> x) {
  using E = Exponent<T>;
  using Integers = Vec<typename IntegerOf<sizeof(T)>::Type>;
  const Integers from = Integers::bits(Vec<T>(0.75)), offset = Integers(E::kBias) << E::kFractionBits;
  const Integers bits = Integers::bits(x), k = Integers((bits - from) + offset).logical_right(E::kFractionBits);
  const Vec<T> rounder(E::kRounder + E::kBias), number = Vec<T>::bits(Integers::bits(Vec<T>(E::kRounder)) + k);
  return {number - rounder, Vec<T>::bits(bits - (k << E::kFractionBits) + offset)};
}

template <class T>
inline Binary<T> binary(Vec<T> x) {
  if (target().avx512) {  // of 0, infinity, negative numbers and NaN: what makes the logarithms right
    const Vec<T> m = mantissa_of(x);
    return {exponent_of(x) - exponent_of(m), m};
  }
  constexpr double kSmallest = sizeof(T) == 8 ? 0x1p-1022 : 0x1p-126, kShift = Exponent<T>::kFractionBits;
  constexpr double kScale = sizeof(T) == 8 ? 0x1p52 : 0x1p23;
  const auto subnormal = x < Vec<T>(kSmallest);
  const auto [k, m] = binary_of_normal(select(subnormal, x * Vec<T>(kScale), x));
  return {select(subnormal, k - Vec<T>(kShift), k), m};
}
/// y, but the logarithms of 0, infinity, negative numbers and NaN.
template <class T>
inline Vec<T> with_special_logarithms(Vec<T> x, Vec<T> y) {
  if (target().avx512) return y;
  const Vec<T> zero(0), infinity(__builtin_inf());
  const Vec<T> special = select(x == zero, -infinity, select(x < zero, Vec<T>(__builtin_nan("")), x));
  return select(x > zero && x < infinity, y, special);
}

/// log(1 + f) = f - half_square + rest, the first of them f^2 / 2
template <class T>
struct LogTerms {
  Vec<T> half_square, rest;
};
inline LogTerms<float> log_terms(FloatVec f) {
  const FloatVec square = f * f;
  const FloatVec p =
      polynomial(f, 0.3333344912340791401, -0.25000095919794623103, 0.19990860896837589408, -0.1664730980078269944,
                 0.14478394547069526811, -0.13161209730844738622, 0.10463053953948957465, -0.045074993317738348916);
  return {FloatVec(0.5) * square, square * f * p};
}
inline LogTerms<double> log_terms(DoubleVec f) {
  const DoubleVec s = f / (DoubleVec(2) + f), t = s * s, half_square = DoubleVec(0.5) * f * f;
  const DoubleVec p =
      polynomial(t, 0.66666666666666591856, 0.40000000000059832002, 0.28571428555083802709, 0.22222224379171233089,
                 0.18181660994368548198, 0.15391269363058043666, 0.13170981910094288337, 0.13860586214853885772);
  return {half_square, s * mad(t, p, half_square)};  // 2 s = f - s f, s f = f^2 / 2 - s f^2 / 2
}

/// k ln 2 + log(1 + f)
template <class T>
inline Vec<T> log_of(Vec<T> k, Vec<T> f) {
  using E = Exponent<T>;
  const auto [half_square, rest] = log_terms(f);
  return mad(k, Vec<T>(E::kLn2High), f - (half_square - mad(k, Vec<T>(E::kLn2Low), rest)));
}

template <class T>
inline Vec<T> log(Vec<T> x) {
  const auto [k, m] = binary(x);
  return with_special_logarithms(x, log_of(k, m - Vec<T>(1)));
}

/// The base of a logarithm, given by those of 2 and e, each in two parts: k high is exact.
struct LogBase {
  double high, low, e_high, e_low;
};
template <class T>
inline Vec<T> log_to_base(Vec<T> x, const LogBase& base) {
  const auto [k, m] = binary(x);
  const Vec<T> f = m - Vec<T>(1);
  const auto [half_square, rest] = log_terms(f);
  const Vec<T> l = f - half_square, l_low = ((f - l) - half_square) + rest;  // log m, in two parts
  const Vec<T> k_low = base.low == 0 ? Vec<T>(0) : k * Vec<T>(base.low);     // k may be infinite
  const Vec<T> low = mad(l, Vec<T>(base.e_low), mad(l_low, Vec<T>(base.e_high), k_low));
  return with_special_logarithms(x, fma(l, Vec<T>(base.e_high), k * Vec<T>(base.high)) + low);
}
template <class T>
constexpr LogBase kBase2 = {1, 0, 0x1.715476p0, kLog2E - 0x1.715476p0};
template <>
constexpr LogBase kBase2<double> = {1, 0, kLog2E, 0x1.777d0ffda0d24p-56};
template <class T>
constexpr LogBase kBase10 = {0x1.344p-2, 0x1.3509f79fef312p-18, 0x1.bcb7b2p-2, 0x1.bcb7b1526e50ep-2 - 0x1.bcb7b2p-2};
template <>
constexpr LogBase kBase10<double> = {0x1.34413509p-2, 0x1.ef3fde623e256p-35, 0x1.bcb7b1526e50ep-2,
                                     0x1.95355baaafad3p-57};

template <class T>
inline Vec<T> log2(Vec<T> x) {
  return log_to_base(x, kBase2<T>);
}
template <class T>
inline Vec<T> log10(Vec<T> x) {
  return log_to_base(x, kBase10<T>);
}

/// 1 + x loses digits of x, so f = 2^-k x + (2^-k - 1), rounded once, with k that of the rounded sum. A number that
/// large that 1 does not matter is taken as it is.
template <class T>
inline Vec<T> log1p(Vec<T> x) {
  using E = Exponent<T>;
  const Vec<T> one(1), zero(0), infinity(__builtin_inf());
  const auto large = x > Vec<T>(0x1p64);
  const Vec<T> y = select(large, x * Vec<T>(0x1p-64), x), added = select(large, zero, one);
  const Vec<T> k = binary_of_normal(y + added).k;
  const Vec<T> unit = power_of_two(rounded(Vec<T>(E::kRounder) - k)), f = fma(y, unit, added * unit - one);
  const Vec<T> result = log_of(select(large, k + Vec<T>(64), k), f);
  const Vec<T> outside = select(x == -one, -infinity, select(x < -one, Vec<T>(__builtin_nan("")), x));
  return select(x > -one && x < infinity, copysign(result, x), outside);
}

}  // namespace
}  // namespace kfusion::cpu::ir
