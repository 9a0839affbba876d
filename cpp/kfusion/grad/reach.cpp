#include "kfusion/grad/reach.hpp"

#include <algorithm>
#include <unordered_set>

#include "kfusion/grad/vjp.hpp"

namespace kfusion::grad {

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
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    const bool passes = (is_float(g[id].dtype) || kind(g[id].op) == OpKind::kLibrary) && !graph.is_stopped(id);
    if (passes && std::ranges::any_of(g[id].arguments, [&](NodeId a) { return reached[at(a)]; }))
      reached[at(id)] = true;
  }
  std::vector<NodeId> found;
  for (const NodeId id : outputs)
    if (is_float(g[id].dtype) && reached[at(id)]) found.push_back(id);
  return found;
}

}  // namespace kfusion::grad
