// Gathers pushed through what they read: elements of f(x, y) at positions are f of the elements of x and of y there. So
// no array is stored of which only a few elements are wanted, as of log_softmax for a loss by class numbers.
#include <algorithm>
#include <map>
#include <tuple>

#include "kfusion/graph/promotion.hpp"
#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

constexpr int kDeepest = 64;  // operations that a gather is pushed through, one behind the other

class Pushing : private GraphCopy {
 public:
  using GraphCopy::GraphCopy;

  std::optional<Graph> run() {
    Graph pushed =
        copied([&](NodeId, Node n) { return kind(n.op) == OpKind::kGather ? taken(n, 0) : add(std::move(n)); });
    return any_ ? std::optional(std::move(pushed)) : std::nullopt;
  }

 private:
  NodeId add_inferred(Node n) {
    n.shape = inferred_shape(to_, n);
    n.library = inferred_library(to_, n);
    n.place = inferred_place(to_, n);
    return add(std::move(n));
  }

  NodeId add_view(Op op, NodeId x, Extents shape, StageId stage, Attributes attributes = {}) {
    Node view = to_[x];
    view.op = op;
    view.shape = std::move(shape);
    view.stage = stage;
    view.arguments = {x};
    view.attributes = std::move(attributes);
    return add_inferred(std::move(view));
  }

  static std::size_t axis_of(const Node& gather) { return at(std::get<TakeAttributes>(gather.attributes).axis); }

  static Node along(Node gather, std::size_t axis, NodeId x) {
    std::get<TakeAttributes>(gather.attributes).axis = static_cast<int>(axis);
    gather.arguments[0] = x;
    return gather;
  }

  bool is_map(NodeId n) const { return is_elementwise(to_[n]); }

  /// The value of `gather`, whose arguments are nodes of to_. What several gathers share is pushed once.
  NodeId taken(const Node& gather, int depth) {
    const auto key = std::tuple(gather.op, axis_of(gather), std::get<TakeAttributes>(gather.attributes).nonnegative,
                                gather.arguments);
    if (const auto known = taken_.find(key); known != taken_.end()) return known->second;
    return taken_[key] = make(gather, depth);
  }

  NodeId make(const Node& gather, int depth) {
    const Node x = to_[gather.arguments[0]];
    const bool deep = depth == kDeepest || x.shape[axis_of(gather)] <= 1;
    if (!deep && is_map(gather.arguments[0]) && any_varies(x, axis_of(gather))) return through_map(gather, x, depth);
    if (!deep && x.op == Op::broadcast && any_varies(x, axis_of(gather))) return through_broadcast(gather, x, depth);
    if (!deep && x.op == Op::transpose && gather.op == Op::take_along_axis && is_map(x.arguments[0]))
      return through_transpose(gather, x, depth);
    Node n = gather;
    n.dtype = x.dtype;
    return add_inferred(std::move(n));
  }

  /// Whether an argument of x has other elements along the axis: else nobody would look at the indices.
  bool any_varies(const Node& x, std::size_t axis) const {
    return std::ranges::any_of(x.arguments, [&](NodeId a) { return varies(x, axis, a); });
  }
  bool varies(const Node& x, std::size_t axis, NodeId a) const {
    const Extents& shape = to_[a].shape;
    const std::size_t lead = x.shape.size() - shape.size();
    return axis >= lead && shape[axis - lead] != 1;
  }

  NodeId through_map(const Node& gather, const Node& x, int depth) {
    any_ = true;
    Node map = x;
    for (NodeId& a : map.arguments) a = seen(gather, x, a, depth);
    return add_inferred(std::move(map));
  }

  NodeId through_broadcast(const Node& gather, const Node& x, int depth) {
    const Extents shape = inferred_shape(to_, gather);
    const NodeId part = seen(gather, x, x.arguments[0], depth);
    return to_[part].shape == shape ? part : add_view(Op::broadcast, part, shape, gather.stage);
  }

  /// Axis i of x is axis axes[i] of what it is of.
  NodeId through_transpose(const Node& gather, const Node& x, int depth) {
    const auto& axes = std::get<TransposeAttributes>(x.attributes).axes;
    TransposeAttributes back;
    back.axes.resize(axes.size());
    for (std::size_t i = 0; i < axes.size(); ++i) back.axes[at(axes[i])] = static_cast<int>(i);
    Node inner = along(gather, at(axes[axis_of(gather)]), x.arguments[0]);
    inner.arguments[1] = add_view(Op::transpose, gather.arguments[1], {}, gather.stage, back);
    return add_view(Op::transpose, taken(inner, depth + 1), {}, gather.stage, x.attributes);
  }

  /// What argument `a` of x has at the positions at which `gather` takes elements of x; its shape broadcasts.
  NodeId seen(const Node& gather, const Node& x, NodeId a, int depth) {
    const std::size_t axis = axis_of(gather), lead = x.shape.size() - to_[a].shape.size();
    const bool takes = gather.op == Op::take;
    if (varies(x, axis, a)) {
      const bool whole = takes || to_[a].shape == x.shape;
      const NodeId from = whole ? a : add_view(Op::broadcast, a, x.shape, gather.stage);
      return taken(along(gather, takes ? axis - lead : axis, from), depth + 1);
    }
    if (!takes || axis < lead) return a;
    Extents shape = to_[a].shape;  // with an axis of extent 1 for each of the indices'
    const auto place = shape.begin() + static_cast<std::ptrdiff_t>(axis - lead);
    shape.insert(shape.erase(place), to_[gather.arguments[1]].shape.size(), 1);
    return shape == to_[a].shape ? a : add_view(Op::reshape, a, shape, gather.stage);
  }

  bool any_ = false;
  std::map<std::tuple<Op, std::size_t, bool, NodeIds>, NodeId> taken_;
};

}  // namespace

std::optional<Graph> gathers_pushed(const Graph& g, const Device&) { return Pushing(g).run(); }

}  // namespace kfusion
