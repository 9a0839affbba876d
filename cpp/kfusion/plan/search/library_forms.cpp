#include "kfusion/plan/search/library_forms.hpp"

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

bool is_within(const LibraryForm& form, StageId stage) { return stage >= form.first_stage && stage < form.end_stage; }

std::vector<NodeId> products_of(const Graph& g) {
  std::vector<NodeId> products;
  for (NodeId n = 0; n < std::ssize(g.nodes); ++n)
    if (kind(g[n].op) == OpKind::kContraction) products.push_back(n);
  return products;
}

/// Whether a form's nodes read positions: attention of a causal mask.
bool has_positions(const Graph& g, const LibraryForm& form) {
  return std::ranges::any_of(g.nodes, [&](const Node& n) {
    return is_within(form, n.stage) && std::ranges::any_of(n.arguments, [&](NodeId a) { return g[a].op == Op::iota; });
  });
}

/// FLOPs of the products among the nodes of a form; `products`: all of the graph. Half of them where a causal mask
/// hides half of the scores, which torch's kernels leave out.
std::int64_t flops_of(const Graph& g, const std::vector<NodeId>& products, const LibraryForm& form) {
  std::int64_t flops = 0;
  for (const NodeId product : products) {
    const Node& n = g[product];
    if (!is_within(form, n.stage)) continue;
    const Extents &a = g[n.arguments[0]].shape, &w = g[n.arguments[1]].shape;
    const std::int64_t depth = n.op == Op::matmul ? a.back() : w[1] * w[2] * w[3];
    flops = checked_add(flops, checked_multiply(checked_multiply(2, depth, "operations"), n.size(), "operations"),
                        "operations");
  }
  return has_positions(g, form) ? flops / 2 : flops;
}

/// Whether the library's one call is a convolution and, on a GPU, a kernel for what comes after it: torch's have no
/// bias inside there.
bool is_in_two_kernels(const Graph& g, const LibraryForm& form) {
  if (g[form.result].place.on_host() || g[form.result].op == Op::conv2d) return false;
  return std::ranges::any_of(g.nodes, [&](const Node& n) { return n.op == Op::conv2d && is_within(form, n.stage); });
}

double library_us(const Graph& g, const LibraryForm& form, std::int64_t flops, const Device& device) {
  std::int64_t bytes = g[form.result].nbytes();
  for (const NodeId a : form.arguments) bytes = checked_add(bytes, g[a].nbytes());
  Price p;
  p.launch_us = device.launch_us;
  p.memory_us = static_cast<double>(bytes) / device.bandwidth * 1e6;
  const DType type = g[form.arguments[0]].dtype;
  p.compute_us = static_cast<double>(flops) / peak_flops(device, type, true) * 1e6 *
                 times_of_products(form.call.function, type, device);
  settle(p);
  const double one_us = (flops > 0 ? product_price(p, device) : p).total_us;
  if (!is_in_two_kernels(g, form)) return one_us;
  return one_us + device.launch_us + 2e6 * static_cast<double>(g[form.result].nbytes()) / device.bandwidth;
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

/// What nodes outside of a form read of those within, but for its result. Numbers of each row are further results of
/// the call: the library's own backward pass is given them. What is as large as an argument is computed where it is
/// read, as that pass does.
struct ReadWithin {
  NodeIds results;
  std::vector<std::pair<NodeId, StageId>> moved;
  bool is_given = true;  ///< whether the library's call could give the results, and nothing slow is computed twice
};

ReadWithin read_within(const Graph& g, const LibraryForm& form, const std::vector<bool>& live) {
  std::int64_t largest = 0;
  NodeId last = 0;
  for (const NodeId a : form.arguments) largest = std::max(largest, g[a].size()), last = std::max(last, a);
  std::vector<StageId> reader(g.nodes.size(), -1);  // by node of the form: the stage in which it is read first
  ReadWithin found;
  for (NodeId id = static_cast<NodeId>(std::ssize(g.nodes)) - 1; id >= 0; --id) {
    const Node& n = g[id];
    const bool inside = id != form.result && is_within(form, n.stage);
    const StageId by = inside ? reader[at(id)] : n.stage;
    if (!live[at(id)] || by < 0 || id == form.result) continue;
    if (inside && kind(n.op) != OpKind::kView && n.size() < largest) {
      found.results.insert(found.results.begin(), id);
      found.is_given = found.is_given && last < id;
      continue;
    }
    if (inside) found.moved.emplace_back(id, by);
    const bool is_slow = kind(n.op) == OpKind::kContraction || kind(n.op) == OpKind::kLibrary;
    found.is_given = found.is_given && !(inside && is_slow);
    for (const NodeId a : n.arguments)
      if (is_within(form, g[a].stage)) reader[at(a)] = by;
  }
  return found;
}

/// Takes what is read within a form out of it, so that its call may stand for the rest; returns what the call has to
/// give too, and nothing where that cannot be.
std::optional<NodeIds> take_out(Graph& g, const LibraryForm& form, const std::vector<bool>& live) {
  ReadWithin read = read_within(g, form, live);
  if (!read.is_given || (!form.order.empty() && !read.results.empty())) return std::nullopt;
  for (const auto& [id, stage] : read.moved) g.nodes[at(id)].stage = stage;
  return std::move(read.results);
}

/// A graph while calls take the place of nodes.
class WithCalls : private GraphCopy {
 public:
  explicit WithCalls(const Graph& g) : GraphCopy(g), products_(products_of(g)), call_at_(g.nodes.size()) {}

  /// The call of a form, which gives `others`, too, stands for its result; the first form, where several have one.
  void choose(const LibraryForm& form, const NodeIds& others) {
    if (form_at_.contains(form.result)) return;
    form_at_.emplace(form.result, &form);
    for (int i = 0; i < std::ssize(others); ++i) other_at_.emplace(others[at(i)], Other{&form, i + 1});
  }

  Graph run() {
    return copied([&](NodeId id, Node node) { return place(id, std::move(node)); });
  }

 private:
  struct Other {
    const LibraryForm* form;
    int index;
  };

  NodeId place(NodeId id, Node n) {
    if (const auto form = form_at_.find(id); form != form_at_.end()) return call(*form->second);
    const auto other = other_at_.find(id);
    if (other == other_at_.end()) return add(std::move(n));
    const NodeId call_of_form = call(*other->second.form);
    n.stage = to_[call_of_form].stage;
    return add(std::move(n), Op::library_result, {call_of_form}, LibraryResultAttributes{other->second.index});
  }

  NodeId call(const LibraryForm& form) {
    std::optional<NodeId>& known = call_at_[at(form.result)];
    if (!known) known = add_call(form);
    return *known;
  }

  /// What stands for a form's result: the call, or a transposed view of it.
  NodeId add_call(const LibraryForm& form) {
    const Node& result = g_[form.result];
    Node call = result;
    LibraryCallAttributes attributes = form.call;
    attributes.flops = flops_of(g_, products_, form);
    NodeIds arguments;
    for (const NodeId a : form.arguments) arguments.push_back(moved_[at(a)]);
    to_.stages.push_back(
        {form.call.function.substr(form.call.function.rfind('.') + 1), g_.stages[at(result.stage)].source});
    call.stage = static_cast<StageId>(to_.stages.size() - 1);
    for (std::size_t i = 0; i < form.order.size(); ++i) call.shape[i] = result.shape[at(form.order[i])];
    const NodeId made = add(std::move(call), Op::library_call, std::move(arguments), std::move(attributes));
    if (form.order.empty()) return made;
    return view_of(made, Op::transpose, result.shape, to_[made].stage, TransposeAttributes{inverse(form.order)});
  }

  const std::vector<NodeId> products_;
  std::vector<std::optional<NodeId>> call_at_;  // by the result of a form
  std::unordered_map<NodeId, const LibraryForm*> form_at_;
  std::unordered_map<NodeId, Other> other_at_;
};

}  // namespace

Graph as_library_runs(Graph g) {
  const std::vector<bool> live = live_nodes(g);
  std::vector<std::optional<NodeIds>> others;
  for (const LibraryForm& form : g.forms) others.push_back(take_out(g, form, live));
  WithCalls calls(g);
  for (std::size_t i = 0; i < others.size(); ++i)
    if (others[i]) calls.choose(g.forms[i], *others[i]);
  return calls.run();
}

Graph with_library_calls(const Graph& g, const std::vector<bool>& chosen) {
  WithCalls calls(g);
  for (std::size_t i = 0; i < g.forms.size(); ++i)
    if (chosen[i]) calls.choose(g.forms[i], {});
  return calls.run();
}

std::vector<FormCost> form_costs(const Graph& g, const Plan& plan, const PlanCost& cost, const Device& device) {
  const std::vector<NodeId> products = products_of(g);
  const std::vector<StageId> stages = stages_in(g, plan);
  std::vector<FormCost> costs;
  for (const LibraryForm& form : g.forms) {
    FormCost c;
    const std::int64_t flops = flops_of(g, products, form);
    c.library_us = library_us(g, form, flops, device);
    c.products = std::ranges::count_if(products, [&](NodeId n) { return is_within(form, g[n].stage); });
    for (std::size_t i = 0; i < plan.groups.size(); ++i) {
      const auto of_form = [&](NodeId n) { return is_within(form, stages[at(plan.graph[n].stage)]); };
      const auto inside = std::ranges::count_if(plan.groups[i].nodes, of_form);
      if (inside == 0) continue;
      c.kernels_us += cost.groups[i].price.predicted_us;
      c.alone = c.alone && inside == std::ssize(plan.groups[i].nodes);
    }
    costs.push_back(c);
  }
  return costs;
}

}  // namespace kfusion
