#include "kfusion/grad/reach.hpp"

#include <algorithm>
#include <unordered_set>

#include "kfusion/grad/vjp.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {

const NodeIds& sources(const GraphBuilder& graph, NodeId id) {
  const auto* rule = graph.gradients_of(id);
  return rule ? rule->arguments : graph.graph()[id].arguments;
}

bool passes(const GraphBuilder& graph, NodeId id) {
  const Node& n = graph.graph()[id];
  return (is_float(n.dtype) || n.op == Op::library_call) && !graph.is_stopped(id);
}

std::vector<NodeId> needed_backward(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs,
                                    const std::vector<NodeId>& candidates) {
  GraphBuilder scratch = graph;
  NodeIds cotangents;
  for (const NodeId y : outputs) {
    const Node n = scratch.graph()[y];
    cotangents.push_back(scratch.input("", n.shape, n.dtype, n.library, n.place, false));
  }
  const Vjp made = add_vjp(scratch, outputs, cotangents, inputs, 0);
  const std::unordered_set<NodeId> stops(candidates.begin(), candidates.end());
  std::vector<bool> seen(scratch.graph().nodes.size());
  std::vector<NodeId> todo = made.gradients, needed;
  while (!todo.empty()) {
    const NodeId id = todo.back();
    todo.pop_back();
    if (seen[at(id)]) continue;
    seen[at(id)] = true;
    if (stops.contains(id)) {
      needed.push_back(id);
      continue;
    }
    for (const NodeId a : scratch.graph()[id].arguments) todo.push_back(a);
  }
  std::ranges::sort(needed);
  return needed;
}

std::vector<NodeId> reaching(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs) {
  const Graph& g = graph.graph();
  std::vector<bool> reached(g.nodes.size());
  for (const NodeId id : inputs) reached[at(id)] = true;
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id)
    if (passes(graph, id) && std::ranges::any_of(sources(graph, id), [&](NodeId a) { return reached[at(a)]; }))
      reached[at(id)] = true;
  std::vector<NodeId> found;
  for (const NodeId id : outputs)
    if (is_float(g[id].dtype) && reached[at(id)]) found.push_back(id);
  return found;
}

std::vector<bool> reached(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs) {
  std::vector<bool> reached(graph.graph().nodes.size());
  for (const NodeId id : outputs) reached[at(id)] = is_float(graph.graph()[id].dtype);
  for (auto id = static_cast<NodeId>(reached.size()); id-- > 0;)
    if (reached[at(id)] && passes(graph, id))
      for (const NodeId a : sources(graph, id)) reached[at(a)] = true;
  std::vector<bool> found;
  for (const NodeId id : inputs) found.push_back(reached[at(id)]);
  return found;
}

}  // namespace kfusion::grad
