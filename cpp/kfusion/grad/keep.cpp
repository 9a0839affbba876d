#include "kfusion/grad/keep.hpp"

#include <algorithm>
#include <unordered_set>

#include "kfusion/grad/vjp.hpp"

namespace kfusion::grad {
namespace {

bool is_within(const LibraryForm& form, const Node& n) {
  return n.stage >= form.first_stage && n.stage < form.end_stage;
}

/// Whether computing a product again takes longer than a store and a load of it.
bool is_costly(const Graph& g, const Node& n, const Device& device) {
  const Extents &x = g[n.arguments[0]].shape, &w = g[n.arguments[1]].shape;
  const std::int64_t depth = n.op == Op::matmul ? x.back() : w[1] * w[2] * w[3];
  const double flops = 2 * static_cast<double>(depth) * static_cast<double>(n.size());
  return flops / peak_flops(device, n.dtype, true) > 2 * static_cast<double>(n.nbytes()) / device.bandwidth;
}

/// A product with what follows it, such as a bias.
bool has_product_like_result(const Graph& g, const LibraryForm& form, const Device& device) {
  return std::ranges::any_of(g.nodes, [&](const Node& n) {
    return kind(n.op) == OpKind::kContraction && is_within(form, n) && n.nbytes() == g[form.result].nbytes() &&
           is_costly(g, n, device);
  });
}

}  // namespace

bool is_large_inside(const Graph& g, const LibraryForm& form) {
  std::int64_t outside = g[form.result].nbytes(), largest = 0;
  for (const NodeId a : form.arguments) outside += g[a].nbytes();
  for (NodeId id = 0; id < form.result; ++id)
    if (is_within(form, g[id])) largest = std::max(largest, g[id].nbytes());
  return largest > outside;
}

std::vector<NodeId> worth_keeping(const Graph& g, const Device& device) {
  std::vector<LibraryForm> whole;  // a function of the library's, of which its result is kept, and nothing inside
  for (const LibraryForm& form : g.forms)
    if (is_large_inside(g, form) || has_product_like_result(g, form, device)) whole.push_back(form);
  std::vector<NodeId> found;
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    const Node& n = g[id];
    const auto hides = [&](const LibraryForm& form) { return id != form.result && is_within(form, n); };
    if (std::ranges::any_of(whole, hides)) continue;
    const bool is_result = std::ranges::find(whole, id, &LibraryForm::result) != whole.end();
    const bool is_product = kind(n.op) == OpKind::kContraction && is_costly(g, n, device);
    if (is_result || is_product || kind(n.op) == OpKind::kLibrary) found.push_back(id);
  }
  return found;
}

std::vector<NodeId> needed_backward(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs,
                                    const std::vector<NodeId>& candidates) {
  GraphBuilder scratch = graph;
  NodeIds cotangents;
  for (const NodeId y : outputs) {
    const Node n = scratch.graph()[y];
    cotangents.push_back(scratch.input("", n.shape, n.dtype, n.library, n.place, false));
  }
  const Vjp made = add_vjp(scratch, outputs, cotangents, inputs, 0);
  const std::unordered_set<NodeId> stops(candidates.begin(), candidates.end());
  std::vector<bool> seen(scratch.graph().nodes.size());
  std::vector<NodeId> todo = made.gradients, needed;
  while (!todo.empty()) {
    const NodeId id = todo.back();
    todo.pop_back();
    if (seen[at(id)]) continue;
    seen[at(id)] = true;
    if (stops.contains(id)) {
      needed.push_back(id);
      continue;
    }
    for (const NodeId a : scratch.graph()[id].arguments) todo.push_back(a);
  }
  std::ranges::sort(needed);
  return needed;
}

std::vector<NodeId> reaching(const GraphBuilder& graph, const NodeIds& outputs, const NodeIds& inputs) {
  const Graph& g = graph.graph();
  std::vector<bool> reached(g.nodes.size());
  for (const NodeId id : inputs) reached[at(id)] = true;
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    const bool passes = (is_float(g[id].dtype) || kind(g[id].op) == OpKind::kLibrary) && !graph.is_stopped(id);
    if (passes && std::ranges::any_of(g[id].arguments, [&](NodeId a) { return reached[at(a)]; }))
      reached[at(id)] = true;
  }
  std::vector<NodeId> found;
  for (const NodeId id : outputs)
    if (is_float(g[id].dtype) && reached[at(id)]) found.push_back(id);
  return found;
}

}  // namespace kfusion::grad
