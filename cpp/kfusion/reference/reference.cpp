#include "kfusion/reference/reference.hpp"

#include <algorithm>
#include <map>

#include "kfusion/error.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/reference/contraction.hpp"
#include "kfusion/reference/elements.hpp"
#include "kfusion/reference/gather.hpp"
#include "kfusion/reference/loops.hpp"
#include "kfusion/reference/value.hpp"

namespace kfusion {
namespace reference {
namespace {

Value cast(const Value& x, DType dtype) { return is_half(dtype) ? rounded(x, dtype) : converted(x, dtype); }

Value constant(const Node& n, const ConstantAttributes& c) {
  const Value value = make_value(is_integer(n.dtype) ? DType::kInt64 : DType::kFloat64, {});
  is_integer(n.dtype) ? store(value.first(), c.integer) : store(value.first(), c.value);
  return c.wide ? converted(value, DType::kFloat32) : cast(value, n.dtype);
}

/// One row of numbers, repeated along the other axes.
Value iota(const Node& n, int axis) {
  Value row = make_value(DType::kInt64, {n.shape[static_cast<std::size_t>(axis)]});
  const std::int64_t item = row.access.strides[0];
  for (std::int64_t i = 0; i < row.access.shape[0]; ++i) store(row.first() + i * item, i);
  row.access.shape = n.shape;
  row.access.strides.assign(n.shape.size(), 0);
  row.access.strides[static_cast<std::size_t>(axis)] = item;
  return cast(row, n.dtype);
}

Value map(const Node& n, const std::vector<Value>& x) {
  Value result = make_value(compute_dtype(n.dtype), n.shape);
  std::vector<Extents> strides = {result.access.strides};
  Pointers first = {result.first()};
  for (std::size_t k = 0; k < x.size(); ++k) {
    strides.push_back(broadcast_to(x[k].access, n.shape).strides);
    first[k + 1] = x[k].first();
  }
  Walk(n.shape, strides)(first, map_loop(n.op, x.back().dtype));
  return result;
}

/// The reduced axes moved behind the others and made one.
Value as_rows(const Value& x, const AxisList& reduced) {
  AxisList order(x.access.shape.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(d);
  const auto is_kept = [&](int d) { return std::ranges::find(reduced, d) == reduced.end(); };
  const auto kept = std::ranges::stable_partition(order, is_kept).begin() - order.begin();

  Node transpose;
  transpose.op = Op::transpose;
  transpose.attributes = TransposeAttributes{std::move(order)};
  Value moved = x;
  moved.access = *through_view(transpose, x.access);
  Extents rows(moved.access.shape.begin(), moved.access.shape.begin() + kept);
  rows.push_back(product({moved.access.shape.begin() + kept, moved.access.shape.end()}));
  return reshaped(moved, rows);
}

Value reduce(const Node& n, const Value& x, const ReduceAttributes& attributes) {
  Value rows = as_rows(x, attributes.axes);
  const Reduced reduced{rows.access.shape.back(), rows.access.strides.back()};
  rows.access.shape.pop_back();
  rows.access.strides.pop_back();

  Value result = make_value(compute_dtype(n.dtype), rows.access.shape);
  const ReduceLoop loop = reduce_loop(n.op, x.dtype);
  Walk(rows.access.shape, {result.access.strides, rows.access.strides})(
      {result.first(), rows.first()},
      [&](std::int64_t results, const Pointers& p, const Strides& s) { loop(results, p, s, reduced); });
  return reshaped(result, n.shape);
}

Value view(const Node& n, const Value& x) {
  if (n.op == Op::reshape) return reshaped(x, n.shape);
  Value result = x;
  result.access = *through_view(n, x.access);
  return result;
}

/// Each part cast into its slice.
Value concatenated(const Node& n, const std::vector<Value>& parts, std::size_t axis) {
  Value result = make_value(compute_dtype(n.dtype), n.shape);
  result.exact = std::ranges::all_of(parts, &Value::exact);
  std::byte* to = result.first();
  for (const Value& part : parts) {
    Walk(part.access.shape, {result.access.strides, part.access.strides})({to, part.first()},
                                                                          cast_loop(part.dtype, result.dtype));
    to += part.access.shape[axis] * result.access.strides[axis];
  }
  return result;
}

/// A value as its own stage and as other stages see it: half types are rounded on the way.
struct Result {
  Value inside, outside;
};

struct Use {
  bool needed = false, outside = false;
  NodeId last = -1;
};

class Executor {
 public:
  Executor(const Graph& g, const std::vector<View>& inputs, const std::vector<View>& outputs)
      : g_(g), uses_(g.nodes.size()), results_(g.nodes.size()) {
    for (const Node& n : g.nodes)
      if (n.op == Op::input) inputs_.emplace(&n, &inputs[inputs_.size()]);
    for (std::size_t i = 0; i < outputs.size(); ++i) outputs_.emplace(g.outputs[i].node, &outputs[i]);
    find_uses();
  }

  void run() {
    for (NodeId id = 0; id < std::ssize(g_.nodes); ++id)
      if (uses_[static_cast<std::size_t>(id)].needed) compute(id);
  }

 private:
  Use& use(NodeId id) { return uses_[static_cast<std::size_t>(id)]; }
  Result& result(NodeId id) { return results_[static_cast<std::size_t>(id)]; }

  void find_uses() {
    for (const auto& [node, to] : outputs_) use(node).needed = true;
    for (auto id = static_cast<NodeId>(g_.nodes.size()); id-- > 0;) {
      if (!use(id).needed) continue;
      for (const NodeId a : g_[id].arguments) {
        use(a).needed = true;
        use(a).outside = use(a).outside || g_[a].stage != g_[id].stage;
        use(a).last = std::max(use(a).last, id);
      }
    }
  }

  void compute(NodeId id) {
    const Node& n = g_[id];
    std::vector<Value> x;
    for (const NodeId a : n.arguments) x.push_back(g_[a].stage == n.stage ? result(a).inside : result(a).outside);
    Value value = evaluate(n, x);
    x.clear();
    const auto [first, end] = outputs_.equal_range(id);
    for (auto output = first; output != end; ++output) write(value, *output->second);
    for (const NodeId a : n.arguments)
      if (use(a).last == id) result(a) = {};
    if (use(id).last < 0) return;
    const bool rounds = use(id).outside && is_half(n.dtype) && !value.exact;
    result(id).outside = rounds ? rounded(value, n.dtype) : value;
    result(id).inside = std::move(value);
  }

  Value evaluate(const Node& n, const std::vector<Value>& x) const {
    switch (n.op) {
      case Op::input: {
        const Value v = borrowed(*inputs_.at(&n));
        return is_half(n.dtype) ? cast(v, n.dtype) : v;
      }
      case Op::constant:
        return constant(n, std::get<ConstantAttributes>(n.attributes));
      case Op::iota:
        return iota(n, std::get<IotaAttributes>(n.attributes).axis);
      case Op::cast:
        return cast(x[0], n.dtype);
      case Op::matmul:
        return matmul(x[0], x[1], n.shape);
      case Op::conv2d:
        return conv2d(x[0], x[1], std::get<Conv2dAttributes>(n.attributes), n.shape);
      case Op::take:
        return take(x[0], x[1], std::get<TakeAttributes>(n.attributes), n.shape);
      case Op::take_along_axis:
        return take_along_axis(x[0], x[1], std::get<TakeAttributes>(n.attributes), n.shape);
      case Op::library_call:
      case Op::library_result:
        throw ValueError(std::string(name(n.op)) + ": a function of the array library, which the graph does not hold");
      case Op::partial_sums:
        throw ValueError(std::string(name(n.op)) + ": of plans, which make it; a function's graph has none");
      case Op::concatenate:
        return concatenated(n, x, at(std::get<JoinAttributes>(n.attributes).axis));
      default:
        break;
    }
    if (kind(n.op) == OpKind::kView) return view(n, x[0]);
    if (kind(n.op) == OpKind::kReduce) return reduce(n, x[0], std::get<ReduceAttributes>(n.attributes));
    return map(n, x);
  }

  const Graph& g_;
  std::map<const Node*, const View*> inputs_;
  std::multimap<NodeId, const View*> outputs_;
  std::vector<Use> uses_;
  std::vector<Result> results_;
};

}  // namespace
}  // namespace reference

void run_reference(const Graph& g, const std::vector<View>& inputs, const std::vector<View>& outputs) {
  reference::Executor(g, inputs, outputs).run();
}

}  // namespace kfusion
