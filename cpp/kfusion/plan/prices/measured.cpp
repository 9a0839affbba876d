#include "kfusion/plan/prices/measured.hpp"

#include <algorithm>
#include <map>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/plan.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// Copies a kernel's nodes, with the views and the numbers between them.
class Extraction {
 public:
  Extraction(const Plan& plan, const Group& group) : g_(plan.graph), group_(group) { to_.stages = {{"kernel", ""}}; }

  Graph run() {
    for (const NodeId n : group_.stores) {
      const NodeId stored = copied(n);
      to_.outputs.push_back({std::to_string(to_.outputs.size()), stored});
    }
    return std::move(to_);
  }

 private:
  bool is_inside(NodeId n) const {
    const Node& node = g_[n];
    return is_free(node) || kind(node.op) == OpKind::kView || std::ranges::count(group_.nodes, n) > 0;
  }

  NodeId add(NodeId n, Node node) {
    to_.nodes.push_back(std::move(node));
    return where_[n] = static_cast<NodeId>(to_.nodes.size() - 1);
  }

  NodeId input(NodeId n) {
    Node node = g_[n];
    InputAttributes attributes;
    if (const auto* given = std::get_if<InputAttributes>(&node.attributes)) attributes.strides = given->strides;
    attributes.name = "x" + std::to_string(inputs_++);
    node.op = Op::input, node.arguments = {}, node.stage = -1, node.attributes = attributes;
    return add(n, std::move(node));
  }

  /// Copies a node after its arguments, without recursion: chains may be long.
  NodeId copied(NodeId wanted) {
    std::vector<NodeId> waiting = {wanted};
    while (!waiting.empty()) {
      const NodeId n = waiting.back();
      if (where_.contains(n)) {
        waiting.pop_back();
        continue;
      }
      if (!is_inside(n)) {
        input(n);
        continue;
      }
      bool ready = true;
      for (const NodeId a : g_[n].arguments)
        if (!where_.contains(a)) waiting.push_back(a), ready = false;
      if (!ready) continue;
      Node node = g_[n];
      for (NodeId& a : node.arguments) a = where_[a];
      if (node.stage >= 0) node.stage = 0;
      if (auto* number = std::get_if<ConstantAttributes>(&node.attributes)) number->parameter = -1;
      add(n, std::move(node));
    }
    return where_[wanted];
  }

  const Graph& g_;
  const Group& group_;
  Graph to_;
  std::map<NodeId, NodeId> where_;
  int inputs_ = 0;
};

}  // namespace

std::optional<Graph> alone(const Plan& plan, const Group& group) {
  const auto needs_plan = [&](NodeId n) {
    const Node& node = plan.graph[n];
    return kind(node.op) == OpKind::kLibrary || is_join(node);
  };
  if (group.stores.empty() || std::ranges::any_of(group.nodes, needs_plan)) return std::nullopt;
  return Extraction(plan, group).run();
}

std::string key_of(const Plan& plan, const Group& group) {
  std::optional<Graph> g = alone(plan, group);
  if (!g) return {};
  for (Node& n : g->nodes) {
    n.place = {};
    if (auto* number = std::get_if<ConstantAttributes>(&n.attributes); number && is_float(n.dtype)) number->value = 0;
  }
  return to_text(*g);
}

}  // namespace kfusion
