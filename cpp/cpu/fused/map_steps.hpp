// The bodies of the steps that the maps of ops.def make.
#pragma once
#include "cpu/fused/tile.hpp"
#include "cpu/vector/map.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// One register of the result; y and z are read where the row has them.
template <Op op, class T>
KF_INLINE F32s map_register(const F32s& x, const std::byte* y, const std::byte* z) {
  constexpr int kArity = info(op).arity;
  Vec<T> b(T(0)), d(T(0));
  if constexpr (kArity > 1) b = read<T>(y);
  if constexpr (kArity > 2) d = read<T>(z);
  return (F32s)apply<op, T>(FirstOf<op, T>((typename FirstOf<op, T>::Native)x), b, d).v;
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
          return Divisor(read<T>(y)).divide(x...);
        }
#endif
      Fetches fetches(s, c, i);
      one_by_one(
          [&fetches, y, s](F32s v, int j) KF_LAMBDA {
            fetches.next_register();
            return map_register<op, T>(v, y + j * s->stride, nullptr);
          },
          x...);
    } else {
      const auto map = [&](std::int64_t stride) KF_LAMBDA {  // a constant: few registers for addresses
        std::int64_t j = 0;
        ((x = map_register<op, T>(x, y + j * stride, z + j * s->second_stride), ++j), ...);
      };
      kArity > 1 && s->stride == 0 ? map(0) : map(kVectorBytes);
    }
  }
};

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
