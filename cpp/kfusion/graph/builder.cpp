#include "kfusion/graph/builder.hpp"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "kfusion/error.hpp"
#include "kfusion/graph/constant.hpp"
#include "kfusion/graph/promotion.hpp"
#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

using std::to_string;

/// Number of elements of range(start, stop, step), which must lie in [0, extent).
std::int64_t range_length(const AxisSlice& s, std::int64_t extent) {
  if (s.step == 0) throw ValueError("slice: slice step cannot be zero");
  const bool forward = s.step > 0;
  if (forward ? s.start >= s.stop : s.start <= s.stop) return 0;
  const std::int64_t lowest = forward ? s.start : s.stop + 1, highest = forward ? s.stop - 1 : s.start;
  if (lowest < 0 || highest >= extent)
    throw ValueError("slice: range(" + to_string(s.start) + ", " + to_string(s.stop) + ", " + to_string(s.step) +
                     ") leaves an axis of extent " + to_string(extent));
  const auto distance = static_cast<std::uint64_t>(highest - lowest);
  const auto step =
      forward ? static_cast<std::uint64_t>(s.step) : std::uint64_t{0} - static_cast<std::uint64_t>(s.step);
  return static_cast<std::int64_t>(distance / step) + 1;
}

/// Normalized, in order.
AxisList sorted_axes(Op op, AxisList axes, std::size_t ndim) {
  for (int& axis : axes) axis = normalized_axis(name(op), axis, ndim);
  std::ranges::sort(axes);
  if (std::ranges::adjacent_find(axes) != axes.end())
    throw ValueError(std::string(name(op)) + ": duplicate value in 'axis'");
  return axes;
}

AxisList all_axes(std::size_t ndim) {
  AxisList axes(ndim);
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

void require_text(const char* what, const std::string& text) {
  if (text.size() > kMaxTextBytes)
    throw ValueError(std::string(what) + " must have at most " + to_string(kMaxTextBytes) + " bytes, got " +
                     to_string(text.size()));
}

/// Shortens a text to at most kMaxTextBytes of UTF-8, whole characters.
std::string shortened(std::string text) {
  if (text.size() <= kMaxTextBytes) return text;
  std::size_t end = kMaxTextBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

/// Whether a conversion is known now: to an integer, a float argument is converted when it comes.
void require_parameter(int number) {
  if (number < 0 || number >= kMaxDims)
    throw ValueError("constant: a parameter's number must be from -1 to 63, got " + to_string(number));
}

/// Whether a node is a constant that is one of that dtype, too. A number of each call is not where it becomes an
/// integer, nor where it has been rounded and becomes wider.
bool is_known(const Node& n, DType dtype) {
  if (!is_constant(n)) return false;
  const auto& c = std::get<ConstantAttributes>(n.attributes);
  const bool was_rounded = is_half(n.dtype) && !c.weak && !c.wide && dtype != n.dtype;
  return c.parameter < 0 || !(is_integer(dtype) || was_rounded);
}

}  // namespace

/// A stage around one call; within an open stage it counts only.
class GraphBuilder::Call {
 public:
  Call(GraphBuilder& builder, Op op) : builder_(builder) { builder_.begin_stage(std::string(name(op)), ""); }
  ~Call() { builder_.end_stage(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  GraphBuilder& builder_;
};

const Node& GraphBuilder::argument(Op reader, NodeId id) const {
  if (id < 0 || id >= std::ssize(graph_.nodes))
    throw ValueError(std::string(name(reader)) + ": no node " + to_string(id));
  return graph_[id];
}

NodeId GraphBuilder::add_source(Node n) {
  if (graph_.nodes.size() >= kMaxNodes)
    throw ValueError(std::string(name(n.op)) + ": a graph has at most " + to_string(kMaxNodes) + " nodes");
  graph_.nodes.push_back(std::move(n));
  return static_cast<NodeId>(graph_.nodes.size() - 1);
}

/// Any node but a source: attributes and, where it does not follow, the shape are given; the rest is inferred.
NodeId GraphBuilder::add(Node n) {
  n.shape = inferred_shape(graph_, n);
  require_bounded(name(n.op), n.shape, n.dtype);
  n.library = inferred_library(graph_, n);
  n.place = inferred_place(graph_, n);
  for (NodeId& a : n.arguments) a = strong(a);
  n.is_gradient = is_of_gradient(n);
  const NodeId id = add_source(std::move(n));
  if (stage_ < 0) {
    graph_.stages.push_back(open_);
    stage_ = static_cast<StageId>(graph_.stages.size() - 1);
  }
  graph_.nodes.back().stage = stage_;
  return id;
}

bool GraphBuilder::is_of_gradient(const Node& n) const {
  return std::ranges::any_of(
      n.arguments, [&](NodeId a) { return graph_[a].is_gradient || std::ranges::find(seeds_, a) != seeds_.end(); });
}

/// A node that others may read: a Python scalar on its own has its default dtype.
NodeId GraphBuilder::strong(NodeId x) {
  return is_weak(graph_[x]) ? add_source(converted_constant(graph_[x], graph_[x].dtype)) : x;
}

NodeId GraphBuilder::converted(NodeId x, DType dtype, bool wide) {
  const Node& n = graph_[x];
  if (n.dtype == dtype && !is_weak(n)) return x;
  if (is_known(n, dtype)) return add_source(converted_constant(n, dtype, wide));
  Node cast;
  cast.op = Op::cast;
  cast.dtype = dtype;
  cast.arguments = {x};
  cast.attributes = CastAttributes{};
  return add(std::move(cast));
}

NodeId GraphBuilder::input(std::string input_name, Extents shape, DType dtype, Library library, Place place,
                           bool captured, Extents strides) {
  require_text("input: a name", input_name);
  require_bounded("input", shape, dtype);
  if (!strides.empty() && strides.size() != shape.size())
    throw ValueError("input: strides must be as many as axes (" + to_string(shape.size()) + "), got " +
                     to_string(strides.size()));
  Node n;
  n.dtype = dtype;
  n.shape = std::move(shape);
  n.library = library;
  n.place = place;
  n.attributes = InputAttributes{std::move(input_name), captured, std::move(strides), false};
  return add_source(std::move(n));
}

NodeId GraphBuilder::weak_bool(bool value) {
  return add_source(constant_node(DType::kBool, {value ? 1.0 : 0.0, 0, true}));
}
NodeId GraphBuilder::weak_int(std::int64_t value) { return add_source(constant_node(DType::kInt64, {0, value, true})); }
NodeId GraphBuilder::integer_parameter(int parameter) {
  require_parameter(parameter);
  return add_source(constant_node(DType::kInt64, {0, 0, false, parameter}));
}
NodeId GraphBuilder::weak_float(double value, int parameter) {
  if (parameter != -1) require_parameter(parameter);
  return add_source(constant_node(DType::kFloat64, {value, 0, true, parameter}));
}

NodeId GraphBuilder::constant(double value, DType dtype) {
  return add_source(converted_constant(constant_node(DType::kFloat64, {value}), dtype, true));
}

NodeId GraphBuilder::iota(Extents shape, int axis, DType dtype, Library library) {
  require_bounded("iota", shape, dtype);
  if (dtype == DType::kBool) throw TypeError("iota: dtype must be integers or floats, got bool");
  Node n;
  n.op = Op::iota;
  n.dtype = dtype;
  n.attributes = IotaAttributes{normalized_axis("iota", axis, shape.size())};
  n.shape = std::move(shape);
  n.library = library;
  return add_source(std::move(n));
}

NodeId GraphBuilder::map(Op op, NodeIds arguments) {
  const OpInfo& row = info(op);
  if (row.kind != OpKind::kMap) throw ValueError(std::string(row.name) + ": must be an elementwise op");
  if (std::ssize(arguments) != row.arity)
    throw ValueError(std::string(row.name) + ": takes " + to_string(row.arity) + " arguments, got " +
                     to_string(arguments.size()));
  std::vector<TypedOperand> operands;
  for (const NodeId a : arguments) operands.push_back(operand(argument(op, a)));

  Node n;
  n.op = op;
  n.arguments = std::move(arguments);
  const MapTypes types = map_types(op, operands, inferred_library(graph_, n));
  n.dtype = types.result;
  require_bounded(row.name, inferred_shape(graph_, n), n.dtype);  // before any cast is added
  // Arithmetic of half types is done in float32: torch takes scalars so, and formulas of several operations lose digits
  // otherwise. NumPy rounds what its own operators meet, and all libraries what is compared. A scalar beyond the half
  // type's range is infinite, as on torch's CPU, except as a divisor.
  const bool wide = is_float(n.dtype) && (depth_ > 0 || inferred_library(graph_, n) == Library::kTorch);
  for (std::size_t i = 0; i < n.arguments.size(); ++i)  // throws before any cast is added
    if (const Node& a = graph_[n.arguments[i]]; is_known(a, types.arguments[i]))
      converted_constant(a, types.arguments[i]);
  const Call call(*this, op);
  for (std::size_t i = 0; i < n.arguments.size(); ++i) {
    const bool divisor = op == Op::divide && i == 1;
    const bool kept = wide && (divisor || !overflows(graph_[n.arguments[i]], types.arguments[i]));
    n.arguments[i] = converted(n.arguments[i], types.arguments[i], kept);
  }
  return add(std::move(n));
}

NodeId GraphBuilder::cast(NodeId x, DType dtype, bool rounds) {
  if (is_known(argument(Op::cast, x), dtype)) return converted(x, dtype);
  Node n;
  n.op = Op::cast;
  n.dtype = dtype;
  n.arguments = {x};
  n.attributes = CastAttributes{rounds || depth_ == 0};  // inside another call it is how that one's result is stored
  const Call call(*this, Op::cast);
  return add(std::move(n));
}

NodeId GraphBuilder::reduce(Op op, NodeId x, std::optional<AxisList> axes, bool keepdims) {
  if (kind(op) != OpKind::kReduce) throw ValueError(std::string(name(op)) + ": must be a reduction");
  const Node& from = argument(op, x);
  const std::size_t ndim = from.shape.size();
  const DType taken = reduce_argument(op, from.dtype, from.library);
  Node n;
  n.op = op;
  n.dtype = *result_type(info(op), {&taken, 1});
  n.arguments = {x};
  n.attributes = ReduceAttributes{axes ? sorted_axes(op, *axes, ndim) : all_axes(ndim), keepdims, !axes};
  n.shape = inferred_shape(graph_, n);

  const Call call(*this, op);
  if (std::get<ReduceAttributes>(n.attributes).axes.empty()) return cast(x, n.dtype);
  n.arguments[0] = converted(x, taken);
  return add(std::move(n));
}

NodeId GraphBuilder::add_view(Op op, NodeId x, Extents shape, Attributes attributes) {
  Node n;
  n.op = op;
  n.dtype = graph_[x].dtype;
  n.shape = std::move(shape);
  n.arguments = {x};
  n.attributes = std::move(attributes);
  const Call call(*this, op);
  return add(std::move(n));
}

NodeId GraphBuilder::transpose(NodeId x, AxisList axes) {
  const std::size_t ndim = argument(Op::transpose, x).shape.size();
  for (int& axis : axes) axis = normalized_axis("transpose", axis, ndim);
  AxisList sorted = axes;
  std::ranges::sort(sorted);
  if (sorted != all_axes(ndim)) throw ValueError("transpose: axes must name each axis of x once");
  return add_view(Op::transpose, x, {}, TransposeAttributes{std::move(axes)});
}

NodeId GraphBuilder::reshape(NodeId x, Extents shape) {
  shape = completed_reshape(argument(Op::reshape, x).shape, std::move(shape));
  return add_view(Op::reshape, x, std::move(shape), {});
}

NodeId GraphBuilder::slice(NodeId x, std::vector<AxisSlice> slices) {
  const Extents& from = argument(Op::slice, x).shape;
  if (slices.size() != from.size())
    throw ValueError("slice: x has " + to_string(from.size()) + " axes, got " + to_string(slices.size()) + " slices");
  Extents shape;
  SliceAttributes a;
  for (std::size_t d = 0; d < slices.size(); ++d) {
    const std::int64_t count = range_length(slices[d], from[d]);
    shape.push_back(count);
    a.start.push_back(count > 0 ? slices[d].start : 0);  // one form for all slices of the same elements
    a.step.push_back(count > 1 ? slices[d].step : 1);
  }
  return add_view(Op::slice, x, std::move(shape), std::move(a));
}

NodeId GraphBuilder::broadcast(NodeId x, Extents shape) {
  require_bounded("broadcast", shape, argument(Op::broadcast, x).dtype);
  return add_view(Op::broadcast, x, std::move(shape), {});
}

NodeId GraphBuilder::matmul(NodeId a, NodeId b) {
  Extents left = argument(Op::matmul, a).shape, right = argument(Op::matmul, b).shape;
  const bool row = left.size() == 1, column = right.size() == 1;
  if (row) left.insert(left.begin(), 1);
  if (column) right.push_back(1);

  Node n;
  n.op = Op::matmul;
  n.arguments = {a, b};
  const DType t = contraction_type(n.op, operand(graph_[a]), operand(graph_[b]), inferred_library(graph_, n));
  n.dtype = t;
  Extents shape = matmul_shape(left, right);
  require_bounded("matmul", shape, t);

  const Call call(*this, n.op);
  a = converted(a, t), b = converted(b, t);
  n.arguments = {row ? reshape(a, left) : a, column ? reshape(b, right) : b};
  const NodeId product = add(std::move(n));
  if (!row && !column) return product;
  if (row) shape.erase(shape.end() - 2);
  if (column) shape.pop_back();
  return reshape(product, shape);
}

NodeId GraphBuilder::conv2d(NodeId x, NodeId w, Conv2dAttributes attributes) {
  Node n;
  n.op = Op::conv2d;
  n.arguments = {x, w};
  const TypedOperand left = operand(argument(n.op, x)), right = operand(argument(n.op, w));
  n.dtype = contraction_type(n.op, left, right, inferred_library(graph_, n));
  n.attributes = attributes;
  require_bounded("conv2d", inferred_shape(graph_, n), n.dtype);
  const Call call(*this, n.op);
  n.arguments = {converted(x, n.dtype), converted(w, n.dtype)};
  return add(std::move(n));
}

void GraphBuilder::require_indices(Op op, NodeId indices) const {
  const DType integer = argument(op, indices).dtype;
  if (!is_integer(integer))
    throw TypeError(std::string(name(op)) + ": indices must be int32 or int64, got " + name(integer));
}

NodeId GraphBuilder::add_take(Op op, NodeId x, NodeId indices, TakeAttributes attributes) {
  Node n;
  n.op = op;
  n.dtype = argument(op, x).dtype;
  n.arguments = {x, indices};
  n.attributes = attributes;
  return add(std::move(n));
}

NodeId GraphBuilder::take(NodeId x, NodeId indices, int axis, bool nonnegative) {
  const int along = normalized_axis("take", axis, argument(Op::take, x).shape.size());
  require_indices(Op::take, indices);
  const Call call(*this, Op::take);
  return add_take(Op::take, x, indices, {along, nonnegative});
}

NodeId GraphBuilder::take_along_axis(NodeId x, NodeId indices, int axis, bool nonnegative) {
  const Op op = Op::take_along_axis;
  require_indices(op, indices);
  Extents of_x = argument(op, x).shape, of_indices = argument(op, indices).shape;
  const int along = normalized_axis("take_along_axis", axis, of_x.size());
  if (of_x.size() != of_indices.size())
    throw ValueError("take_along_axis: indices must have as many axes as x, got shapes " + shape_text(of_indices) +
                     " and " + shape_text(of_x));
  for (std::size_t d = 0; d < of_x.size(); ++d) {
    if (d == at(along) || of_x[d] == of_indices[d]) continue;
    if (of_x[d] != 1 && of_indices[d] != 1)
      throw ValueError("take_along_axis: x and indices must broadcast but for axis " + std::to_string(along) +
                       ", got shapes " + shape_text(of_x) + " and " + shape_text(of_indices));
    (of_x[d] == 1 ? of_x[d] = of_indices[d] : of_indices[d] = of_x[d]);
  }
  if (of_x[at(along)] == 0 && product(of_indices) != 0)
    throw ValueError("take_along_axis: cannot do a non-empty take from an empty axis");
  require_bounded("take_along_axis", of_x, graph_[x].dtype);
  require_bounded("take_along_axis", of_indices, graph_[indices].dtype);
  const Call call(*this, op);
  if (of_x != graph_[x].shape) x = broadcast(x, of_x);
  if (of_indices != graph_[indices].shape) indices = broadcast(indices, of_indices);
  return add_take(op, x, indices, {along, nonnegative});
}

std::vector<NodeId> GraphBuilder::library_call(LibraryCallAttributes call, NodeIds arguments,
                                               const std::vector<ResultType>& results) {
  if (arguments.empty() || results.empty()) throw ValueError("library_call: must have arguments and results");
  require_text("library_call: function", call.function);
  for (const NodeId a : arguments) argument(Op::library_call, a);
  for (const ResultType& r : results) require_bounded("library_call", r.shape, r.dtype);
  const Call stage(*this, Op::library_call);
  std::vector<NodeId> made;
  for (const ResultType& r : results) {
    Node n;
    n.op = made.empty() ? Op::library_call : Op::library_result;
    n.dtype = r.dtype;
    n.shape = r.shape;
    n.arguments = made.empty() ? arguments : NodeIds{made[0]};
    n.attributes = LibraryResultAttributes{static_cast<int>(made.size())};
    if (made.empty()) n.attributes = call;
    made.push_back(add(std::move(n)));
  }
  return made;
}

NodeId GraphBuilder::concatenate(NodeIds parts, int axis) {
  if (parts.empty()) throw ValueError("concatenate: need at least one array to join");
  Node n;
  n.op = Op::concatenate;
  std::vector<TypedOperand> operands;
  for (const NodeId p : parts) operands.push_back(operand(argument(n.op, p)));
  if (graph_[parts[0]].shape.empty()) throw ValueError("concatenate: arrays without axes cannot be joined");
  n.attributes = JoinAttributes{normalized_axis("concatenate", axis, graph_[parts[0]].shape.size())};
  n.arguments = std::move(parts);
  n.dtype = join_type(operands, inferred_library(graph_, n));
  require_bounded("concatenate", inferred_shape(graph_, n), n.dtype);  // before any cast is added
  const Call call(*this, n.op);
  for (NodeId& part : n.arguments) part = converted(part, n.dtype);
  return add(std::move(n));
}

void GraphBuilder::library_alternative(LibraryCallAttributes call, NodeIds arguments, NodeId result,
                                       StageId first_stage, AxisList order) {
  require_text("library_alternative: function", call.function);
  if (!order.empty() &&
      !std::ranges::is_permutation(order, std::views::iota(0, static_cast<int>(graph_[result].shape.size()))))
    throw ValueError("library_alternative: order must name each axis of the result once");
  const auto end = static_cast<StageId>(graph_.stages.size());
  if (argument(Op::library_call, result).stage < first_stage || first_stage < 0 || first_stage >= end)
    throw ValueError("library_alternative: the result must be in a stage from the first one on");
  for (const NodeId a : arguments)
    if (a < 0 || a >= result) throw ValueError("library_alternative: arguments must come before the result");
  if (arguments.empty()) throw ValueError("library_alternative: must have arguments");
  graph_.alternatives.push_back({std::move(call), std::move(arguments), result, first_stage, end, std::move(order)});
}

void GraphBuilder::replace(const NodeIds& nodes, const NodeIds& by) {
  if (nodes.size() != by.size()) throw ValueError("replace: must be as many nodes as are replaced");
  std::vector<NodeId> instead(graph_.nodes.size(), -1);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node &n = argument(Op::reshape, nodes[i]), &m = argument(Op::reshape, by[i]);
    if (n.shape != m.shape || n.dtype != m.dtype || by[i] > nodes[i])
      throw ValueError("replace: a node must come first, and be like the one that it stands for");
    instead[at(nodes[i])] = by[i];
  }
  const auto move = [&](NodeIds& arguments) {
    for (NodeId& a : arguments)
      if (instead[at(a)] >= 0) a = instead[at(a)];
  };
  for (Node& n : graph_.nodes)
    if (n.op != Op::library_result) move(n.arguments);  // which is the call's, whatever stands for its first result
  for (LibraryAlternative& alternative : graph_.alternatives) move(alternative.arguments);
  std::erase_if(graph_.alternatives,
                [&](const LibraryAlternative& alternative) { return instead[at(alternative.result)] >= 0; });
}

void GraphBuilder::donate(NodeId input) {
  argument(Op::reshape, input);
  auto* const attributes = std::get_if<InputAttributes>(&graph_.nodes[at(input)].attributes);
  if (!attributes) throw ValueError("donate: must be an input");
  attributes->donated = true;
}

void GraphBuilder::stop_gradient(NodeId x) {
  argument(Op::reshape, x);
  stopped_.resize(std::max(stopped_.size(), at(x) + 1));
  stopped_[at(x)] = true;
}

void GraphBuilder::set_gradients(GradientRule rule) {
  const auto require_like = [&](const NodeIds& ids, const NodeIds& others, const char* what) {
    if (ids.size() != others.size()) throw ValueError(std::string("set_gradients: there must be ") + what);
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (graph_[ids[i]].shape != graph_[others[i]].shape)
        throw ValueError(std::string("set_gradients: there must be ") + what + ", of its shape");
  };
  for (const NodeIds* ids : {&rule.results, &rule.arguments, &rule.cotangents, &rule.gradients})
    for (const NodeId id : *ids) argument(Op::reshape, id);
  if (rule.results.empty() || !std::ranges::is_sorted(rule.results))
    throw ValueError("set_gradients: results must be in ascending order");
  if (!rule.gradients.empty()) require_like(rule.gradients, rule.arguments, "a gradient for each argument");
  if (!rule.cotangents.empty()) require_like(rule.cotangents, rule.results, "a cotangent for each result");
  if (rule.cotangents.empty() && !rule.gradients.empty())
    for (const NodeId id : rule.arguments)
      if (const Extents& shape = graph_[id].shape; kfusion::broadcast(graph_[rule.results[0]].shape, shape) != shape)
        throw ValueError("set_gradients: the result must broadcast to the shape of each argument");
  rule_of_.resize(std::max(rule_of_.size(), at(rule.results.back()) + 1), -1);
  for (const NodeId id : rule.results) rule_of_[at(id)] = static_cast<int>(rules_.size());
  rules_.push_back(std::move(rule));
}

const GraphBuilder::GradientRule* GraphBuilder::gradients_of(NodeId result) const {
  const int rule = at(result) < rule_of_.size() ? rule_of_[at(result)] : -1;
  return rule < 0 ? nullptr : &rules_[at(rule)];
}

NodeId GraphBuilder::again(Node node, NodeIds arguments) {
  node.arguments = std::move(arguments);
  return kind(node.op) == OpKind::kSource ? add_source(std::move(node)) : add(std::move(node));
}

void GraphBuilder::begin_stage(std::string stage_name, std::string source) {
  require_text("begin_stage: name", stage_name);
  if (depth_++ > 0) return;
  stage_ = -1;
  open_ = {std::move(stage_name), source.empty() ? source_ : shortened(std::move(source))};
}

void GraphBuilder::end_stage() {
  if (depth_ == 0) throw ValueError("end_stage: no stage is open");
  --depth_;
}

void GraphBuilder::set_source(std::string source) { source_ = shortened(std::move(source)); }

void GraphBuilder::set_outputs(std::vector<Output> outputs) {
  for (const Output& o : outputs) {
    require_text("set_outputs: a name", o.name);
    if (o.node < 0 || o.node >= std::ssize(graph_.nodes)) throw ValueError("set_outputs: no node " + to_string(o.node));
  }
  graph_.outputs = std::move(outputs);
}

}  // namespace kfusion
