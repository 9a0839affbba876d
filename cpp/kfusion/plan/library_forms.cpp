#include "kfusion/plan/library_forms.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "kfusion/checked.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/price.hpp"

namespace kfusion {
namespace {

bool is_within(const LibraryForm& form, StageId stage) { return stage >= form.first_stage && stage < form.end_stage; }

std::vector<NodeId> products_of(const Graph& g) {
  std::vector<NodeId> products;
  for (NodeId n = 0; n < std::ssize(g.nodes); ++n)
    if (kind(g[n].op) == OpKind::kContraction) products.push_back(n);
  return products;
}

/// Of the products among the nodes of a form; `products`: all of the graph.
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
  return flops;
}

/// Whether the library's one call is a convolution and, on a GPU, a kernel for what comes after it: torch's have no
/// bias inside there.
bool is_in_two_kernels(const Graph& g, const LibraryForm& form) {
  if (g[form.result].place.on_host() || g[form.result].op == Op::conv2d) return false;
  return std::ranges::any_of(g.nodes, [&](const Node& n) { return n.op == Op::conv2d && is_within(form, n.stage); });
}

/// In which the library's one call computes its products. torch's attention of bfloat16 takes a CPU as long as that of
/// float32 (2 x 8 x 512 x 64: 12.0 and 11.3 ms, one core), though its products of bfloat16 take a quarter.
DType computed_in(const Graph& g, const LibraryForm& form, const Device& device) {
  const DType type = g[form.arguments[0]].dtype;
  const bool is_attention = form.call.function.ends_with("scaled_dot_product_attention");
  return is_attention && is_half(type) && device.is_cpu ? DType::kFloat32 : type;
}

/// What torch's attention takes of the time of its products, longer than products alone do: FlashAttention-2, which it
/// prefers, reaches 0.36 of the peak of an H100 (b4 h16 s4096 d128, bfloat16), where products reach 0.78.
double slowness(const LibraryForm& form, const Device& device) {
  const bool attends = form.call.function.ends_with("scaled_dot_product_attention");
  return attends && device.compute_capability == 90 ? 0.78 / 0.36 : 1.0;
}

double library_us(const Graph& g, const LibraryForm& form, std::int64_t flops, const Device& device) {
  std::int64_t bytes = g[form.result].nbytes();
  for (const NodeId a : form.arguments) bytes = checked_add(bytes, g[a].nbytes());
  Price p;
  p.launch_us = device.launch_us;
  p.memory_us = static_cast<double>(bytes) / device.bandwidth * 1e6;
  p.compute_us = static_cast<double>(flops) / peak_flops(device, computed_in(g, form, device), true) * 1e6;
  p.compute_us *= slowness(form, device);
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

/// Appends the call of a form to `to`. Returns what stands for `result`: the call, or a transposed view of it.
Node call_of(const Graph& g, const LibraryForm& form, std::int64_t flops, const std::vector<NodeId>& where, Node result,
             Graph& to) {
  Node call = result;
  call.op = Op::library_call;
  call.attributes = form.call;
  std::get<LibraryCallAttributes>(call.attributes).flops = flops;
  call.arguments.clear();
  for (const NodeId a : form.arguments) call.arguments.push_back(where[at(a)]);
  to.stages.push_back(
      {form.call.function.substr(form.call.function.rfind('.') + 1), g.stages[at(result.stage)].source});
  call.stage = static_cast<StageId>(to.stages.size() - 1);
  if (form.order.empty()) return call;
  for (std::size_t i = 0; i < form.order.size(); ++i) call.shape[i] = result.shape[at(form.order[i])];
  to.nodes.push_back(call);
  result.op = Op::transpose;
  result.attributes = TransposeAttributes{inverse(form.order)};
  result.arguments = {static_cast<NodeId>(to.nodes.size() - 1)};
  result.stage = call.stage;
  return result;
}

}  // namespace

Graph with_library_calls(const Graph& g, const std::vector<bool>& chosen) {
  Graph to;
  to.stages = g.stages;
  to.nodes.reserve(g.nodes.size() + g.forms.size());
  std::vector<NodeId> where;
  const std::vector<NodeId> products = products_of(g);
  std::vector<const LibraryForm*> form_of(g.nodes.size());  // the first, where several have one result
  for (std::size_t i = g.forms.size(); i-- > 0;)
    if (chosen[i]) form_of[at(g.forms[i].result)] = &g.forms[i];
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    Node n = g[id];
    for (NodeId& a : n.arguments) a = where[at(a)];
    if (const LibraryForm* form = form_of[at(id)])
      n = call_of(g, *form, flops_of(g, products, *form), where, std::move(n), to);
    where.push_back(static_cast<NodeId>(to.nodes.size()));
    to.nodes.push_back(std::move(n));
  }
  for (const Output& o : g.outputs) to.outputs.push_back({o.name, where[at(o.node)]});
  return to;
}

std::vector<FormCost> form_costs(const Graph& g, const Plan& plan, const PlanCost& cost, const Device& device) {
  const std::vector<NodeId> products = products_of(g);
  const std::vector<StageId> stages = stages_in(g, plan);
  std::vector<FormCost> costs;
  for (const LibraryForm& form : g.forms) {
    FormCost c;
    const std::int64_t flops = flops_of(g, products, form);
    c.library_us = library_us(g, form, flops, device);
    c.has_product = flops > 0;
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
