// A graph made of another one, node by node: each as it is, or as a rewrite has it.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "kfusion/graph/graph.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {

/// Nodes that an output needs, and all inputs.
std::vector<bool> live_nodes(const Graph& g);

/// Who reads each node.
class Readers {
 public:
  explicit Readers(const Graph& g) : of_(g.nodes.size()), is_result_(g.nodes.size()) {
    for (NodeId n = 0; n < std::ssize(g.nodes); ++n)
      for (const NodeId a : g[n].arguments) of_[at(a)].push_back(n);
    for (const Output& o : g.outputs) is_result_[at(o.node)] = true;
  }

  /// In order, once for each argument; results of the function are read by the caller, too.
  const NodeIds& of(NodeId n) const { return of_[at(n)]; }
  bool is_result(NodeId n) const { return is_result_[at(n)]; }

  /// The one that reads n, once, where nobody else does; else -1.
  NodeId only(NodeId n) const { return of_[at(n)].size() == 1 && !is_result_[at(n)] ? of_[at(n)][0] : -1; }

 private:
  std::vector<NodeIds> of_;
  std::vector<bool> is_result_;
};

class GraphCopy {
 public:
  explicit GraphCopy(const Graph& from) : g_(from) { to_.stages = from.stages; }

  /// A node of the copy.
  const Node& operator[](NodeId n) const { return to_[n]; }
  const Graph& from() const { return g_; }
  const Graph& graph() const { return to_; }  ///< as far as it is made
  const Readers& readers() const {
    if (!readers_) readers_.emplace(g_);
    return *readers_;
  }

  NodeId add(Node n) {
    to_.nodes.push_back(std::move(n));
    return static_cast<NodeId>(to_.nodes.size() - 1);
  }

  /// A node that is in all else like another one.
  NodeId add(Node like, Op op, NodeIds arguments, Attributes attributes = {}) {
    like.op = op;
    like.arguments = std::move(arguments);
    like.attributes = std::move(attributes);
    return add(std::move(like));
  }

  /// x, seen otherwise.
  NodeId view_of(NodeId x, Op op, Extents shape, StageId stage, Attributes attributes = {}) {
    Node view = to_[x];
    view.shape = std::move(shape);
    view.stage = stage;
    return add(std::move(view), op, {x}, std::move(attributes));
  }

  /// x itself where it has that shape.
  NodeId reshaped(NodeId x, Extents shape, StageId stage) {
    return to_[x].shape == shape ? x : view_of(x, Op::reshape, std::move(shape), stage);
  }

  /// x itself where it has that dtype.
  NodeId in_dtype(NodeId x, DType dtype, StageId stage) {
    if (to_[x].dtype == dtype) return x;
    Node cast = to_[x];
    cast.dtype = dtype;
    cast.stage = stage;
    return add(std::move(cast), Op::cast, {x}, CastAttributes{});
  }

  /// Once. What `change` gives for each node n, whose arguments are those of the copy by then, takes its place; results
  /// are what `result` gives for them then.
  template <class Change, class Result>
  Graph copied(Change change, Result result) {
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) {
      Node node = g_[n];
      for (NodeId& a : node.arguments) a = moved_[at(a)];
      moved_.push_back(change(n, std::move(node)));
    }
    for (const Output& o : g_.outputs) to_.outputs.push_back({o.name, result(o.node)});
    return std::move(to_);
  }
  template <class Change>
  Graph copied(Change change) {
    return copied(std::move(change), [this](NodeId n) { return moved_[at(n)]; });
  }

  /// copied() with a `change` that gives nothing for nodes to be copied; no graph where it does so for all.
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

 protected:
  const Graph& g_;
  Graph to_;
  std::vector<NodeId> moved_;               ///< by node: in the copy
  mutable std::optional<Readers> readers_;  ///< of what is copied; made when first asked for
};

}  // namespace kfusion
