#include "kfusion/plan/joins.hpp"

#include <algorithm>

namespace kfusion {
namespace {

constexpr std::int64_t kMostNested = 64;  // parts of a join of joins; more, and the inner ones are stored and copied

bool is_join(const Node& n) { return kind(n.op) == OpKind::kJoin; }

class Parts {
 public:
  explicit Parts(const Graph& g)
      : g_(g), count_(g.nodes.size(), 1), nests_(g.nodes.size()), stored_(g.nodes.size()), moved_(g.nodes.size(), -1) {}

  Graph run() {
    count_parts();
    find_stored();
    to_.stages = g_.stages;
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) {
      if (is_join(g_[n])) {
        if (stored_[at(n)]) moved_[at(n)] = add_join(n);
        continue;
      }
      Node node = g_[n];
      for (NodeId& a : node.arguments) a = moved_[at(a)];
      moved_[at(n)] = add(std::move(node));
    }
    for (const Output& o : g_.outputs) to_.outputs.push_back({o.name, moved_[at(o.node)]});
    return std::move(to_);
  }

 private:
  /// A join takes those among its arguments apart where that gives few parts.
  void count_parts() {
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) {
      if (!is_join(g_[n])) continue;
      std::int64_t all = 0;
      for (const NodeId a : g_[n].arguments) all += count_[at(a)];
      nests_[at(n)] = all <= kMostNested;
      count_[at(n)] = nests_[at(n)] ? all : std::ssize(g_[n].arguments);
    }
  }

  /// Joins that others than joins read.
  void find_stored() {
    for (const Output& o : g_.outputs) stored_[at(o.node)] = true;
    for (const Node& n : g_.nodes) {
      const bool nests = is_join(n) && nests_[at(&n - g_.nodes.data())];
      for (const NodeId a : n.arguments)
        if (!nests) stored_[at(a)] = true;
    }
  }

  NodeId add(Node n) {
    to_.nodes.push_back(std::move(n));
    return static_cast<NodeId>(to_.nodes.size() - 1);
  }

  NodeId add_join(NodeId n) {
    Node join = g_[n];
    for (NodeId& a : join.arguments) a = is_join(g_[a]) && nests_[at(n)] ? add_join(a) : add_part(a, g_[n]);
    return add(std::move(join));
  }

  /// Where a join lies on a device, so do its parts, even one that is a number.
  NodeId add_part(NodeId value, const Node& join) {
    Node part = join;
    part.shape = g_[value].shape;
    part.arguments = {moved_[at(value)]};
    return add(std::move(part));
  }

  const Graph& g_;
  Graph to_;
  std::vector<std::int64_t> count_;  ///< by node: into how many parts a join that reads it takes it
  std::vector<bool> nests_;          ///< by join: takes joins among its arguments apart
  std::vector<bool> stored_;
  std::vector<NodeId> moved_;
};

}  // namespace

Graph with_parts(const Graph& g) {
  const auto any = [](const Node& n) { return is_join(n); };
  return std::ranges::any_of(g.nodes, any) ? Parts(g).run() : g;
}

void place_parts(const Graph& g, FoldedGraph& folded) {
  for (auto n = static_cast<NodeId>(g.nodes.size()); n-- > 0;) {  // a join before its arguments
    if (!is_join(g[n]) || is_part(g[n])) continue;
    const auto axis = at(g.attributes<JoinAttributes>(n).axis);
    Access slice = folded.value[at(n)];
    for (const NodeId a : g[n].arguments) {
      slice.shape = g[a].shape;
      folded.value[at(a)] = slice;
      slice.offset += slice.shape[axis] * slice.strides[axis];
      if (is_part(g[a])) folded.parts[slice.base].push_back(a);
    }
  }
}

}  // namespace kfusion
