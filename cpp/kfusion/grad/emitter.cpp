#include "kfusion/grad/emitter.hpp"

#include <algorithm>
#include <cmath>

#include "kfusion/graph/constant.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {
namespace {

std::vector<AxisSlice> whole_slices(const Extents& shape) {
  std::vector<AxisSlice> slices;
  for (const std::int64_t n : shape) slices.push_back({0, n, 1});
  return slices;
}

double computed(Op op, double x, double y) {
  switch (op) {
    case Op::add:
      return x + y;
    case Op::subtract:
      return x - y;
    case Op::multiply:
      return x * y;
    case Op::divide:
      return x / y;
    case Op::negative:
      return -x;
    case Op::equal:
      return x == y;
    case Op::greater_equal:
      return x >= y;
    default:
      return std::nan("");
  }
}

/// x, which varies along none of `axes` of a shape that it is broadcast to, with extents of 1 there. Nothing: it does.
std::optional<NodeId> uniform_along(GraphBuilder& b, NodeId x, const AxisList& axes, const Extents& shape) {
  while (b.graph()[x].op == Op::broadcast) x = b.graph()[x].arguments[0];
  const Extents own = b.graph()[x].shape;
  const std::size_t lead = shape.size() - own.size();
  Extents kept = shape;
  for (const int axis : axes) {
    if (at(axis) >= lead && own[at(axis) - lead] != 1) return std::nullopt;
    kept[at(axis)] = 1;
  }
  return broadcast_to(b, x, kept);
}

/// The sum of a product with what does not vary along the axes, or of what is negated: the factor comes behind the sum.
/// So a sum waits for no value of its row.
std::optional<NodeId> factored_sum(GraphBuilder& b, const Node& n, const AxisList& axes) {
  const auto sum_of = [&](NodeId x) { return sum_over(b, broadcast_to(b, x, n.shape), axes); };
  if (n.op == Op::negative) return b.map(Op::negative, {sum_of(n.arguments[0])});
  if (n.op != Op::multiply) return std::nullopt;
  for (const std::size_t i : {0, 1})
    if (const auto factor = uniform_along(b, n.arguments[i], axes, n.shape))
      return b.map(Op::multiply, {*factor, sum_of(n.arguments[1 - i])});
  return std::nullopt;
}

}  // namespace

std::optional<double> number_of(const Graph& g, NodeId node) {
  const Node* n = &g[node];
  while (n->op == Op::broadcast || n->op == Op::reshape) n = &g[n->arguments[0]];
  if (!is_constant(*n) || !is_float(n->dtype)) return std::nullopt;
  const auto& constant = std::get<ConstantAttributes>(n->attributes);
  return constant.parameter < 0 ? std::optional(constant.value) : std::nullopt;
}

NodeId broadcast_to(GraphBuilder& b, NodeId x, Extents shape) {
  return b.graph()[x].shape == shape ? x : b.broadcast(x, shape);
}

NodeId zeros(GraphBuilder& b, Extents shape, DType dtype) { return broadcast_to(b, b.constant(0, dtype), shape); }

NodeId scaled(GraphBuilder& b, NodeId x, double factor) {
  if (factor == 1) return x;
  const Node n = b.graph()[x];
  if (const auto number = number_of(b.graph(), x))
    return broadcast_to(b, b.constant(*number * factor, n.dtype), n.shape);
  return b.map(Op::multiply, {x, b.weak_float(factor)});
}

namespace {

NodeId any_sum_over(GraphBuilder& b, NodeId x, const AxisList& axes) {
  const Node n = b.graph()[x];
  const bool all = axes.size() == n.shape.size();
  if (const auto factored = n.size() > 0 ? factored_sum(b, n, axes) : std::nullopt) return *factored;
  if (n.op != Op::broadcast || n.size() == 0)
    return b.reduce(Op::sum, x, all ? std::nullopt : std::optional(axes), true);
  const Extents from = b.graph()[n.arguments[0]].shape;
  const std::size_t lead = n.shape.size() - from.size();
  double copies = 1;
  AxisList summed;
  Extents kept = n.shape;
  for (const int axis : axes) {
    if (at(axis) >= lead && from[at(axis) - lead] != 1) {
      summed.push_back(axis);
      continue;
    }
    copies *= static_cast<double>(n.shape[at(axis)]);
    kept[at(axis)] = 1;
  }
  if (summed.size() == axes.size()) return b.reduce(Op::sum, x, axes, true);
  return scaled(b, sum_over(b, broadcast_to(b, n.arguments[0], kept), summed), copies);
}

}  // namespace

NodeId sum_over(GraphBuilder& b, NodeId x, const AxisList& axes) {
  if (axes.empty()) return x;
  const auto before = static_cast<NodeId>(std::ssize(b.graph().nodes));
  const NodeId sum = any_sum_over(b, x, axes);
  if (b.graph()[x].is_gradient)  // though a factor of it may be none
    for (NodeId id = before; id < std::ssize(b.graph().nodes); ++id) b.set_gradient(id);
  return sum;
}

NodeId sum_to(GraphBuilder& b, NodeId x, Extents shape) {
  const Extents wide = b.graph()[x].shape;
  if (wide == shape) return x;
  const std::size_t lead = wide.size() - shape.size();
  AxisList axes;
  for (std::size_t d = 0; d < wide.size(); ++d)
    if (d < lead || (shape[d - lead] == 1 && wide[d] != 1)) axes.push_back(static_cast<int>(d));
  x = sum_over(b, x, axes);
  return b.graph()[x].shape == shape ? x : b.reshape(x, shape);
}

NodeId window(GraphBuilder& b, NodeId x, int axis, std::int64_t start, std::int64_t extent) {
  const Node n = b.graph()[x];
  const std::int64_t have = n.shape[at(axis)], end = start + extent;
  const std::int64_t first = std::clamp<std::int64_t>(start, 0, have),
                     last = std::clamp<std::int64_t>(end, first, have);
  std::vector<AxisSlice> slices = whole_slices(n.shape);
  slices[at(axis)] = {first, last, 1};
  NodeIds parts;
  const auto fill = [&](std::int64_t count) {
    Extents shape = n.shape;
    shape[at(axis)] = count;
    if (count > 0) parts.push_back(zeros(b, shape, n.dtype));
  };
  fill(std::clamp<std::int64_t>(-start, 0, extent));
  if (last > first || extent == 0) parts.push_back(last - first == have ? x : b.slice(x, slices));
  fill(extent - std::clamp<std::int64_t>(-start, 0, extent) - (last - first));
  return parts.size() == 1 ? parts[0] : b.concatenate(std::move(parts), axis);
}

std::optional<NodeId> Emitter::emit(const Expr& e) {
  const Value v = value(e);
  if (v.is(0)) return std::nullopt;
  return node(v);
}

Emitter::Value Emitter::value(const Expr& e) {
  const Expr::Term& t = e.term();
  if (const auto found = known_.find(&t); found != known_.end()) return found->second;
  return known_[&t] = made(t);
}

Emitter::Value Emitter::made(const Expr::Term& t) {
  if (t.node >= 0) {
    const auto number = number_of(b_.graph(), t.node);
    return number ? Value{-1, *number} : Value{t.node};
  }
  if (t.arguments.empty()) return {-1, t.number};
  std::vector<Value> arguments;
  for (const Expr& a : t.arguments) arguments.push_back(value(a));
  return applied(t.op, arguments);
}

NodeId Emitter::node(const Value& v) { return v.node >= 0 ? v.node : b_.constant(v.number, dtype_); }

/// What is a number, or one of the arguments.
std::optional<Emitter::Value> Emitter::folded(Op op, const std::vector<Value>& a) const {
  if (op == Op::where && a[0].node < 0) return a[0].number != 0 ? a[1] : a[2];
  if (op == Op::multiply && a[0].is(1)) return a[1];
  if ((op == Op::multiply || op == Op::divide || op == Op::power) && a[1].is(1)) return a[0];
  if (!std::ranges::all_of(a, [](const Value& v) { return v.node < 0; }) || kind(op) != OpKind::kMap) return {};
  const double number = computed(op, a[0].number, a.size() > 1 ? a[1].number : 0);
  return std::isnan(number) ? std::nullopt : std::optional(Value{-1, number});
}

Emitter::Value Emitter::applied(Op op, const std::vector<Value>& a) {
  if (const auto known = folded(op, a)) return *known;
  if (kind(op) == OpKind::kReduce)
    return {b_.reduce(op, node(a[0]), whole_ ? std::nullopt : std::optional(axes_), true)};
  // Numbers take the dtype of what they meet: where they meet a condition only, or nothing, it is the adjoint's.
  const bool meets =
      std::ranges::any_of(a, [&](const Value& v) { return v.node >= 0 && b_.graph()[v.node].dtype == dtype_; });
  NodeIds nodes;
  for (const Value& v : a) nodes.push_back(v.node < 0 && meets ? b_.weak_float(v.number) : node(v));
  return {b_.map(op, std::move(nodes))};
}

}  // namespace kfusion::grad
