// Adjoints of gathers and of functions of the array library.
#include <algorithm>
#include <limits>

#include "kfusion/grad/backward.hpp"
#include "kfusion/grad/emitter.hpp"
#include "kfusion/grad/joint.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {
namespace {

/// Positions from 0 on, from indices that may count from the end.
NodeId positions(GraphBuilder& b, NodeId indices, std::int64_t extent, bool nonnegative) {
  if (nonnegative) return indices;
  const NodeId negative = b.map(Op::less, {indices, b.weak_int(0)});
  return b.map(Op::where, {negative, b.map(Op::add, {indices, b.weak_int(extent)}), indices});
}

/// Positions as each element compares them with its own: outside the extent none is.
NodeId in_32_bits(GraphBuilder& b, NodeId indices, std::int64_t extent) {
  if (b.graph()[indices].dtype != DType::kInt64 || extent > std::numeric_limits<std::int32_t>::max()) return indices;
  const NodeId inside = b.map(Op::logical_and, {b.map(Op::greater_equal, {indices, b.weak_int(0)}),
                                                b.map(Op::less, {indices, b.weak_int(extent)})});
  return b.cast(b.map(Op::where, {inside, indices, b.weak_int(-1)}), DType::kInt32);
}

/// The name in python/kfusion/_tracing/trained_attention.py of the function that gives a result and logarithms of sums.
constexpr std::string_view kAttention = "torch.attention_with_sums";

}  // namespace

void Backward::of_gather(NodeId id, NodeId g) {
  const Node n = node(id);
  const auto& take = std::get<TakeAttributes>(n.attributes);
  const NodeId x = n.arguments[0];
  const Extents shape = node(x).shape;
  const bool along = n.op == Op::take_along_axis;
  NodeId indices = positions(b_, n.arguments[1], shape[at(take.axis)], take.nonnegative);
  Extents one = shape;  // of g, where one element is taken along the axis
  one[at(take.axis)] = 1;
  if (along ? n.shape == one : node(indices).size() == 1) {  // no sum: each element of x gets one of g, or none
    Extents single(shape.size(), 1);
    if (along ? node(indices).shape != one : node(indices).shape != single)
      indices = b_.reshape(indices, along ? one : single);
    indices = in_32_bits(b_, indices, shape[at(take.axis)]);
    const NodeId at_axis = b_.iota(shape, take.axis, node(indices).dtype, node(indices).library);
    const NodeId is_it = b_.map(Op::equal, {at_axis, indices});
    const NodeId spread = node(g).shape == one ? g : b_.reshape(g, one);
    return give(x, b_.map(Op::where, {is_it, spread, b_.constant(0, n.dtype)}));
  }
  const DType wide = is_half(n.dtype) ? DType::kFloat32 : n.dtype;  // many elements may be added
  if (wide != n.dtype) g = b_.cast(g, wide);
  LibraryCallAttributes call;
  call.function = along ? "scatter_add" : "index_add";
  call.number = first_call_ + std::ssize(calls_);
  const NodeId into = zeros(b_, shape, wide);  // says the shape
  calls_.push_back({std::string(name(n.op)), {take.axis}, {}, {}});
  give(x, b_.library_call(call, {into, indices, g}, {{wide, shape}})[0]);
}

void Backward::of_library_call(NodeId id) {
  const Node n = node(id);
  const auto& forward = std::get<LibraryCallAttributes>(n.attributes);
  if (n.library != Library::kTorch) refuse(id);
  if (forward.function == kAttention) return of_attention(id);
  LibraryAdjoint adjoint{"library_call", {forward.number}, {}, {}};
  NodeIds arguments = n.arguments;
  for (const auto& [index, g] : of_results_[id]) {
    adjoint.results.push_back(index);
    arguments.push_back(g);
  }
  if (adjoint.results.empty()) return;
  call_library(n, std::move(adjoint), std::move(arguments), forward.function + "_backward", 2 * forward.flops);
}

/// The gradient arrives as the result lies, with heads behind positions, and so do the arguments' gradients.
void Backward::of_attention(NodeId id) {
  const Node n = node(id);
  const auto g = of_results_[id].find(0);
  if (g == of_results_[id].end()) return;
  NodeId sums = id;
  while (node(sums).op != Op::library_result || node(sums).arguments[0] != id) ++sums;
  NodeIds arguments = n.arguments;
  for (const NodeId a : {id, sums, g->second}) arguments.push_back(a);
  const auto number = std::get<LibraryCallAttributes>(n.attributes).number;
  call_library(n, {"attention", {number}, {}, {}}, std::move(arguments), "torch.attention_backward", 0, {0, 2, 1, 3});
}

/// The alternative whose gradient computes its inside again, and stores none of it.
std::optional<LibraryAlternative> Backward::alternative_of(NodeId result) const {
  const Graph& g = b_.graph();
  if (g[result].library != Library::kTorch) return std::nullopt;
  for (const LibraryAlternative& alternative : g.alternatives)
    if (alternative.result == result && is_large_inside(g, alternative)) return alternative;
  return std::nullopt;
}

/// Gradients lie in memory in the order of the result, as arguments usually do, so that no copy turns them.
void Backward::of_alternative(const LibraryAlternative& alternative, NodeId g) {
  Node n = node(alternative.result);
  n.arguments = alternative.arguments;
  LibraryAdjoint adjoint{"library_call", {alternative.call.number}, {0}, {}};
  if (!alternative.order.empty()) g = b_.transpose(g, alternative.order);
  for (const int axis : alternative.order) adjoint.numbers.push_back(axis);
  NodeIds arguments = alternative.arguments;
  arguments.push_back(g);
  call_library(n, std::move(adjoint), std::move(arguments), alternative.call.function + "_backward", 0,
               alternative.order);
}

/// Adds the gradients of nodes that have a rule of their own: known beforehand, or another function's.
void Backward::by_rule(GraphBuilder::GradientRule rule) {
  if (std::ranges::none_of(rule.results, [&](NodeId r) { return whole(r).has_value(); })) return;
  enter_stage(rule.results[0]);
  NodeIds given;
  for (const NodeId r : rule.results) given.push_back(gradient(r));
  if (rule.gradients.empty()) {
    Node n = node(rule.results[0]);
    n.arguments = rule.arguments;
    LibraryAdjoint adjoint{"library_call", {rule.call.number}, {}, {}};
    for (std::size_t i = 0; i < given.size(); ++i) adjoint.results.push_back(static_cast<int>(i));
    for (const NodeId g : given) rule.arguments.push_back(g);
    return call_library(n, std::move(adjoint), std::move(rule.arguments), rule.call.function + "_backward",
                        rule.call.flops);
  }
  if (!rule.cotangents.empty()) return by_cotangents(rule, given);
  for (std::size_t i = 0; i < rule.arguments.size(); ++i) {
    if (!wanted(rule.arguments[i])) continue;
    const NodeId known = rule.gradients[i], g = given[0];
    const bool is_one = number_of(b_.graph(), g) == 1.0;
    const NodeId factor = node(g).dtype == node(known).dtype ? g : b_.cast(g, node(known).dtype);
    give(rule.arguments[i], is_one ? known : b_.map(Op::multiply, {known, factor}));
  }
}

/// What makes the gradients of its cotangents makes them of those that are given, in stages of the same names.
void Backward::by_cotangents(const GraphBuilder::GradientRule& rule, const NodeIds& given) {
  const NodeId first = std::ranges::min(rule.cotangents), end = std::ranges::max(rule.gradients) + 1;
  const auto place = [&](NodeId id) { return at(id - first); };
  std::vector<bool> is_needed(end > first ? place(end) : 0);
  for (std::size_t i = 0; i < rule.arguments.size(); ++i)
    if (wanted(rule.arguments[i]) && rule.gradients[i] >= first) is_needed[place(rule.gradients[i])] = true;
  for (NodeId id = end; id-- > first;)
    if (is_needed[place(id)])
      for (const NodeId a : node(id).arguments)
        if (a >= first) is_needed[place(a)] = true;
  std::map<NodeId, NodeId> again;
  for (std::size_t i = 0; i < given.size(); ++i) again[rule.cotangents[i]] = given[i];
  const auto made = [&](NodeId id) { return again.contains(id) ? again[id] : id; };
  leave_stage();
  for (NodeId id = first; id < end; ++id) {
    if (!is_needed[place(id)] || again.contains(id)) continue;
    NodeIds arguments;
    for (const NodeId a : node(id).arguments) arguments.push_back(made(a));
    if (arguments == node(id).arguments) continue;
    const Stage stage = b_.graph().stages[at(node(id).stage)];
    b_.begin_stage(stage.name, stage.source);
    again[id] = b_.again(node(id), std::move(arguments));
    b_.end_stage();
  }
  enter_stage(rule.results[0]);
  for (std::size_t i = 0; i < rule.arguments.size(); ++i) give(rule.arguments[i], made(rule.gradients[i]));
}

/// Gradients for those of a node's arguments that want one. The function gives them with their axes in that order.
void Backward::call_library(const Node& n, LibraryAdjoint adjoint, NodeIds arguments, std::string function,
                            std::int64_t flops, const AxisList& order) {
  std::vector<GraphBuilder::ResultType> types;
  for (std::size_t i = 0; i < n.arguments.size(); ++i) {
    if (!wanted(n.arguments[i])) continue;
    adjoint.arguments.push_back(static_cast<int>(i));
    Extents shape = node(n.arguments[i]).shape;
    if (order.size() == shape.size())
      for (std::size_t d = 0; d < order.size(); ++d) shape[d] = node(n.arguments[i]).shape[at(order[d])];
    types.push_back({node(n.arguments[i]).dtype, std::move(shape)});
  }
  LibraryCallAttributes call;
  call.function = std::move(function);
  call.number = first_call_ + std::ssize(calls_);
  call.flops = flops;
  const std::vector<NodeId> made = b_.library_call(call, std::move(arguments), types);
  AxisList back(order.size());
  for (std::size_t d = 0; d < order.size(); ++d) back[at(order[d])] = static_cast<int>(d);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const bool turned = !order.empty() && node(made[i]).shape.size() == order.size();
    give(n.arguments[at(adjoint.arguments[i])], turned ? b_.transpose(made[i], back) : made[i]);
  }
  calls_.push_back(std::move(adjoint));
}

}  // namespace kfusion::grad
