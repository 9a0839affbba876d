#include "kfusion/graph/fields.hpp"

#include "kfusion/ops/names.hpp"

namespace kfusion {

Attributes attributes_of(Op op) {
  switch (op) {
    case Op::input:
      return InputAttributes{};
    case Op::constant:
      return ConstantAttributes{};
    case Op::iota:
      return IotaAttributes{};
    case Op::transpose:
      return TransposeAttributes{};
    case Op::slice:
      return SliceAttributes{};
    case Op::conv2d:
      return Conv2dAttributes{};
    case Op::take:
    case Op::take_along_axis:
      return TakeAttributes{};
    case Op::library_call:
      return LibraryCallAttributes{};
    case Op::library_result:
      return LibraryResultAttributes{};
    case Op::cast:
      return CastAttributes{};
    case Op::concatenate:
      return JoinAttributes{};
    case Op::partial_sums:
      return PartialAttributes{};
    default:
      break;
  }
  if (kind(op) == OpKind::kReduce) return ReduceAttributes{};
  return {};
}

}  // namespace kfusion
