#include "kfusion/graph/runnable.hpp"

#include <algorithm>
#include <set>

#include "kfusion/graph/constant.hpp"
#include "kfusion/graph/copy.hpp"
#include "kfusion/graph/facts.hpp"
#include "kfusion/graph/promotion.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

bool reads_nothing(const Graph& g, const Node& n) {
  const bool sums = kind(n.op) == OpKind::kReduce || kind(n.op) == OpKind::kContraction;
  if (kind(n.op) == OpKind::kLibrary) return false;  // one result may be empty and another one not
  return n.size() == 0 || (sums && std::ranges::any_of(n.arguments, [&](NodeId a) { return g[a].size() == 0; }));
}

/// Place and library follow from the arguments.
void infer(const Graph& g, Node& n) {
  if (kind(n.op) == OpKind::kSource) return;
  n.library = inferred_library(g, n);
  n.place = inferred_place(g, n);
}

/// Adds copies to a graph whose views are read by no kernel that could store them otherwise.
class Results {
 public:
  explicit Results(Graph g) : g_(std::move(g)) {}

  Graph run() {
    for (Output& o : g_.outputs) {
      if (needs_copy(o)) o.node = copy(o.node);
    }
    return std::move(g_);
  }

 private:
  bool is_part_or_repetition(NodeId n) const {
    for (; kind(g_[n].op) == OpKind::kView; n = g_[n].arguments[0]) {
      if (g_[n].op == Op::slice || g_[n].op == Op::broadcast) return true;
    }
    return false;
  }

  bool needs_copy(const Output& o) const {
    if (g_[o.node].size() == 0) return false;
    const NodeId from = without_views(g_, o.node);
    if (kind(g_[from].op) == OpKind::kSource || is_part_or_repetition(o.node)) return true;
    return from != o.node && std::ranges::any_of(g_.outputs, [&](const Output& other) {
             return other.node != o.node && without_views(g_, other.node) == from;
           });
  }

  NodeId copy(NodeId n) {
    if (is_weak(g_[n])) n = append(converted_constant(g_[n], g_[n].dtype));  // no node reads a scalar
    Node c;
    c.op = Op::cast;
    c.dtype = g_[n].dtype;
    c.shape = g_[n].shape;
    c.arguments = {n};
    c.attributes = CastAttributes{};
    c.stage = static_cast<StageId>(g_.stages.size());
    g_.stages.push_back({unique_name("copy"), ""});
    return append(std::move(c));
  }

  NodeId append(Node n) {
    infer(g_, n);
    g_.nodes.push_back(std::move(n));
    return static_cast<NodeId>(g_.nodes.size() - 1);
  }

  std::string unique_name(const std::string& name) {
    if (names_.empty())
      for (const Stage& s : g_.stages) names_.insert(s.name);
    std::string unique = name;
    for (int i = 2; !names_.insert(unique).second; ++i) unique = name + '_' + std::to_string(i);
    return unique;
  }

  Graph g_;
  std::set<std::string> names_;
};

}  // namespace

Graph without_empty_work(Graph g) {
  std::vector<bool> all_empty;
  for (const Node& n : g.nodes) all_empty.push_back(kind(n.op) != OpKind::kSource && reads_nothing(g, n));
  if (std::ranges::count(all_empty, true) == 0) {
    for (Node& n : g.nodes) infer(g, n);
    return g;
  }
  GraphCopy to(g);
  const auto add_inferred = [&](Node n) {
    infer(to.graph(), n);
    return to.add(std::move(n));
  };
  return to.copied([&](NodeId id, Node n) {
    if (all_empty[at(id)]) {
      const Node value = constant_node(DType::kFloat64, {value_of_nothing(n.op)});
      n.arguments = {add_inferred(converted_constant(value, n.dtype))};
      n.op = Op::broadcast;
      n.attributes = {};
    }
    return add_inferred(std::move(n));
  });
}

Graph with_own_results(Graph g) { return Results(std::move(g)).run(); }

}  // namespace kfusion
