// The functions of scalar_math.hpp and <cmath> that expressions of ops.def use, of vectors: the same names, so that an
// expression compiles as it stands for either.
#pragma once
#include "cpu/codegen/math/trig.hpp"
#include "cpu/codegen/math/wide.hpp"

namespace kfusion::cpu::ir {
namespace {

// ---- division of integers, and its floats' counterparts ----------------------------------------------------------

/// Has y's sign, or is a zero of y's sign. By 0: NaN, or 0 for integers.
template <class T>
inline Vec<T> remainder(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  const V zero(0);
  if constexpr (kIsFloat<T>) {
    const V r = remainder_of_division(x, y);
    return select(r == zero, copysign(zero, y), select((r < zero) != (y < zero), r + y, r));
  } else {
    const V r = x % select(y == zero || y == V(-1), V(1), y);  // the smallest integer by -1 traps
    return select(r != zero && (r < zero) != (y < zero), r + y, r);
  }
}

/// floor(x / y) of the exact quotient. By 0: x / y, or 0 for integers; the smallest integer by -1 is itself.
template <class T>
inline Vec<T> floor_divide(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  const V zero(0), one(1);
  if constexpr (kIsFloat<T>) {
    const V r = remainder_of_division(x, y);
    V q = (x - r) / y;  // an integer but for its rounding
    q = select(r != zero && (r < zero) != (y < zero), q - one, q);
    const V below = floor(q), nearest = select(q - below > V(0.5), below + one, below);
    return select(y == zero, x / y, select(q == zero, copysign(zero, x / y), nearest));
  } else {
    const V by = select(y == zero || y == V(-1), one, y), q = x / by, r = x - q * by;
    const V floored = select(r != zero && (r < zero) != (y < zero), q - one, q);
    return select(y == zero, zero, select(y == V(-1), -x, floored));
  }
}

/// What a power is made of, while its exponent is used up bit by bit.
template <class T>
struct PowerSteps {
  Vec<T> v[3];
  inline Vec<T> result() const { return v[0]; }
  inline Vec<T> left() const { return v[1]; }
  inline Vec<T> square() const { return v[2]; }
};

/// x to the power of y. Powers of integers wrap; negative ones are truncated, so 0 but for bases of 1 and -1.
template <class T>
inline Vec<T> power(Vec<T> x, Vec<T> y) {
  using V = Vec<T>;
  if constexpr (kIsFloat<T>) {
    return power_of_floats(x, y);
  } else {
    const V zero(0), one(1), minus(-1);
    const auto odd = (y & one) != zero;
    const V inverse = select(x == one || (x == minus && !odd), one, select(x == minus, minus, zero));
    const auto more = [&](const PowerSteps<T>& p) { return p.left() != zero; };
    const auto step = [&](const PowerSteps<T>& p) {
      const V result = select((p.left() & one) != zero, p.result() * p.square(), p.result());
      return PowerSteps<T>{{result, p.left() >> 1, p.square() * p.square()}};
    };
    const auto last = repeat_while_any(PowerSteps<T>{{one, select(y > zero, y, zero), x}}, more, step);
    return select(y < zero, inverse, last.result());
  }
}

// ---- choice -----------------------------------------------------------------------------------------------------

/// NaN where either is NaN.
template <class T>
inline Vec<T> maximum(Vec<T> x, Vec<T> y) {
  return select(x >= y || x != x, x, y);
}
template <class T>
inline Vec<T> minimum(Vec<T> x, Vec<T> y) {
  return select(x <= y || x != x, x, y);
}

/// The other where one is NaN.
template <class T>
inline Vec<T> maximum_number(Vec<T> x, Vec<T> y) {
  return select(x >= y || y != y, x, y);
}
template <class T>
inline Vec<T> minimum_number(Vec<T> x, Vec<T> y) {
  return select(x <= y || y != y, x, y);
}

// ---- bits -------------------------------------------------------------------------------------------------------

template <class T>
inline Vec<T> left_shift(Vec<T> x, Vec<T> count) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  const auto fits = count >= Vec<T>(0) && count < Vec<T>(kBits);
  return select(fits, x << select(fits, count, Vec<T>(0)), Vec<T>(0));
}
template <class T>
inline Vec<T> right_shift(Vec<T> x, Vec<T> count) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  const auto fits = count >= Vec<T>(0) && count < Vec<T>(kBits);
  return x >> select(fits, count, Vec<T>(kBits - 1));
}

/// Philox 4x32-10 before its rounds. Each word is the lower half of a lane; what is in the upper one does not matter.
struct RandomRounds {
  static constexpr int kRounds = 10;
  Int64Vec words[4], key0, key1;

  inline RandomRounds(Int64Vec block, Int64Vec stream, Int64Vec key)
      : words{block, block.logical_right(32), stream, stream.logical_right(32)},
        key0(key),
        key1(key.logical_right(32)) {}
  inline void take_one() {
    const Int64Vec a = product_of_lower_halves(words[0], Int64Vec(0xd2511f53));
    const Int64Vec b = product_of_lower_halves(words[2], Int64Vec(0xcd9e8d57));
    words[0] = b.logical_right(32) ^ words[1] ^ key0;
    words[1] = b;
    words[2] = a.logical_right(32) ^ words[3] ^ key1;
    words[3] = a;
    key0 = key0 + Int64Vec(0x9e3779b9);
    key1 = key1 + Int64Vec(0xbb67ae85);
  }
};

/// Blocks of random words: behind all rounds.
struct RandomBlocks : RandomRounds {
  inline RandomBlocks(Int64Vec block, Int64Vec stream, Int64Vec key) : RandomRounds(block, stream, key) {
    for (int round = 0; round < kRounds; ++round) take_one();
  }
};

inline Int64Vec philox(Int64Vec position, Int64Vec stream, Int64Vec key) {
  const RandomBlocks blocks(position >> 2, stream, key);
  const auto& words = blocks.words;
  const auto odd = (position & Int64Vec(1)) != Int64Vec(0), upper = (position & Int64Vec(2)) != Int64Vec(0);
  return select(upper, select(odd, words[3], words[2]), select(odd, words[1], words[0])) & Int64Vec(0xffffffff);
}

template <class T>
inline Vec<T> invert(Vec<T> x) {
  if constexpr (kIsBool<T>)
    return Vec<T>(x == Vec<T>(0));
  else
    return ~x;
}

}  // namespace
}  // namespace kfusion::cpu::ir
