#include "kfusion/grad/equal.hpp"

#include <algorithm>
#include <unordered_map>

#include "kfusion/error.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {

std::vector<NodeId> first_equal(const Graph& g) {
  std::vector<NodeId> first(g.nodes.size());
  std::vector<Node> seen(g.nodes);  // with the first equal arguments
  std::unordered_multimap<std::uint64_t, NodeId> known;
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    first[at(id)] = id;
    Node& n = seen[at(id)];
    if (n.op == Op::input) continue;  // equal inputs are different arrays
    for (NodeId& a : n.arguments) a = first[at(a)];
    if (info(n.op).has(kCommutes)) std::ranges::sort(n.arguments);
    if (n.op == Op::reshape && n.shape == seen[at(n.arguments[0])].shape) {
      first[at(id)] = n.arguments[0];
      continue;
    }
    const std::uint64_t key = hash(n);
    const auto [begin, end] = known.equal_range(key);
    const auto found = std::find_if(begin, end, [&](const auto& k) { return same_value(seen[at(k.second)], n); });
    if (found != end)
      first[at(id)] = found->second;
    else
      known.emplace(key, id);
  }
  return first;
}

void replace_values(GraphBuilder& graph, const NodeIds& nodes, const NodeIds& by) {
  if (nodes.size() != by.size()) throw ValueError("replace: must be as many nodes as are replaced");
  const std::vector<NodeId> first = first_equal(graph.graph());
  std::unordered_map<NodeId, NodeId> instead;
  for (std::size_t i = 0; i < nodes.size(); ++i) instead[first.at(at(nodes[i]))] = by[i];
  NodeIds all, values;
  for (NodeId id = 0; id < std::ssize(first); ++id) {
    const auto found = instead.find(first[at(id)]);
    if (found == instead.end() || id <= found->second) continue;
    all.push_back(id);
    values.push_back(found->second);
  }
  graph.replace(all, values);
}

}  // namespace kfusion::grad
