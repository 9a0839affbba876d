// Adjoints of maps and reductions, from the columns of the table.
#include <algorithm>

#include "kfusion/grad/backward.hpp"
#include "kfusion/grad/emitter.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {

namespace {

/// What y = exp(z) / sum(exp(z)) is a softmax of, along which axes.
struct Softmax {
  NodeId z;
  AxisList axes;
};

/// Gradients must pass through all of it.
std::optional<Softmax> softmax_of(const GraphBuilder& b, const Node& y) {
  const Graph& g = b.graph();
  if (y.op != Op::divide || g[y.arguments[0]].op != Op::exp || b.is_stopped(y.arguments[0])) return {};
  NodeId sum = y.arguments[1];
  while (!b.is_stopped(sum) && (g[sum].op == Op::broadcast || g[sum].op == Op::reshape)) sum = g[sum].arguments[0];
  if (b.is_stopped(sum) || g[sum].op != Op::sum || g[sum].arguments[0] != y.arguments[0]) return {};
  const auto& axes = std::get<ReduceAttributes>(g[sum].attributes).axes;
  Extents kept = y.shape;
  for (const int axis : axes) kept[at(axis)] = 1;
  const Node& divisor = g[y.arguments[1]];  // each row by its own sum, and no other way
  const bool is_own = divisor.shape == kept || (divisor.op == Op::broadcast && g[divisor.arguments[0]].shape == kept &&
                                                divisor.shape == y.shape);
  if (!is_own) return {};
  return Softmax{g[y.arguments[0]].arguments[0], axes};
}

}  // namespace

void Backward::of_map(NodeId id, NodeId g) {
  const Node n = node(id);
  if (const auto softmax = softmax_of(b_, n); softmax && wanted(softmax->z)) {
    // The gradient through numerator and denominator together needs nothing but y.
    const NodeId sum = sum_over(b_, b_.map(Op::multiply, {id, g}), softmax->axes);
    return give(softmax->z, b_.map(Op::multiply, {id, b_.map(Op::subtract, {g, sum})}));
  }
  std::vector<Expr> arguments;
  for (const NodeId a : n.arguments) arguments.push_back(Expr::of(a));
  const std::vector<Expr> rules = adjoints(n.op, arguments, Expr::of(id), Expr::of(g), 0);
  if (rules.size() != n.arguments.size()) refuse(id);
  Emitter emitter(b_, n.dtype);
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const NodeId x = n.arguments[i];
    if (!wanted(x)) continue;
    if (const auto made = emitter.emit(rules[i])) give(x, sum_to(b_, broadcast_to(b_, *made, n.shape), node(x).shape));
  }
}

void Backward::of_reduction(NodeId id, NodeId g) {
  const Node n = node(id);
  const NodeId x = n.arguments[0];
  const Extents shape = node(x).shape;
  const auto& reduce = std::get<ReduceAttributes>(n.attributes);
  Extents kept = shape;
  double count = 1;
  for (const int axis : reduce.axes) {
    count *= static_cast<double>(shape[at(axis)]);
    kept[at(axis)] = 1;
  }
  const auto with_axes = [&](NodeId v) { return node(v).shape == kept ? v : b_.reshape(v, kept); };
  const Expr r = Expr::of(with_axes(id));
  const std::vector<Expr> rules = adjoints(n.op, {Expr::of(x)}, r, Expr::of(with_axes(g)), count);
  if (rules.size() != 1) refuse(id);
  if (const auto made = Emitter(b_, n.dtype, reduce.axes, reduce.whole).emit(rules[0])) give(x, *made);
}

}  // namespace kfusion::grad
