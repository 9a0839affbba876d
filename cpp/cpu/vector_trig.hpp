// Sine and cosine.
//
// x = n pi / 2 + r with |r| <= pi / 4, pi / 2 in three parts (W. J. Cody and W. Waite, "Software Manual for the
// Elementary Functions", 1980); of sin r and cos r, polynomials, n's last bits choose. Coefficients:
// fit_polynomials.py.
#pragma once
#include "cpu/vector_exp.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// Beyond it, n is no longer exact enough; such a vector goes through libm.
constexpr float kLargeAngle = 0x1p17f;

/// sin(x + quarters pi / 2) for |x| <= kLargeAngle.
KF_INLINE FloatVec sine_from(FloatVec x, int quarters) {
  const FloatVec rounder(Exponent<float>::kRounder), rounded = mad(x, FloatVec(0.63661977236758134308), rounder),
                                                     n = rounded - rounder;
  const FloatVec first = fma(n, FloatVec(-0x1.921fb6p0), x), second = fma(n, FloatVec(0x1.777a5cp-25), first);
  const FloatVec r = fma(n, FloatVec(0x1.ee59dap-50), second), t = r * r;
  const FloatVec sine =
      mad(r * t, polynomial(t, -0.16666654874694441895, 0.0083321735961168599768, -0.00019516661652689025138), r);
  const FloatVec cosine =
      mad(t * t, polynomial(t, 0.041666646748557793543, -0.0013887361483909654455, 0.000024437733981970095674),
          mad(t, FloatVec(-0.5), FloatVec(1)));
  const Int32Vec quadrant = Int32Vec::bits(rounded) + Int32Vec(quarters);
  const FloatVec y = select((quadrant & Int32Vec(1)) != Int32Vec(0), cosine, sine);
  return bits_xor(y, FloatVec::bits((quadrant & Int32Vec(2)) << 30));
}

KF_INLINE FloatVec sin(FloatVec x) {
  if (any(absolute(x) > FloatVec(kLargeAngle))) [[unlikely]]
    return sin_of_large(x);
  return select(x == FloatVec(0), x, sine_from(x, 0));
}
KF_INLINE FloatVec cos(FloatVec x) {
  if (any(absolute(x) > FloatVec(kLargeAngle))) [[unlikely]]
    return cos_of_large(x);
  return sine_from(x, 1);
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
