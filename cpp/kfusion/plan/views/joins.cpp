#include "kfusion/plan/views/joins.hpp"

#include <algorithm>

#include "kfusion/graph/copy.hpp"

namespace kfusion {
namespace {

constexpr std::int64_t kMostNested = 64;  // parts of a join of joins; more, and the inner ones are stored and copied

class Parts : private GraphCopy {
 public:
  Parts(const Graph& g, bool across_stages)
      : GraphCopy(g),
        across_stages_(across_stages),
        count_(g.nodes.size(), 1),
        nests_(g.nodes.size()),
        stored_(g.nodes.size()) {}

  Graph run() {
    find_stored();
    count_parts();
    return copied([&](NodeId n, Node node) {
      if (!is_join(node)) return add(std::move(node));
      return stored_[at(n)] ? add_join(n) : NodeId{-1};  // else its parts are another join's
    });
  }

 private:
  /// Results, and what others than joins read.
  void find_stored() {
    for (const Output& o : g_.outputs) stored_[at(o.node)] = true;
    for (const Node& n : g_.nodes)
      for (const NodeId a : n.arguments)
        if (!is_join(n)) stored_[at(a)] = true;
  }

  /// Whether the parts of join `a` are to be stored straight into the join that reads it.
  bool could_nest(NodeId join, NodeId a) const {
    return is_join(g_[a]) && !stored_[at(a)] && (across_stages_ || g_[a].stage == g_[join].stage);
  }

  /// A join takes those among its arguments apart where that gives few parts; else they are stored too.
  void count_parts() {
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) {
      if (!is_join(g_[n])) continue;
      std::int64_t all = 0;
      for (const NodeId a : g_[n].arguments) all += could_nest(n, a) ? count_[at(a)] : 1;
      nests_[at(n)] = all <= kMostNested;
      count_[at(n)] = nests_[at(n)] ? all : std::ssize(g_[n].arguments);
    }
    std::vector<NodeId> apart;
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n)
      for (const NodeId a : g_[n].arguments)
        if (is_join(g_[n]) && is_join(g_[a]) && !(nests_[at(n)] && could_nest(n, a))) apart.push_back(a);
    for (const NodeId a : apart) stored_[at(a)] = true;
  }

  NodeId add_join(NodeId n) {
    Node join = g_[n];
    for (NodeId& a : join.arguments) a = nests_[at(n)] && could_nest(n, a) ? add_join(a) : add_part(a, g_[n]);
    return add(std::move(join));
  }

  /// Where a join lies on a device, so do its parts, even one that is a number.
  NodeId add_part(NodeId value, const Node& join) {
    Node part = join;
    part.shape = g_[value].shape;
    part.arguments = {moved_[at(value)]};
    return add(std::move(part));
  }

  const bool across_stages_;
  std::vector<std::int64_t> count_;  ///< by node: into how many parts a join that reads it takes it
  std::vector<bool> nests_;          ///< by join: takes joins among its arguments apart
  std::vector<bool> stored_;
};

}  // namespace

Graph with_parts(Graph g, bool across_stages) {
  const auto any = [](const Node& n) { return is_join(n); };
  return std::ranges::any_of(g.nodes, any) ? Parts(g, across_stages).run() : std::move(g);
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
