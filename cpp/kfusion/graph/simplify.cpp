// Dead nodes go, equal nodes become one (reductions that only keep axes or do not, too), views that change nothing go
// and views of views become one view.
#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "kfusion/graph/copy.hpp"
#include "kfusion/graph/fields.hpp"
#include "kfusion/graph/graph.hpp"
#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {

std::vector<bool> live_nodes(const Graph& g) {
  std::vector<bool> live(g.nodes.size());
  for (const Output& o : g.outputs) live[static_cast<std::size_t>(o.node)] = true;
  for (std::size_t id = g.nodes.size(); id-- > 0;) {
    if (g.nodes[id].op == Op::input) live[id] = true;
    if (!live[id]) continue;
    for (const NodeId a : g.nodes[id].arguments) live[static_cast<std::size_t>(a)] = true;
  }
  return live;
}

namespace {

/// Makes a graph of another's nodes, each as the rewriting below has it; equal nodes are found by hash.
class Rewriter : private GraphCopy {
 public:
  Rewriter(const Graph& from, bool across_stages)
      : GraphCopy(from), live_(live_nodes(from)), equal_(from.nodes.size(), Hash{&to_}, Equal{&to_, across_stages}) {
    to_.nodes.reserve(from.nodes.size() + 1);  // one is tried
  }

  /// Removes dead nodes. `rewrites`: also simplifies what stays.
  Graph run(bool rewrites) {
    return copied([&](NodeId id, Node n) {
      if (!live_[at(id)]) return NodeId{-1};
      return rewrites ? simplified(std::move(n)) : add(std::move(n));
    });
  }

 private:
  struct Hash {
    const Graph* g;
    std::size_t operator()(NodeId id) const { return kfusion::hash((*g)[id]); }
  };
  struct Equal {
    const Graph* g;
    bool across_stages;
    bool operator()(NodeId a, NodeId b) const {
      return same_value((*g)[a], (*g)[b]) && (across_stages || (*g)[a].stage == (*g)[b].stage);
    }
  };

  NodeId simplified(Node n) {
    if (n.op == Op::input) return add(std::move(n));  // equal inputs are different arrays
    if (info(n.op).has(kCommutes)) sort(n.arguments);
    compose(n);
    if (kind(n.op) == OpKind::kJoin) drop_empty_parts(n);
    if (changes_nothing(n)) return n.arguments[0];
    if (const NodeId twin = same_reduction(n); twin >= 0) {
      n.op = Op::reshape, n.attributes = {};
      n.arguments = {twin};
    }
    const bool is_gradient = n.is_gradient;
    const NodeId id = add(std::move(n));
    const auto [found, fresh] = equal_.insert(id);
    if (fresh) return id;
    to_.nodes.pop_back();
    to_.nodes[at(*found)].is_gradient &= is_gradient;
    return *found;
  }

  /// The reduction that gives the same elements as `n` with its axes kept, or without them; -1: there is none.
  NodeId same_reduction(const Node& n) {
    if (kind(n.op) != OpKind::kReduce) return -1;
    Node other = n;
    auto& reduce = std::get<ReduceAttributes>(other.attributes);
    reduce.keepdims = !reduce.keepdims;
    other.shape = inferred_shape(to_, other);
    const auto found = equal_.find(add(std::move(other)));
    to_.nodes.pop_back();
    return found == equal_.end() ? -1 : *found;
  }

  /// Constants last, else by position.
  void sort(NodeIds& arguments) const {
    std::ranges::sort(arguments, {}, [&](NodeId a) { return std::pair(to_[a].op == Op::constant, a); });
  }

  bool changes_nothing(const Node& n) const {
    if (n.op == Op::cast) return n.dtype == to_[n.arguments[0]].dtype;
    if (kind(n.op) == OpKind::kJoin) return n.arguments.size() == 1;
    if (kind(n.op) != OpKind::kView || n.shape != to_[n.arguments[0]].shape) return false;
    if (const auto* t = std::get_if<TransposeAttributes>(&n.attributes)) return std::ranges::is_sorted(t->axes);
    if (const auto* s = std::get_if<SliceAttributes>(&n.attributes))
      return std::ranges::count(s->start, 0) == std::ssize(s->start) &&
             std::ranges::count(s->step, 1) == std::ssize(s->step);
    return true;
  }

  void drop_empty_parts(Node& n) const {
    if (n.size() > 0) erase_if(n.arguments, [&](NodeId a) { return to_[a].size() == 0; });
  }

  /// Makes a view of a view of the same kind a view of what that one views (which is of another kind by then).
  void compose(Node& n) const {
    if (kind(n.op) != OpKind::kView || to_[n.arguments[0]].op != n.op) return;
    const Node& inner = to_[n.arguments[0]];
    if (auto* t = std::get_if<TransposeAttributes>(&n.attributes))
      for (int& axis : t->axes)
        axis = std::get<TransposeAttributes>(inner.attributes).axes[static_cast<std::size_t>(axis)];
    if (auto* s = std::get_if<SliceAttributes>(&n.attributes))
      compose(*s, std::get<SliceAttributes>(inner.attributes), n.shape);
    n.arguments = inner.arguments;
  }

  /// Element i of the outer is element start + i * step of the inner.
  static void compose(SliceAttributes& outer, const SliceAttributes& inner, const Extents& shape) {
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] > 0) outer.start[d] = inner.start[d] + outer.start[d] * inner.step[d];
      if (shape[d] > 1) outer.step[d] *= inner.step[d];
    }
  }

  const std::vector<bool> live_;
  std::unordered_set<NodeId, Hash, Equal> equal_;
};

void drop_empty_stages(Graph& g) {
  std::vector<StageId> where(g.stages.size(), -1);
  for (const Node& n : g.nodes)
    if (n.stage >= 0) where[static_cast<std::size_t>(n.stage)] = 0;
  std::vector<Stage> stages;
  for (std::size_t s = 0; s < where.size(); ++s) {
    if (where[s] < 0) continue;
    where[s] = static_cast<StageId>(stages.size());
    stages.push_back(std::move(g.stages[s]));
  }
  g.stages = std::move(stages);
  for (Node& n : g.nodes)
    if (n.stage >= 0) n.stage = where[static_cast<std::size_t>(n.stage)];
}

}  // namespace

Graph simplify(Graph g, bool across_stages) {
  const Graph rewritten = Rewriter(g, across_stages).run(true);
  Graph result = Rewriter(rewritten, across_stages).run(false);  // inner views that nothing reads any more
  drop_empty_stages(result);
  return result;
}

}  // namespace kfusion
