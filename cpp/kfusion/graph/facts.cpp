#include "kfusion/graph/facts.hpp"

#include <algorithm>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

constexpr int kMostLookedThrough = 8;  // operations that are looked through

bool is_never_negative(const Graph& g, NodeId n, int depth) {
  n = without_views(g, n);
  const Node& node = g[n];
  const auto is_so = [&](NodeId a) { return is_never_negative(g, a, depth - 1); };
  if (info(node.op).has(kNonNegative) || node.dtype == DType::kBool) return true;
  if (const NodeId c = known_constant(g, n); c >= 0) {
    const auto& value = g.attributes<ConstantAttributes>(c);
    return is_integer(node.dtype) ? value.integer >= 0 : value.value >= 0;
  }
  if (depth == 0) return false;
  switch (node.op) {
    case Op::where:
      return is_so(node.arguments[1]) && is_so(node.arguments[2]);
    case Op::add:
    case Op::multiply:  // integers may wrap
      return is_float(node.dtype) && std::ranges::all_of(node.arguments, is_so);
    case Op::cast:
      return is_float(node.dtype) && is_so(node.arguments[0]);
    default:
      return false;
  }
}

}  // namespace

NodeId without_views(const Graph& g, NodeId n) {
  while (kind(g[n].op) == OpKind::kView) n = g[n].arguments[0];
  return n;
}

bool is_never_negative(const Graph& g, NodeId n) { return is_never_negative(g, n, kMostLookedThrough); }

bool is_zero_or_one(const Graph& g, NodeId n) {
  n = without_views(g, n);
  if (g[n].dtype == DType::kBool) return true;
  return g[n].op == Op::cast && is_zero_or_one(g, g[n].arguments[0]);
}

NodeId known_constant(const Graph& g, NodeId n) {
  n = without_views(g, n);
  return g[n].op == Op::constant && g.attributes<ConstantAttributes>(n).parameter < 0 ? n : -1;
}

}  // namespace kfusion
