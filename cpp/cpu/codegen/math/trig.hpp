// Sine, cosine and tangent.
//
// x = n pi / 2 + r with |r| <= pi / 4, pi / 2 in three parts (W. J. Cody and W. Waite, "Software Manual for the
// Elementary Functions", 1980); of sin r and cos r, polynomials, n's last bits choose. Coefficients:
// fit_polynomials.py.
#pragma once
#include "cpu/codegen/math/exp.hpp"

namespace kfusion::cpu::ir {
namespace {

/// The largest angle for which n is exact enough; elements beyond it go through libm.
constexpr float kLargeAngle = 0x1p17f;
constexpr double kTwoOverPi = 0.63661977236758134308;

template <class T>
inline Vec<T> sine_of_reduced(Vec<T> r) {
  const Vec<T> t = r * r;
  return mad(r * t, polynomial(t, -0.16666654874694441895, 0.0083321735961168599768, -0.00019516661652689025138), r);
}
template <class T>
inline Vec<T> cosine_of_reduced(Vec<T> r) {
  const Vec<T> t = r * r;
  const Vec<T> p = polynomial(t, 0.041666646748557793543, -0.0013887361483909654455, 0.000024437733981970095674);
  return mad(t * t, p, mad(t, Vec<T>(-0.5), Vec<T>(1)));
}

/// sin(x + quarters pi / 2) for |x| <= kLargeAngle.
inline FloatVec sine_from(FloatVec x, int quarters) {
  const auto n = rounded(mad(x, FloatVec(kTwoOverPi), FloatVec(Exponent<float>::kRounder)));
  const FloatVec first = fma(n.n, FloatVec(-0x1.921fb6p0), x), second = fma(n.n, FloatVec(0x1.777a5cp-25), first);
  const FloatVec r = fma(n.n, FloatVec(0x1.ee59dap-50), second);
  const Int32Vec quadrant = Int32Vec::bits(n.bits) + Int32Vec(quarters);
  const FloatVec y = select((quadrant & Int32Vec(1)) != Int32Vec(0), cosine_of_reduced(r), sine_of_reduced(r));
  return y ^ FloatVec::bits((quadrant & Int32Vec(2)) << 30);
}

/// y, but f(x) where x is large: not for the others beside it, whose bits do not depend on their neighbours.
template <class F>
inline FloatVec where_large(FloatVec x, const F& f, FloatVec y) {
  return rarely(absolute(x) > FloatVec(kLargeAngle), [&] { return f(x); }, y);
}
inline FloatVec sin(FloatVec x) { return where_large(x, sin_of_large, select(x == FloatVec(0), x, sine_from(x, 0))); }
inline FloatVec cos(FloatVec x) { return where_large(x, cos_of_large, sine_from(x, 1)); }

/// The tangent in double precision, as in wide.hpp.
inline DoubleVec tan_of(DoubleVec x) {
  const auto n = rounded(mad(x, DoubleVec(kTwoOverPi), DoubleVec(Exponent<double>::kRounder)));
  const DoubleVec r = mad(n.n, DoubleVec(-0x1.0b4611a6p-34), mad(n.n, DoubleVec(-0x1.921fb544p0), x));
  const auto odd = (Int64Vec::bits(n.bits) & Int64Vec(1)) != Int64Vec(0);
  const DoubleVec sine = sine_of_reduced(r), cosine = cosine_of_reduced(r);
  return select(odd, -cosine, sine) / select(odd, sine, cosine);
}
inline FloatVec tan(FloatVec x) {
  const FloatVec y = through_doubles([](DoubleVec d) { return tan_of(d); }, x);
  return where_large(x, tan_of_large, select(x == FloatVec(0), x, y));
}

}  // namespace
}  // namespace kfusion::cpu::ir
