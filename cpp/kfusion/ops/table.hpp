// The rows of ops.def as constants, for what is compiled once per row. Others call info(op), which no row recompiles.
#pragma once
#include "kfusion/ops/names.hpp"
#include "kfusion/ops/signature.hpp"

namespace kfusion {

/// All rows, in the order of the enum.
inline constexpr OpInfo kOpRows[] = {
#define KF_MAP(name_, arity_, signature_, flops_, cost_, facts_, other_names_, doc_, expression_, ...) \
  {.op = Op::name_,                                                                                    \
   .name = #name_,                                                                                     \
   .kind = OpKind::kMap,                                                                               \
   .arity = arity_,                                                                                    \
   .signature = Signature::signature_,                                                                 \
   .flops = flops_,                                                                                    \
   .cost = OpCost::cost_,                                                                              \
   .facts = facts_,                                                                                    \
   .other_names = other_names_,                                                                        \
   .doc = doc_,                                                                                        \
   .expression = #expression_,                                                                         \
   .adjoints = "" #__VA_ARGS__},
#define KF_REDUCE(name_, signature_, flops_, other_names_, doc_, identity_, lift_, combine_, finish_, ...) \
  {.op = Op::name_,                                                                                        \
   .name = #name_,                                                                                         \
   .kind = OpKind::kReduce,                                                                                \
   .signature = Signature::signature_,                                                                     \
   .flops = flops_,                                                                                        \
   .other_names = other_names_,                                                                            \
   .doc = doc_,                                                                                            \
   .identity = #identity_,                                                                                 \
   .lift = #lift_,                                                                                         \
   .combine = #combine_,                                                                                   \
   .finish = #finish_,                                                                                     \
   .adjoints = "" #__VA_ARGS__},
#define KF_NODE(name_, kind_, arity_, doc_) \
  {.op = Op::name_, .name = #name_, .kind = OpKind::kind_, .arity = arity_, .doc = doc_},
#include "kfusion/ops/ops.def"
};

constexpr const OpInfo& row_of(Op op) { return kOpRows[static_cast<int>(op)]; }
template <Op op>
inline constexpr const SignatureInfo& kSignatureOf = info(row_of(op).signature);

/// The identity of a reduction that has none (`none` in ops.def): never read, since reducing nothing is refused when a
/// graph is built.
struct None {
  template <class A>
  constexpr operator A() const {
    return A();
  }
};
inline constexpr None none;

}  // namespace kfusion
