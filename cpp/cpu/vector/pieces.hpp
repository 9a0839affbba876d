// Odd functions that saturate, by tables in registers: |x| falls into one of 32 pieces, a quarter of an octave each
// (the first from 0 on), and f(|x|) is a polynomial about the piece's centre. No quotient, no exponential: in the
// first-level cache tanh takes 0.8 of the time, erf 0.7.
#pragma once
#include "cpu/vector/basic.hpp"

#if defined(__AVX512F__)
namespace kfusion::cpu {
namespace KF_ISA {
namespace {

struct Pieces {
  float low, top;  ///< the second piece begins at 1.25 low; from `top` on the function is f(top)
  alignas(64) float centre[32], value[32], slope[5][32];
};

KF_INLINE FloatVec entry(const float (&table)[32], __m512i piece) {
  return FloatVec((F32s)_mm512_permutex2var_ps(_mm512_load_ps(table), piece, _mm512_load_ps(table + 16)));
}

/// f(c) + t (s_0 + s_1 t + ...), t = |x| - c; in the first piece |x| + |x| (s_0 + ...).
KF_INLINE FloatVec by_pieces(FloatVec x, const Pieces& p) {
  constexpr int kQuarterOctave = 21;  // bits below it
  const FloatVec a = at_most(absolute(x), p.top);
  const Int32Vec none(0), place = (Int32Vec::bits(a) - Int32Vec::bits(FloatVec(p.low))) >> kQuarterOctave;
  const Int32Vec piece = select(place < none, none, place);  // of NaN any: the look-up takes the last five bits
  const auto at = (__m512i)piece.v;
  const FloatVec t = a - entry(p.centre, at);
  FloatVec slope = entry(p.slope[4], at);
  for (int k = 3; k >= 0; --k) slope = mad(slope, t, entry(p.slope[k], at));
  return copysign(fma(slope, t, select(piece == none, a, entry(p.value, at))), x);
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu

#include "cpu/vector/pieces_tables.hpp"
#endif
