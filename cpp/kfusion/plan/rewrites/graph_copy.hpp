// What passes that rewrite a graph have in common.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// How often each node is read, as a result too.
inline std::vector<int> count_readers(const Graph& g) {
  std::vector<int> readers(g.nodes.size());
  for (const Node& n : g.nodes)
    for (const NodeId a : n.arguments) ++readers[at(a)];
  for (const Output& o : g.outputs) ++readers[at(o.node)];
  return readers;
}

/// A copy of a graph, node by node.
class GraphCopy {
 public:
  explicit GraphCopy(const Graph& from) : g_(from) { to_.stages = from.stages; }

  const Node& operator[](NodeId n) const { return to_[n]; }

  NodeId add(Node n) {
    to_.nodes.push_back(std::move(n));
    return static_cast<NodeId>(to_.nodes.size() - 1);
  }

  /// Once. What `change` gives for each node n, whose arguments are those of the copy by then, takes its place.
  template <class Change>
  Graph copied(Change change) {
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) {
      Node node = g_[n];
      for (NodeId& a : node.arguments) a = moved_[at(a)];
      moved_.push_back(change(n, std::move(node)));
    }
    for (const Output& o : g_.outputs) to_.outputs.push_back({o.name, moved_[at(o.node)]});
    return std::move(to_);
  }

  /// The same where `change` gives something: nothing for a node that is copied, and no graph where all are.
  template <class Change>
  std::optional<Graph> changed(Change change) {
    bool any = false;
    Graph made = copied([&](NodeId n, Node node) {
      const std::optional<NodeId> other = change(n, std::as_const(node));
      any = any || other;
      return other ? *other : add(std::move(node));
    });
    return any ? std::optional(std::move(made)) : std::nullopt;
  }

  /// x, seen otherwise.
  NodeId view_of(NodeId x, Op op, Extents shape, StageId stage, Attributes attributes = {}) {
    Node view = to_[x];
    view.op = op;
    view.shape = std::move(shape);
    view.attributes = std::move(attributes);
    view.arguments = {x};
    view.stage = stage;
    return add(std::move(view));
  }

 protected:
  const Graph& g_;
  Graph to_;
  std::vector<NodeId> moved_;  ///< by node: in the copy
};

}  // namespace kfusion
