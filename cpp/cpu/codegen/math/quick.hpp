// Functions for bfloat16 (Idioms::quick), whose rounding hides their errors: 2^-17 of the result at most, so that it is
// at most 0.502 units in the last place off. They need AVX-512.
#pragma once
#include "cpu/codegen/math/exp.hpp"

namespace kfusion::cpu::ir {
namespace {

/// 2^floor(x) 2^r, r = x - floor(x). Infinities have r = 0.
inline FloatVec quick_exp2(const FloatVec& x) {
  const FloatVec r = above_floor(x);
  const FloatVec p =
      polynomial(r, 0.69304483125183028451, 0.24128024982461699388, 0.052242438575535924423, 0.013426686366570285243);
  return scalef(mad(p, r, FloatVec(1)), x);
}
inline FloatVec quick_exp(const FloatVec& x) { return quick_exp2(x * FloatVec(kLog2E)); }
/// e^min(x, 0) / (1 + e^-|x|): nothing overflows.
inline FloatVec quick_sigmoid(const FloatVec& x) {
  const FloatVec one(1), e = quick_exp(x | sign_bit<float>()), numerator = select(x >= FloatVec(0), one, e);
  const FloatVec sum = one + e, inverse = reciprocal14(sum), y = numerator * inverse;
  return mad(mad(-y, sum, numerator), inverse, y);
}

}  // namespace
}  // namespace kfusion::cpu::ir
