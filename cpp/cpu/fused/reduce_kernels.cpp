// The reductions of ops.def as steps over tiles.
#include "cpu/fused/reduce_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

template <Op op, class T, bool wide>
StepFunction reduce_of(Width width, bool columns, bool positive) {
  if (columns) return step<ReduceColumns<op, T, wide>>(width);
  if constexpr (TileReduction<op, T, wide, 1>::kIsSumOfFloats)
    if (positive) return step<Reduce<op, T, wide, true>>(width);
  return step<Reduce<op, T, wide, false>>(width);
}

template <Op op>
StepFunction reduce_of(DType held, Width width, bool wide, bool columns, bool positive) {
  return with_type(held, [=]<class T>(T) {
    if constexpr (sizeof(T) == 8) return reduce_of<op, T, true>(width, columns, positive);
    return wide ? reduce_of<op, T, true>(width, columns, positive) : reduce_of<op, T, false>(width, columns, positive);
  });
}

}  // namespace

StepFunction reduce_step(Op op, DType held, Width width, bool wide, bool columns, bool positive) {
  switch (op) {
#define KF_REDUCE(name, ...) \
  case Op::name:             \
    return reduce_of<Op::name>(held, width, wide, columns, positive);
#include "kfusion/ops/ops.def"
    default:
      return nullptr;
  }
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
