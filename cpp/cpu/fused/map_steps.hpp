// The bodies of the steps that the maps of ops.def make.
#pragma once
#include "cpu/fused/random_steps.hpp"
#include "cpu/fused/tile.hpp"
#include "cpu/vector/map.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// One register of the result.
template <Op op, class T>
KF_INLINE F32s map_register(const F32s& x, Vec<T> y = Vec<T>(T(0)), Vec<T> z = Vec<T>(T(0))) {
  return (F32s)apply<op, T>(FirstOf<op, T>((typename FirstOf<op, T>::Native)x), y, z).v;
}

/// An operand of a step: one number, or register by register.
template <class T, bool taken>
KF_INLINE Vec<T> operand_at(const std::byte* p, std::int32_t stride, std::int64_t j) {
  if constexpr (!taken) return Vec<T>(T(0));
  return stride == 0 ? number<T>(p) : read<T>(p + j * kVectorBytes);
}

/// x = f(x, number of the register): the code of a long function stands once.
template <class F, class... X>
KF_INLINE void one_by_one(const F& f, X&... x) {
  F32s tile[] = {x...};
#pragma GCC unroll 1
  for (int j = 0; j < static_cast<int>(sizeof...(X)); ++j) tile[j] = f(tile[j], j);
  int j = 0;
  ((x = tile[j++]), ...);
}

#if defined(__AVX512F__)
/// Quotients by one number d, rounded correctly: of the product with its reciprocal what is missing is taken once more
/// (P. W. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990), a third of a
/// division's time. Where that could underflow or overflow, the division is taken.
class Divisor {
 public:
  explicit KF_INLINE Divisor(FloatVec d) : d_(d), inverse_(FloatVec(1) / d), usable_(!any(!between(d, -30, 30))) {}

  template <class... X>
  KF_INLINE void divide(X&... x) const {
    if (!usable_ || any((!between(FloatVec(x), -100, 60) || ...))) [[unlikely]]
      return one_by_one([this](F32s v, int) KF_LAMBDA { return (F32s)divide_any(FloatVec(v)).v; }, x...);
    ((x = (F32s)divide_safe(FloatVec(x)).v), ...);
  }
  template <int kCount>
  KF_INLINE void divide_all(FloatVec* x) const {
    auto unsafe = !between(x[0], -100, 60);
#pragma GCC unroll 8
    for (int j = 1; j < kCount; ++j) unsafe = unsafe || !between(x[j], -100, 60);
    if (!usable_ || any(unsafe)) [[unlikely]] {
#pragma GCC unroll 1
      for (int j = 0; j < kCount; ++j) x[j] = divide_any(x[j]);
      return;
    }
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) x[j] = divide_safe(x[j]);
  }

 private:
  KF_INLINE FloatVec divide_safe(FloatVec x) const {
    const FloatVec y = x * inverse_;
    return mad(mad(-y, d_, x), inverse_, y);
  }
  KF_INLINE FloatVec divide_any(FloatVec x) const {
    const auto safe = between(x, -100, 60), zero = x == FloatVec(0);
    if (!usable_ || any(!(safe || zero))) return x / d_;
    return select(safe, divide_safe(x), x * inverse_);
  }
  /// 2^low <= |x| < 2^high
  static KF_INLINE Mask<4> between(FloatVec x, int low, int high) {
    const Int32Vec bits = Int32Vec::bits(absolute(x)) - Int32Vec((127 + low) << 23);
    using Unsigned = Int32Vec::Unsigned;
    return Mask<4>::of((Unsigned)bits.v < Unsigned{} + (static_cast<std::uint32_t>(high - low) << 23));
  }

  FloatVec d_, inverse_;
  bool usable_;
};
#endif

/// Of positions in registers, one stream and one key.
template <class... X>
KF_INLINE void put_random_words(Int64Vec stream, Int64Vec key, X&... x) {
  constexpr int kCount = sizeof...(X);
  F32s tile[] = {x...};
  if (!RandomWords::are_whole_blocks(tile, kCount))
    return one_by_one([&](F32s v, int) KF_LAMBDA { return map_register<Op::philox, std::int64_t>(v, stream, key); },
                      x...);
  const RandomWords words(stream, key);
#pragma GCC unroll 1
  for (int j = 0; j < kCount; j += 4) words.put(tile + j);
  int j = 0;
  ((x = tile[j++]), ...);
}

template <Op op, class T>
struct MapStep {
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    constexpr int kArity = info(op).arity;
    constexpr bool kLong = is_long(op) && sizeof...(X) > 1;
    if constexpr (!kLong) fetch<kWhole, sizeof...(X)>(s, c, i);
    const std::byte* y = kArity > 1 ? operand(s, c, i) : nullptr;
    const std::byte* z = kArity > 2 ? second(s, c, i) : nullptr;
    if constexpr (kLong) {
#if defined(__AVX512F__)
      if constexpr (op == Op::divide && sizeof(T) == 4)
        if (s->stride == 0) {
          fetch<kWhole, sizeof...(X)>(s, c, i);
          return Divisor(number<T>(y)).divide(x...);
        }
#endif
      if constexpr (op == Op::philox && sizeof...(X) % 4 == 0)
        if (s->stride == 0 && s->second_stride == 0) {
          fetch<kWhole, sizeof...(X)>(s, c, i);
          return put_random_words(number<T>(y), number<T>(z), x...);
        }
      Fetches fetches(s, c, i);
      one_by_one(
          [&fetches, y, z, s](F32s v, int j) KF_LAMBDA {
            fetches.next_register();
            return map_register<op, T>(v, operand_at<T, (kArity > 1)>(y, s->stride, j),
                                       operand_at<T, (kArity > 2)>(z, s->second_stride, j));
          },
          x...);
    } else {
      const auto map = [&](std::int32_t stride, std::int32_t second_stride) KF_LAMBDA {  // constants
        std::int64_t j = 0;
        ((x = map_register<op, T>(x, operand_at<T, (kArity > 1)>(y, stride, j),
                                  operand_at<T, (kArity > 2)>(z, second_stride, j)),
          ++j),
         ...);
      };
      const bool one = kArity > 1 && s->stride == 0;
      if (kArity > 2 && s->second_stride == 0)
        one ? map(0, 0) : map(1, 0);
      else
        one ? map(0, 1) : map(1, 1);
    }
  }
};

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
