#include "kfusion/plan/search/library_alternatives.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kfusion/checked.hpp"
#include "kfusion/graph/copy.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/prices/price.hpp"

namespace kfusion {
namespace {

bool is_within(const LibraryAlternative& alternative, StageId stage) {
  return stage >= alternative.first_stage && stage < alternative.end_stage;
}

std::vector<NodeId> products_of(const Graph& g) {
  std::vector<NodeId> products;
  for (NodeId n = 0; n < std::ssize(g.nodes); ++n)
    if (kind(g[n].op) == OpKind::kContraction) products.push_back(n);
  return products;
}

/// Whether an alternative's nodes read positions: attention of a causal mask.
bool has_positions(const Graph& g, const LibraryAlternative& alternative) {
  return std::ranges::any_of(g.nodes, [&](const Node& n) {
    return is_within(alternative, n.stage) &&
           std::ranges::any_of(n.arguments, [&](NodeId a) { return g[a].op == Op::iota; });
  });
}

/// FLOPs of the products among the nodes of an alternative; `products`: all of the graph. Half of them where a causal
/// mask hides half of the scores, which torch's kernels leave out.
std::int64_t flops_of(const Graph& g, const std::vector<NodeId>& products, const LibraryAlternative& alternative) {
  std::int64_t flops = 0;
  for (const NodeId product : products) {
    const Node& n = g[product];
    if (!is_within(alternative, n.stage)) continue;
    const Extents &a = g[n.arguments[0]].shape, &w = g[n.arguments[1]].shape;
    const std::int64_t depth = n.op == Op::matmul ? a.back() : w[1] * w[2] * w[3];
    flops = checked_add(flops, checked_multiply(checked_multiply(2, depth, "operations"), n.size(), "operations"),
                        "operations");
  }
  return has_positions(g, alternative) ? flops / 2 : flops;
}

/// Whether the library's one call is a convolution and, on a GPU, a kernel for what comes after it: torch's have no
/// bias inside there.
bool is_in_two_kernels(const Graph& g, const LibraryAlternative& alternative) {
  if (g[alternative.result].place.on_host() || g[alternative.result].op == Op::conv2d) return false;
  return std::ranges::any_of(g.nodes,
                             [&](const Node& n) { return n.op == Op::conv2d && is_within(alternative, n.stage); });
}

double library_us(const Graph& g, const LibraryAlternative& alternative, std::int64_t flops, const Device& device) {
  std::int64_t bytes = g[alternative.result].nbytes();
  for (const NodeId a : alternative.arguments) bytes = checked_add(bytes, g[a].nbytes());
  Price p;
  p.launch_us = device.launch_us;
  p.memory_us = static_cast<double>(bytes) / device.bandwidth * 1e6;
  const DType type = g[alternative.arguments[0]].dtype;
  p.compute_us = static_cast<double>(flops) / peak_flops(device, type, true) * 1e6 *
                 times_of_products(alternative.call.function, type, device);
  settle(p);
  const double one_us = (flops > 0 ? product_price(p, device) : p).total_us;
  if (!is_in_two_kernels(g, alternative)) return one_us;
  return one_us + device.launch_us + 2e6 * static_cast<double>(g[alternative.result].nbytes()) / device.bandwidth;
}

/// By stage of a plan's graph: the stage of `g`, whose names are not unique yet; -1 for one that planning added.
std::vector<StageId> stages_in(const Graph& g, const Plan& plan) {
  Graph named;
  named.stages = g.stages;
  make_stage_names_unique(named);
  std::unordered_map<std::string_view, StageId> number;
  for (StageId s = 0; s < std::ssize(named.stages); ++s) number.emplace(named.stages[at(s)].name, s);
  std::vector<StageId> stages;
  for (const Stage& stage : plan.graph.stages) {
    const auto found = number.find(stage.name);
    stages.push_back(found == number.end() ? -1 : found->second);
  }
  return stages;
}

/// Where each axis of a value comes from whose axes lie in that order.
AxisList inverse(const AxisList& order) {
  AxisList from(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) from[at(order[i])] = static_cast<int>(i);
  return from;
}

/// What nodes outside of an alternative read of those within, but for its result. Numbers of each row are further
/// results of the call: the library's own backward pass is given them. What is as large as an argument is computed
/// where it is read, as that pass does.
struct ReadWithin {
  NodeIds results;
  std::vector<std::pair<NodeId, StageId>> moved;
  bool is_given = true;  ///< whether the library's call could give the results, and nothing slow is computed twice
};

ReadWithin read_within(const Graph& g, const LibraryAlternative& alternative, const std::vector<bool>& live) {
  std::int64_t largest = 0;
  NodeId last = 0;
  for (const NodeId a : alternative.arguments) largest = std::max(largest, g[a].size()), last = std::max(last, a);
  std::vector<StageId> reader(g.nodes.size(), -1);  // by node of the alternative: the stage in which it is read first
  ReadWithin found;
  for (NodeId id = static_cast<NodeId>(std::ssize(g.nodes)) - 1; id >= 0; --id) {
    const Node& n = g[id];
    const bool inside = id != alternative.result && is_within(alternative, n.stage);
    const StageId by = inside ? reader[at(id)] : n.stage;
    if (!live[at(id)] || by < 0 || id == alternative.result) continue;
    if (inside && kind(n.op) != OpKind::kView && n.size() < largest) {
      found.results.insert(found.results.begin(), id);
      found.is_given = found.is_given && last < id;
      continue;
    }
    if (inside) found.moved.emplace_back(id, by);
    const bool is_slow = kind(n.op) == OpKind::kContraction || kind(n.op) == OpKind::kLibrary;
    found.is_given = found.is_given && !(inside && is_slow);
    for (const NodeId a : n.arguments)
      if (is_within(alternative, g[a].stage)) reader[at(a)] = by;
  }
  return found;
}

/// Takes what is read within an alternative out of it, so that its call may stand for the rest; returns what the call
/// has to give too, and nothing where that cannot be.
std::optional<NodeIds> take_out(Graph& g, const LibraryAlternative& alternative, const std::vector<bool>& live) {
  ReadWithin read = read_within(g, alternative, live);
  if (!read.is_given || (!alternative.order.empty() && !read.results.empty())) return std::nullopt;
  for (const auto& [id, stage] : read.moved) g.nodes[at(id)].stage = stage;
  return std::move(read.results);
}

/// A graph while calls take the place of nodes.
class WithCalls : private GraphCopy {
 public:
  explicit WithCalls(const Graph& g) : GraphCopy(g), products_(products_of(g)), call_at_(g.nodes.size()) {}

  /// The call of an alternative, which gives `others`, too, stands for its result; the first alternative, where several
  /// have one.
  void choose(const LibraryAlternative& alternative, const NodeIds& others) {
    if (alternative_at_.contains(alternative.result)) return;
    alternative_at_.emplace(alternative.result, &alternative);
    for (int i = 0; i < std::ssize(others); ++i) other_at_.emplace(others[at(i)], Other{&alternative, i + 1});
  }

  Graph run() {
    return copied([&](NodeId id, Node node) { return place(id, std::move(node)); });
  }

 private:
  struct Other {
    const LibraryAlternative* alternative;
    int index;
  };

  NodeId place(NodeId id, Node n) {
    if (const auto alternative = alternative_at_.find(id); alternative != alternative_at_.end())
      return call(*alternative->second);
    const auto other = other_at_.find(id);
    if (other == other_at_.end()) return add(std::move(n));
    const NodeId call_of_alternative = call(*other->second.alternative);
    n.stage = to_[call_of_alternative].stage;
    return add(std::move(n), Op::library_result, {call_of_alternative}, LibraryResultAttributes{other->second.index});
  }

  NodeId call(const LibraryAlternative& alternative) {
    std::optional<NodeId>& known = call_at_[at(alternative.result)];
    if (!known) known = add_call(alternative);
    return *known;
  }

  /// What stands for an alternative's result: the call, or a transposed view of it.
  NodeId add_call(const LibraryAlternative& alternative) {
    const Node& result = g_[alternative.result];
    Node call = result;
    LibraryCallAttributes attributes = alternative.call;
    attributes.flops = flops_of(g_, products_, alternative);
    NodeIds arguments;
    for (const NodeId a : alternative.arguments) arguments.push_back(moved_[at(a)]);
    to_.stages.push_back({alternative.call.function.substr(alternative.call.function.rfind('.') + 1),
                          g_.stages[at(result.stage)].source});
    call.stage = static_cast<StageId>(to_.stages.size() - 1);
    for (std::size_t i = 0; i < alternative.order.size(); ++i) call.shape[i] = result.shape[at(alternative.order[i])];
    const NodeId made = add(std::move(call), Op::library_call, std::move(arguments), std::move(attributes));
    if (alternative.order.empty()) return made;
    return view_of(made, Op::transpose, result.shape, to_[made].stage, TransposeAttributes{inverse(alternative.order)});
  }

  const std::vector<NodeId> products_;
  std::vector<std::optional<NodeId>> call_at_;  // by the result of an alternative
  std::unordered_map<NodeId, const LibraryAlternative*> alternative_at_;
  std::unordered_map<NodeId, Other> other_at_;
};

}  // namespace

Graph as_library_runs(Graph g) {
  const std::vector<bool> live = live_nodes(g);
  std::vector<std::optional<NodeIds>> others;
  for (const LibraryAlternative& alternative : g.alternatives) others.push_back(take_out(g, alternative, live));
  WithCalls calls(g);
  for (std::size_t i = 0; i < others.size(); ++i)
    if (others[i]) calls.choose(g.alternatives[i], *others[i]);
  return calls.run();
}

Graph with_library_calls(const Graph& g, const std::vector<bool>& chosen) {
  WithCalls calls(g);
  for (std::size_t i = 0; i < g.alternatives.size(); ++i)
    if (chosen[i]) calls.choose(g.alternatives[i], {});
  return calls.run();
}

std::vector<AlternativeCost> alternative_costs(const Graph& g, const Plan& plan, const PlanCost& cost,
                                               const Device& device) {
  const std::vector<NodeId> products = products_of(g);
  const std::vector<StageId> stages = stages_in(g, plan);
  std::vector<AlternativeCost> costs;
  for (const LibraryAlternative& alternative : g.alternatives) {
    AlternativeCost c;
    const std::int64_t flops = flops_of(g, products, alternative);
    c.library_us = library_us(g, alternative, flops, device);
    c.products = std::ranges::count_if(products, [&](NodeId n) { return is_within(alternative, g[n].stage); });
    for (std::size_t i = 0; i < plan.groups.size(); ++i) {
      const auto of_alternative = [&](NodeId n) { return is_within(alternative, stages[at(plan.graph[n].stage)]); };
      const auto inside = std::ranges::count_if(plan.groups[i].nodes, of_alternative);
      if (inside == 0) continue;
      c.kernels_us += cost.groups[i].price.predicted_us;
      c.alone = c.alone && inside == std::ssize(plan.groups[i].nodes);
    }
    costs.push_back(c);
  }
  return costs;
}

}  // namespace kfusion
