// Odd functions that saturate, by tables in registers: |x| falls into one of 32 pieces, a quarter of an octave each
// (the first from 0 on), and f(|x|) is a polynomial about the piece's centre. No quotient, no exponential: in the
// first-level cache tanh takes 0.8 of the time, erf 0.7.
#pragma once
#include "cpu/codegen/math/basic.hpp"

namespace kfusion::cpu::ir {
namespace {

struct Pieces {
  float low, top;  ///< the second piece begins at 1.25 low; from `top` on the function is f(top)
  alignas(64) float centre[32], value[32], slope[5][32];
};

/// f(c) + t (s_0 + s_1 t + ...), t = |x| - c; in the first piece |x| + |x| (s_0 + ...).
inline FloatVec by_pieces(FloatVec x, const Pieces& p) {
  constexpr int kQuarterOctave = 21;  // bits below it
  const FloatVec a = at_most(absolute(x), p.top);
  const Int32Vec none(0), place = (Int32Vec::bits(a) - Int32Vec::bits(FloatVec(p.low))) >> kQuarterOctave;
  const Int32Vec piece = select(place < none, none, place);  // of NaN any: the look-up takes the last five bits
  const FloatVec t = a - look_up(p.centre, piece);
  FloatVec slope = look_up(p.slope[4], piece);
  for (int k = 3; k >= 0; --k) slope = mad(slope, t, look_up(p.slope[k], piece));
  return copysign(fma(slope, t, select(piece == none, a, look_up(p.value, piece))), x);
}

}  // namespace
}  // namespace kfusion::cpu::ir

#include "cpu/codegen/math/pieces_tables.hpp"
