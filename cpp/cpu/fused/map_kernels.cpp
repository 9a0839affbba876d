// The maps of ops.def as steps over tiles.
#include "cpu/fused/map_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

template <Op op>
StepFunction map_of(DType held, Width width) {
  return with_type(held, [width]<class T>(T) -> StepFunction {
    if constexpr (accepts<T>(info(op).signature))
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
#include "kfusion/ops/ops.def"
    default:
      return nullptr;
  }
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
