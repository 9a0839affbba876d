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
