// The fields of a graph's records by name, in one place: JSON, text and hash all read this list.
#pragma once
#include <type_traits>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// Attributes of the alternative that the op has, with their defaults.
Attributes attributes_of(Op op);

/// Calls `visit(name, field)` for each field; `Attributes` may be const. A constant is one field, since its value is a
/// bool, an integer or a float by the node's dtype.
template <class AttributesT, class Visit>
  requires std::is_same_v<std::remove_const_t<AttributesT>, Attributes>
void visit_fields(AttributesT& attributes, Visit&& visit) {
  const auto of = [&]<class T>(std::type_identity<T>) { return std::get_if<T>(&attributes); };
  if (auto* input = of(std::type_identity<InputAttributes>{})) {
    visit("name", input->name);
    visit("captured", input->captured);
    visit("strides", input->strides);
  } else if (auto* constant = of(std::type_identity<ConstantAttributes>{})) {
    visit("value", *constant);
    visit("weak", constant->weak);
    visit("parameter", constant->parameter);
    visit("wide", constant->wide);
  } else if (auto* iota = of(std::type_identity<IotaAttributes>{})) {
    visit("axis", iota->axis);
  } else if (auto* reduce = of(std::type_identity<ReduceAttributes>{})) {
    visit("axes", reduce->axes);
    visit("keepdims", reduce->keepdims);
    visit("whole", reduce->whole);
  } else if (auto* transpose = of(std::type_identity<TransposeAttributes>{})) {
    visit("axes", transpose->axes);
  } else if (auto* slice = of(std::type_identity<SliceAttributes>{})) {
    visit("start", slice->start);
    visit("step", slice->step);
  } else if (auto* conv2d = of(std::type_identity<Conv2dAttributes>{})) {
    visit("stride", conv2d->stride);
    visit("padding", conv2d->padding);
    visit("dilation", conv2d->dilation);
    visit("groups", conv2d->groups);
  } else if (auto* take = of(std::type_identity<TakeAttributes>{})) {
    visit("axis", take->axis);
    visit("nonnegative", take->nonnegative);
  } else if (auto* call = of(std::type_identity<LibraryCallAttributes>{})) {
    visit("function", call->function);
    visit("number", call->number);
    visit("flops", call->flops);
    visit("library_ns", call->library_ns);
    visit("kernels_ns", call->kernels_ns);
  } else if (auto* result = of(std::type_identity<LibraryResultAttributes>{})) {
    visit("index", result->index);
  } else if (auto* cast = of(std::type_identity<CastAttributes>{})) {
    visit("rounds", cast->rounds);
  } else if (auto* join = of(std::type_identity<JoinAttributes>{})) {
    visit("axis", join->axis);
  } else if (auto* partial = of(std::type_identity<PartialAttributes>{})) {
    visit("axes", partial->axes);
    visit("parts", partial->parts);
  }
}

template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, Stage>
void visit_fields(Record& stage, Visit&& visit) {
  visit("name", stage.name);
  visit("source", stage.source);
}

template <class Record, class Visit>
  requires std::is_same_v<std::remove_const_t<Record>, Output>
void visit_fields(Record& output, Visit&& visit) {
  visit("name", output.name);
  visit("node", output.node);
}

}  // namespace kfusion
