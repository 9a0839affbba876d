// The maps of ops.def as steps over tiles.
#include "cpu/fused_tile.hpp"
#include "cpu/vector_map.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// One register of the result; y and z are read where the row has them.
template <Op op, class T>
KF_INLINE F32s map_register(const F32s& x, const std::byte* y, const std::byte* z) {
  constexpr int kArity = Map<op>::kArity;
  Vec<T> b(T(0)), d(T(0));
  if constexpr (kArity > 1) b = read<T>(y);
  if constexpr (kArity > 2) d = read<T>(z);
  return (F32s)apply<op, T>(FirstOf<op, T>((typename FirstOf<op, T>::Native)x), b, d).v;
}

#if defined(__AVX512F__)
/// Quotients by one number d, rounded correctly: of the product with its reciprocal what is missing is taken once more
/// (P. W. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990), a third of a
/// division's time. Where that could underflow or overflow, the division is taken.
class Divisor {
 public:
  explicit KF_INLINE Divisor(FloatVec d) : d_(d), inverse_(FloatVec(1) / d), usable_(!any(!between(d, -30, 30))) {}

  KF_INLINE FloatVec divide(FloatVec x) const {
    const FloatVec y = x * inverse_;
    const auto exact = between(x, -100, 60), zero = x == FloatVec(0);
    if (!usable_ || any(!(exact || zero))) [[unlikely]]
      return x / d_;
    return select(exact, mad(mad(-y, d_, x), inverse_, y), y);
  }

 private:
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
  template <class... X>
  static void run(KF_STEP, X... x) {
    constexpr int kArity = Map<op>::kArity, kCount = sizeof...(X);
    const std::byte* y = kArity > 1 ? operand(s, c, i) : nullptr;
    const std::byte* z = kArity > 2 ? second(s, c, i) : nullptr;
    if constexpr (is_long(op, Map<op>::kSignature) && kCount > 1) {
      F32s tile[] = {x...};
      Fetches fetches(s, c, i);
#if defined(__AVX512F__)
      if constexpr (op == Op::divide && sizeof(T) == 4) {
        if (s->stride == 0) {
          const Divisor divisor(read<T>(y));
          ((fetches.next_register(), x = (F32s)divisor.divide(as<T>(x)).v), ...);
          return next(s, c, i, x...);
        }
      }
#endif
#pragma GCC unroll 1
      for (int j = 0; j < kCount; ++j) {
        fetches.next_register();
        tile[j] = map_register<op, T>(tile[j], y + j * s->stride, nullptr);
      }
      int j = 0;
      ((x = tile[j++]), ...);
    } else {
      fetch<kCount>(s, c, i);
      std::int64_t j = 0;
      ((x = map_register<op, T>(x, y + j * s->stride, z + j * s->second_stride), ++j), ...);
    }
    return next(s, c, i, x...);
  }
};

template <Op op>
StepFunction map_of(DType held, Width width) {
  return with_type(held, [width]<class T>(T) -> StepFunction {
    if constexpr (accepts<T>(Map<op>::kSignature))
      return step<MapStep<op, T>>(width);
    else
      return nullptr;
  });
}

}  // namespace

StepFunction map_step(Op op, DType held, Width width) {
  switch (op) {
#define KF_MAP(name, ...) \
  case Op::name:          \
    return map_of<Op::name>(held, width);
#define KF_REDUCE(...)
#define KF_NODE(...)
#include "kfusion/ops/ops.def"
    default:
      return nullptr;
  }
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
