#include "kfusion/plan/search/slow_products.hpp"

#include <algorithm>
#include <map>

#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/prices/price.hpp"

namespace kfusion {
namespace {

/// What has to be gained: less may be the prices' error.
constexpr double kClearly = 0.98;

bool is_product(const Node& n) { return kind(n.op) == OpKind::kContraction; }

double us(std::int64_t bytes, double per_second) { return static_cast<double>(bytes) / per_second * 1e6; }

double product_us(const Graph& g, const Node& n, const Device& device) {
  const Extents &x = g[n.arguments[0]].shape, &w = g[n.arguments[1]].shape;
  const std::int64_t depth = n.op == Op::matmul ? x.back() : w[1] * w[2] * w[3];
  Price p;
  p.launch_us = device.launch_us;
  p.memory_us = us(n.nbytes() + g[n.arguments[0]].nbytes() + g[n.arguments[1]].nbytes(), device.bandwidth);
  p.compute_us = 2e6 * static_cast<double>(depth) * static_cast<double>(n.size()) / peak_flops(device, n.dtype, true);
  settle(p);
  return product_price(p, device).total_us;
}

/// Time of one kernel for each product, and one for the rest, which finds the products in the cache if they are small.
double us_apart(const Graph& g, const Group& group, const Device& device) {
  double products = 0;
  std::int64_t made = 0, moved = 0;
  std::set<NodeId> factors;
  bool has_rest = false;
  for (const NodeId id : group.nodes) {
    has_rest = has_rest || !is_product(g[id]);
    if (!is_product(g[id])) continue;
    products += product_us(g, g[id], device);
    made += g[id].nbytes();
    for (NodeId a : g[id].arguments) {
      factors.insert(a);
      while (kind(g[a].op) == OpKind::kView) factors.insert(a = g[a].arguments[0]);
    }
  }
  if (!has_rest) return products;
  for (const Load& load : group.loads)
    if (!factors.contains(load.access.base)) moved += g[load.access.base].nbytes();
  for (const NodeId n : group.stores) moved += g[n].nbytes();
  const bool is_cached = made <= device.cache_bytes / 2;
  return products + device.launch_us + us(moved, device.bandwidth) +
         us(made, is_cached ? device.cache_bandwidth : device.bandwidth);
}

/// Kernels that do the same have one kind: layers of a model, but not a product forward and one of that shape backward.
std::string kind_of(const Graph& g, const Node& product, const Group& group) {
  std::string text = std::string(name(product.dtype)) + shape_text(product.shape);
  for (const NodeId n : group.nodes) text += " " + std::string(name(g[n].op));
  return text;
}

}  // namespace

std::vector<SlowProducts> slow_products(const Plan& plan, const PlanCost& cost, const Executor* executor,
                                        const Device& device) {
  const Graph& g = plan.graph;
  std::map<std::string, SlowProducts> found;
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    const Group& group = plan.groups[i];
    const auto product = std::ranges::find_if(group.nodes, [&](NodeId n) { return is_product(g[n]); });
    if (!is_run_by(group, executor) || group.nodes.size() < 2 || product == group.nodes.end()) continue;
    const double apart_us = us_apart(g, group, device), us = cost.groups[i].price.predicted_us;
    if (apart_us >= kClearly * us) continue;
    SlowProducts& slow = found[kind_of(g, g[*product], group)];
    slow.lost_us += us - apart_us;
    for (const NodeId n : group.nodes)
      if (is_product(g[n])) slow.names.insert(name_in_variants(g, n));
  }
  std::vector<SlowProducts> all;
  for (auto& [kind, slow] : found) all.push_back(std::move(slow));
  std::ranges::stable_sort(all, std::ranges::greater{}, &SlowProducts::lost_us);
  return all;
}

}  // namespace kfusion
