#include "kfusion/ops/op.hpp"

#include <algorithm>
#include <unordered_map>

namespace kfusion {
namespace {

/// Order does not matter, to the bit.
/// To the bit: of zeros of two signs, maximum and its like give the first.
constexpr Op kCommutative[] = {Op::add,         Op::multiply,    Op::hypot,       Op::logaddexp,
                               Op::equal,       Op::not_equal,   Op::logical_and, Op::logical_or,
                               Op::logical_xor, Op::bitwise_and, Op::bitwise_or,  Op::bitwise_xor};

constexpr bool is_commutative(Op op) { return std::ranges::find(kCommutative, op) != std::end(kCommutative); }

using enum OpKind;

// The text of an identity tells the reductions that have none.
#define KF_MAP(name, arity, signature, flops, other_names, doc, ...)               \
  OpInfo{Op::name,    #name, kMap,         arity, Signature::signature,     flops, \
         other_names, doc,   #__VA_ARGS__, false, is_commutative(Op::name), {}},
#define KF_REDUCE(name, signature, flops, other_names, doc, identity, ...) \
  OpInfo{Op::name,                                                         \
         #name,                                                            \
         kReduce,                                                          \
         1,                                                                \
         Signature::signature,                                             \
         flops,                                                            \
         other_names,                                                      \
         doc,                                                              \
         #__VA_ARGS__,                                                     \
         std::string_view(#identity) == "none",                            \
         false,                                                            \
         #identity},
#define KF_NODE(name, kind, arity, doc) \
  OpInfo{Op::name, #name, kind, arity, Signature::kNone, 0, "", doc, "", false, false, {}},
constexpr OpInfo kTable[] = {
#include "kfusion/ops/ops.def"
};

using Names = std::unordered_map<std::string_view, Op>;

Names all_names() {
  Names names;
  for (const OpInfo& row : kTable) {
    names.emplace(row.name, row.op);
    for (const std::string_view other : other_names(row)) names.emplace(other, row.op);
  }
  return names;
}

}  // namespace

std::span<const OpInfo> op_table() { return kTable; }

const OpInfo& info(Op op) { return kTable[static_cast<std::size_t>(op)]; }

std::vector<std::string_view> other_names(const OpInfo& row) {
  std::vector<std::string_view> names;
  for (std::string_view rest = row.other_names; !rest.empty();) {
    names.push_back(rest.substr(0, rest.find(' ')));
    rest.remove_prefix(std::min(names.back().size() + 1, rest.size()));
  }
  return names;
}

std::optional<Op> op_named(std::string_view text) {
  static const Names& names = *new Names(all_names());  // not destroyed: threads may still plan at exit
  const auto found = names.find(text);
  if (found == names.end()) return std::nullopt;
  return found->second;
}

std::string_view name(OpKind k) {
  constexpr std::string_view kNames[] = {"map", "reduce", "source", "cast", "view", "contraction", "gather"};
  return kNames[static_cast<std::size_t>(k)];
}

std::string_view name(Signature s) {
  constexpr std::string_view kNames[] = {"F_F", "FF_F", "N_N",  "NN_N",  "NNN_N", "S_S", "SS_S",
                                         "A_B", "AA_B", "BB_B", "BNN_N", "II_I",  "C_C", ""};
  return kNames[static_cast<std::size_t>(s)];
}

}  // namespace kfusion
