// Functions of floats that are computed in double precision and rounded once: short formulas whose rounding errors and
// overflows double precision absorbs. Coefficients: fit_polynomials.py; identities: NIST's Digital Library of
// Mathematical Functions, chapter 4.
#pragma once
#include "cpu/codegen/math/log.hpp"

namespace kfusion::cpu::ir {
namespace {

constexpr double kPi = 3.1415926535897932385;

#define KF_THROUGH_DOUBLES(name, expression)                            \
  inline FloatVec name(FloatVec of) {                                   \
    return through_doubles([](DoubleVec x) { return expression; }, of); \
  }
#define KF_THROUGH_DOUBLES_OF_TWO(name, expression)                                             \
  inline FloatVec name(FloatVec first, FloatVec second) {                                       \
    return through_doubles([](DoubleVec x, DoubleVec y) { return expression; }, first, second); \
  }

/// f(|x|) with x's sign; x + cubic x^3 where |x| is so small that f loses digits.
inline DoubleVec odd(DoubleVec x, double cubic, DoubleVec f) {
  const DoubleVec small = mad(x * x * x, DoubleVec(cubic), x);
  return copysign(select(absolute(x) < DoubleVec(0x1p-10), small, f), x);
}

// ---- hyperbolic functions and their inverses ----------------------------------------------------------------------

inline DoubleVec sinh_of(DoubleVec x) {
  const DoubleVec e = exp(absolute(x));
  return odd(x, 1. / 6, DoubleVec(0.5) * (e - DoubleVec(1) / e));
}
inline DoubleVec cosh_of(DoubleVec x) {
  const DoubleVec e = exp(absolute(x));
  return DoubleVec(0.5) * (e + DoubleVec(1) / e);
}
inline DoubleVec asinh_of(DoubleVec x) {
  const DoubleVec a = absolute(x);
  return odd(x, -1. / 6, log(a + sqrt(mad(a, a, DoubleVec(1)))));
}
inline DoubleVec acosh_of(DoubleVec x) {
  const DoubleVec one(1), y = log(x + sqrt((x - one) * (x + one)));
  return select(x < one, DoubleVec(__builtin_nan("")), y);
}
inline DoubleVec atanh_of(DoubleVec x) {
  const DoubleVec a = absolute(x), one(1);
  return odd(x, 1. / 3, DoubleVec(0.5) * log((one + a) / (one - a)));
}
KF_THROUGH_DOUBLES(sinh, sinh_of(x))
KF_THROUGH_DOUBLES(cosh, cosh_of(x))
KF_THROUGH_DOUBLES(asinh, asinh_of(x))
KF_THROUGH_DOUBLES(acosh, acosh_of(x))
KF_THROUGH_DOUBLES(atanh, atanh_of(x))

// ---- inverse trigonometric functions ------------------------------------------------------------------------------

/// The arc tangent of 0 <= x <= 1.
inline DoubleVec atan_to_one(DoubleVec x) {
  const DoubleVec t = x * x;
  const DoubleVec p = polynomial(t, -0.33333299085645671125, 0.19998548161201419534, -0.14264240432621722174,
                                 0.10952179869733864409, -0.084034349208533966633, 0.057957358252652503128,
                                 -0.031177636157551721575, 0.010914504802161204033, -0.0017936014407431737679);
  return mad(x * t, p, x);
}
inline DoubleVec atan_of(DoubleVec x) {
  const DoubleVec a = absolute(x), one(1);
  const auto large = a > one;
  const DoubleVec y = atan_to_one(select(large, one / a, a));
  return copysign(select(large, DoubleVec(kPi / 2) - y, y), x);
}
/// The angle of the point (x, y), from the smaller of |x| and |y| over the larger.
inline DoubleVec atan2_of(DoubleVec y, DoubleVec x) {
  const DoubleVec a = absolute(y), b = absolute(x), zero(0), one(1);
  const auto steep = a > b;
  const DoubleVec larger = select(steep, a, b), quotient = select(steep, b, a) / larger;
  const DoubleVec slope = select(larger == zero, zero, select(a == b, one, quotient));
  const DoubleVec angle = atan_to_one(slope), upper = select(steep, DoubleVec(kPi / 2) - angle, angle);
  const DoubleVec turned = select(copysign(one, x) < zero, DoubleVec(kPi) - upper, upper);
  return select(x != x || y != y, x + y, copysign(turned, y));
}

/// asin(s) where s = |x|, or, where `large`, s = sqrt((1 - |x|) / 2), of which pi / 2 - 2 asin(s) is asin |x|.
struct HalfAngle {
  Mask<8> large;
  DoubleVec asin;
};
inline HalfAngle half_angle(DoubleVec x) {
  const DoubleVec a = absolute(x), half(0.5);
  const auto large = a > half;
  const DoubleVec t = select(large, half - half * a, a * a), s = select(large, sqrt(t), a);
  const DoubleVec p = polynomial(t, 0.16666659990984545168, 0.075005041892723958469, 0.04451695536098258986,
                                 0.031807711111277253927, 0.014438649636928887317, 0.037516366551809093251);
  return {large, mad(s * t, p, s)};
}
inline DoubleVec asin_of(DoubleVec x) {
  const auto [large, y] = half_angle(x);
  return copysign(select(large, DoubleVec(kPi / 2) - (y + y), y), x);
}
inline DoubleVec acos_of(DoubleVec x) {
  const auto [large, y] = half_angle(x);
  const DoubleVec beyond = select(x < DoubleVec(0), DoubleVec(kPi) - (y + y), y + y);
  return select(large, beyond, DoubleVec(kPi / 2) - copysign(y, x));
}
KF_THROUGH_DOUBLES(atan, atan_of(x))
KF_THROUGH_DOUBLES(asin, asin_of(x))
KF_THROUGH_DOUBLES(acos, acos_of(x))
KF_THROUGH_DOUBLES_OF_TWO(atan2, atan2_of(x, y))

// ---- powers -------------------------------------------------------------------------------------------------------

/// e^(y log |x|), with C's rules for signs, zeros, infinities and NaN (C17, F.10.4.4).
inline DoubleVec power_of(DoubleVec x, DoubleVec y) {
  const DoubleVec zero(0), one(1), a = absolute(x), half = y * DoubleVec(0.5);
  const auto whole = rint(y) == y, odd_power = whole && rint(half) != half;
  const DoubleVec size = select(a == one && y == y, one, exp(y * log(a)));
  const DoubleVec positive = select(copysign(one, x) < zero && odd_power, -size, size);
  const auto no_number = x < zero && !whole && x >= DoubleVec(-0x1p1023);
  return select(x == one || y == zero, one, select(no_number, DoubleVec(__builtin_nan("")), positive));
}
/// Newton's step makes y exact: y + (x / y^2 - y) / 3.
inline DoubleVec cbrt(DoubleVec x) {
  const DoubleVec a = absolute(x), third(1. / 3), y = exp(log(a) * third), better = mad(a / (y * y) - y, third, y);
  return select(a == a + a, x, copysign(better, x));
}
/// Gives the same bits for (y, x), as `kCommutes` says: the system's function does not.
inline DoubleVec hypot(DoubleVec x, DoubleVec y) {
  const auto is_less = absolute(x) < absolute(y);
  return hypot_of_ordered(select(is_less, y, x), select(is_less, x, y));
}
inline DoubleVec hypot_of(DoubleVec x, DoubleVec y) {
  const DoubleVec infinity(__builtin_inf());
  return select(absolute(x) == infinity || absolute(y) == infinity, infinity, sqrt(mad(x, x, y * y)));
}
KF_THROUGH_DOUBLES(cbrt, cbrt(x))
KF_THROUGH_DOUBLES_OF_TWO(hypot, hypot_of(x, y))
KF_THROUGH_DOUBLES_OF_TWO(power_of_floats, power_of(x, y))

// ---- others -------------------------------------------------------------------------------------------------------

/// log(exp(x) + exp(y)): the larger plus what the smaller adds, so that nothing overflows.
inline DoubleVec logaddexp(DoubleVec x, DoubleVec y) {
  const DoubleVec larger = select(x > y, x, y), added = log1p(exp(-absolute(x - y)));
  return select(x == y, x + DoubleVec(kLn2), larger + added);
}
KF_THROUGH_DOUBLES_OF_TWO(logaddexp, logaddexp(x, y))

/// x - trunc(x / y) y, exact: quotients below 2^28 are, and so is their product with y. Larger ones go through libm.
inline DoubleVec remainder_of(DoubleVec x, DoubleVec y) {
  const DoubleVec r = x - trunc(x / y) * y;
  return select(absolute(y) == DoubleVec(__builtin_inf()) && isfinite(x), x, r);
}
inline FloatVec remainder_of_division(FloatVec x, FloatVec y) {
  const FloatVec r = through_doubles([](DoubleVec a, DoubleVec b) { return remainder_of(a, b); }, x, y);
  return rarely(absolute(x / y) > FloatVec(0x1p28), [&] { return remainder_of_large(x, y); }, r);
}

#undef KF_THROUGH_DOUBLES
#undef KF_THROUGH_DOUBLES_OF_TWO

}  // namespace
}  // namespace kfusion::cpu::ir
