#include "kfusion/ops/op.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <unordered_map>

#include "kfusion/enumerators.hpp"
#include "kfusion/ops/signature.hpp"
#include "kfusion/ops/table.hpp"

namespace kfusion {

static_assert(Op{} == Op::input);  // nodes and steps begin as one, where no enumerator is known

namespace {

using Names = std::unordered_map<std::string_view, Op>;

Names all_names() {
  Names names;
  for (const OpInfo& row : kOpRows) {
    names.emplace(row.name, row.op);
    for (const std::string_view other : other_names(row)) names.emplace(other, row.op);
  }
  return names;
}

}  // namespace

std::span<const OpInfo> op_table() { return kOpRows; }
const OpInfo& info(Op op) { return row_of(op); }

std::vector<std::string_view> other_names(const OpInfo& row, std::string_view library) {
  std::vector<std::string_view> names;
  for (std::string_view rest = row.other_names; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const std::size_t dot = word.find('.');
    const bool is_plain = dot == std::string_view::npos;
    if (library == (is_plain ? "" : word.substr(0, dot))) names.push_back(is_plain ? word : word.substr(dot + 1));
  }
  return names;
}

std::optional<Op> op_named(std::string_view text) {
  static const Names& names = *new Names(all_names());  // not destroyed: threads may still plan at exit
  const auto found = names.find(text);
  if (found == names.end()) return std::nullopt;
  return found->second;
}

std::string_view name(OpKind k) { return enumerator_name(k); }

std::string_view name(OpCost c) { return enumerator_name(c); }

std::vector<std::string_view> names_of_facts(int facts) {
  constexpr std::string_view kNames[] = {"commutes", "increases", "increases from 0", "non-negative", "exact",
                                         "affine",   "quick",     "quick per row"};
  static_assert(1 << (std::size(kNames) - 1) == kQuickPerRow);
  std::vector<std::string_view> names;
  for (const std::string_view name : kNames) {
    if (facts & 1) names.push_back(name);
    facts >>= 1;
  }
  return names;
}

double value_of_nothing(Op op) {
  switch (op) {
#define KF_REDUCE(name, signature, flops, other_names, doc, identity, lift, combine, finish, ...) \
  case Op::name: {                                                                                \
    using A = double;                                                                             \
    [[maybe_unused]] const double n = 0;                                                          \
    const A a = identity, value = finish;                                                         \
    return value == value ? value : std::numeric_limits<double>::quiet_NaN(); /* of one sign */   \
  }
#include "kfusion/ops/ops.def"
    default:
      return 0;
  }
}

}  // namespace kfusion
