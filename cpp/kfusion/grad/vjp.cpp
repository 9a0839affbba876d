// The reverse pass: which nodes need a gradient, in which order they get it, in which stage.
#include "kfusion/grad/vjp.hpp"

#include <algorithm>

#include "kfusion/error.hpp"
#include "kfusion/grad/backward.hpp"
#include "kfusion/grad/emitter.hpp"
#include "kfusion/grad/reach.hpp"
#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {
namespace {

void require_node(const Graph& g, NodeId id) {
  if (id < 0 || id >= std::ssize(g.nodes)) throw ValueError("vjp: no node " + std::to_string(id));
  if (!is_float(g[id].dtype)) throw TypeError("vjp: must be floats, got " + std::string(name(g[id].dtype)));
}

/// "layernorm.mean": "layernorm_backward.mean", so that it belongs to a composite of its own.
std::string backward_of(std::string name) { return name.insert(std::min(name.find('.'), name.size()), "_backward"); }

/// Marks what is made of cotangents while it lives.
class Gradients {
 public:
  Gradients(GraphBuilder& graph, const NodeIds& cotangents) : graph_(graph) { graph_.begin_gradients(cotangents); }
  ~Gradients() { graph_.end_gradients(); }
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

 private:
  GraphBuilder& graph_;
};

}  // namespace

Vjp add_vjp(GraphBuilder& graph, const NodeIds& outputs, const NodeIds& cotangents, const NodeIds& inputs,
            std::int64_t first_call) {
  if (outputs.size() != cotangents.size()) throw ValueError("vjp: each output must have a cotangent");
  for (const NodeIds* ids : {&outputs, &cotangents, &inputs})
    for (const NodeId id : *ids) require_node(graph.graph(), id);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Node &y = graph.graph()[outputs[i]], &g = graph.graph()[cotangents[i]];
    if (y.shape != g.shape || y.dtype != g.dtype)
      throw ValueError("vjp: a cotangent must be like its output, " + std::string(name(y.dtype)) + " " +
                       shape_text(y.shape) + ", got " + std::string(name(g.dtype)) + " " + shape_text(g.shape));
  }
  const Gradients marked(graph, cotangents);
  Backward backward(graph, outputs, inputs, first_call);
  for (std::size_t i = 0; i < outputs.size(); ++i) backward.give(outputs[i], cotangents[i]);
  backward.run();
  Vjp made;
  for (const NodeId input : inputs) made.gradients.push_back(backward.gradient(input));
  made.calls = backward.take_calls();
  return made;
}

Backward::Backward(GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs, std::int64_t first_call)
    : b_(graph),
      inputs_(inputs),
      first_call_(first_call),
      start_(static_cast<NodeId>(std::ssize(graph.graph().nodes))) {
  NodeId end = 0;
  for (const NodeId id : outputs) end = std::max(end, id + 1);
  for (const NodeId id : inputs) end = std::max(end, id + 1);
  wanted_.resize(at(end));
  for (const NodeId id : inputs) wanted_[at(id)] = true;
  for (NodeId id = 0; id < end; ++id) {
    const auto is_wanted = [&](NodeId a) { return wanted(a); };
    if (passes(b_, id) && std::ranges::any_of(sources(b_, id), is_wanted)) wanted_[at(id)] = true;
  }
}

void Backward::run() {
  for (auto id = static_cast<NodeId>(wanted_.size()); id-- > 0;) {
    if (!wanted(id)) continue;
    if (const auto* rule = b_.gradients_of(id)) {
      if (id == rule->results[0] && !is_input(id)) by_rule(*rule);
      continue;
    }
    if (node(id).arguments.empty()) continue;
    if (const bool is_call = of_results_.contains(id); !is_call && !cotangents_.contains(id)) continue;
    if (std::ranges::none_of(node(id).arguments, [&](NodeId a) { return wanted(a); })) continue;
    enter_stage(id);
    const std::optional<NodeId> g = whole(id);
    if (node(id).op == Op::library_call) {
      if (g) of_results_[id][0] = *g;
      of_library_call(id);
    } else if (g) {
      const auto alternative = alternative_of(id);
      alternative ? of_alternative(*alternative, *g) : visit(id, *g);
    }
  }
  leave_stage();
}

/// Nodes behind each other of one stage have their gradients in one.
void Backward::enter_stage(NodeId id) {
  const StageId stage = node(id).stage;
  if (stage == stage_) return;
  leave_stage();
  stage_ = stage;
  const Stage& forward = b_.graph().stages[at(stage)];
  b_.begin_stage(backward_of(forward.name), forward.source);
}

void Backward::leave_stage() {
  if (stage_ >= 0) b_.end_stage();
  stage_ = -1;
}

void Backward::give(NodeId id, NodeId g) {
  if (!wanted(id)) return;
  const Node n = node(id);
  if (node(g).dtype != n.dtype) g = b_.cast(g, n.dtype);
  g = broadcast_to(b_, g, n.shape);
  if (g >= start_) b_.set_gradient(g);  // where a cotangent is 1, nothing tells it from what the function computes
  add(cotangents_[id].g, g);
}

void Backward::add(std::optional<NodeId>& sum, NodeId g) {
  if (!sum) {
    sum = g;
    return;
  }
  const auto x = number_of(b_.graph(), *sum), y = number_of(b_.graph(), g);
  const Node n = node(g);
  sum = x && y ? broadcast_to(b_, b_.constant(*x + *y, n.dtype), n.shape) : b_.map(Op::add, {*sum, g});
  b_.set_gradient(*sum);
}

/// All that a node got, its parts too.
std::optional<NodeId> Backward::whole(NodeId id) {
  const auto found = cotangents_.find(id);
  if (found == cotangents_.end()) return std::nullopt;
  Cotangent& c = found->second;
  const Extents shape = node(id).shape;
  if (const auto one = joined(c.parts, shape)) {
    add(c.g, *one);
  } else {
    for (const Part& part : c.parts) add(c.g, placed(part, shape, 0));
  }
  c.parts.clear();
  return c.g;
}

NodeId Backward::gradient(NodeId id) {
  const auto g = whole(id);
  return g ? *g : zeros(b_, node(id).shape, node(id).dtype);
}

void Backward::refuse(NodeId id) const {
  const Node& n = node(id);
  const auto* call = std::get_if<LibraryCallAttributes>(&n.attributes);
  const std::string what = call ? call->function : std::string(name(n.op));
  const std::string& line = n.stage >= 0 ? b_.graph().stages[at(n.stage)].source : std::string();
  throw TypeError("grad: " + what + " has no adjoint" + (line.empty() ? "" : " (" + line + ")"));
}

void Backward::visit(NodeId id, NodeId g) {
  switch (kind(node(id).op)) {
    case OpKind::kMap:
      return of_map(id, g);
    case OpKind::kReduce:
      return of_reduction(id, g);
    case OpKind::kCast:
      return give(node(id).arguments[0], g);
    case OpKind::kView:
      return of_view(id, g);
    case OpKind::kContraction:
      return node(id).op == Op::matmul ? of_matmul(id, g) : of_conv2d(id, g);
    case OpKind::kGather:
      return of_gather(id, g);
    case OpKind::kJoin:
      return of_join(id, g);
    case OpKind::kLibrary: {  // another result of a call
      const auto index = std::get<LibraryResultAttributes>(node(id).attributes).index;
      of_results_[node(id).arguments[0]][index] = g;
      return;
    }
    case OpKind::kSource:
    case OpKind::kPartial:  // made when gradients are there
      return;
  }
}

}  // namespace kfusion::grad
