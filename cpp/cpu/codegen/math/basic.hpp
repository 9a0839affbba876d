// What functions of vectors are made of: bits, rounding, fused steps, double precision for floats. A vector is a value
// of a kernel that is being written (codegen/instructions/vector.hpp): a function is called to append its instructions,
// so it has no `if` and no loop on values, but select, rarely, repeat_while_any.
#pragma once
#include "cpu/codegen/instructions/machine.hpp"

namespace kfusion::cpu::ir {
namespace {

// ---- signs and rounding -----------------------------------------------------------------------------------------

template <class T>
inline Vec<T> sign_bit() {
  return Vec<T>::bits(Vec<typename IntegerOf<sizeof(T)>::Type>(1) << (8 * sizeof(T) - 1));
}
template <class T>
inline Vec<T> absolute(Vec<T> x) {
  if constexpr (kIsFloat<T>) return x & ~sign_bit<T>();
  if constexpr (kIsBool<T>) return x;
  return select(x < Vec<T>(0), -x, x);
}
template <class T>
inline Vec<T> copysign(Vec<T> x, Vec<T> y) {
  return (x & ~sign_bit<T>()) | (y & sign_bit<T>());
}
/// -1, 0 or 1; NaN for NaN.
template <class T>
inline Vec<T> sign(Vec<T> x) {
  const Vec<T> zero(0);
  return select(x > zero, Vec<T>(1), select(x < zero, Vec<T>(-1), select(x == zero, zero, x)));
}

/// max(x, 0), of zeros either; NaN stays NaN.
template <class T>
inline Vec<T> relu(Vec<T> x) {
  if constexpr (kIsFloat<T>)
    return relu_of_floats(x);
  else
    return select(x < Vec<T>(0), Vec<T>(0), x);
}

/// Halves to even. What is at least 2^23 (2^52) is an integer already; a smaller number loses its fraction when that
/// is added and taken off again.
template <class T>
inline Vec<T> rint(Vec<T> x) {
  if constexpr (!kIsFloat<T>) {
    return x;
  } else {
    if (has_rounding()) return round_to_even(x);
    const Vec<T> large(sizeof(T) == 8 ? 0x1p52 : 0x1p23), a = absolute(x);
    return select(a < large, copysign((a + large) - large, x), x);
  }
}
template <class T>
inline Vec<T> floor(Vec<T> x) {
  if constexpr (!kIsFloat<T>) return x;
  const Vec<T> r = rint(x);
  return copysign(select(r > x, r - Vec<T>(1), r), x);  // -0 where x is
}
template <class T>
inline Vec<T> ceil(Vec<T> x) {
  if constexpr (!kIsFloat<T>) return x;
  const Vec<T> r = rint(x);
  return copysign(select(r < x, r + Vec<T>(1), r), x);
}
template <class T>
inline Vec<T> trunc(Vec<T> x) {
  if constexpr (!kIsFloat<T>) return x;
  const Vec<T> a = absolute(x), r = rint(a);
  return copysign(select(r > a, r - Vec<T>(1), r), x);
}

// ---- tests ------------------------------------------------------------------------------------------------------

template <class T>
inline auto isinf(Vec<T> x) {
  if constexpr (kIsFloat<T>)
    return absolute(x) == Vec<T>(__builtin_inf());
  else
    return x != x;
}
template <class T>
inline auto isfinite(Vec<T> x) {
  if constexpr (kIsFloat<T>)
    return absolute(x) < Vec<T>(__builtin_inf());
  else
    return x == x;
}

// ---- the steps that polynomials are made of ----------------------------------------------------------------------

/// x in two parts of 26 bits, for |x| < 2^996.
struct Halves {
  DoubleVec high, low;
};
inline Halves halves(DoubleVec x) {
  const DoubleVec scaled = x * DoubleVec(0x1p27 + 1), high = scaled - (scaled - x);
  return {high, x - high};
}

/// x * y + z of the exact product. Where there is no such instruction, floats take it in double precision, rounded once
/// but for the rarest of ties.
inline FloatVec fma(FloatVec x, FloatVec y, FloatVec z) {
  if (target().fma) return mad(x, y, z);
  return through_doubles([](DoubleVec a, DoubleVec b, DoubleVec c) { return a * b + c; }, x, y, z);
}
/// Else the errors of the product and of the sum, found exactly, are added at the end (T. J. Dekker, "A floating-point
/// technique for extending the available precision", 1971).
inline DoubleVec fma(DoubleVec x, DoubleVec y, DoubleVec z) {
  if (target().fma) return mad(x, y, z);
  const auto [xh, xl] = halves(x);
  const auto [yh, yl] = halves(y);
  const DoubleVec product = x * y, of_product = ((xh * yh - product) + xh * yl + xl * yh) + xl * yl;
  const DoubleVec sum = product + z, added = sum - product, of_sum = (product - (sum - added)) + (z - added);
  return sum + (of_sum + of_product);
}

/// c0 + c1 x + c2 x^2 + ... by Horner's rule.
template <class T>
inline Vec<T> polynomial(Vec<T>, double c) {
  return Vec<T>(c);
}
template <class T, class... More>
inline Vec<T> polynomial(Vec<T> x, double c, More... more) {
  return mad(polynomial(x, more...), x, Vec<T>(c));
}

}  // namespace
}  // namespace kfusion::cpu::ir
