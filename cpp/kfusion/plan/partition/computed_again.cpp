// Whether one kernel takes longer than two, because it computes what is small for it again wherever it is read.
#include <algorithm>

#include "kfusion/plan/names.hpp"
#include "kfusion/plan/partition/partition.hpp"
#include "kfusion/plan/partition/reasons.hpp"
#include "kfusion/plan/prices/flops.hpp"
#include "kfusion/plan/sweeps.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// The share of a product's time, with operations around it, that two kernels must stay under: it is known no better.
constexpr double kProductWorthTwo = 0.9;
/// The share of an epilogue's time that counts on a GPU: the rest runs beside another tile's product.
constexpr double kOfEpilogue = 0.5;

std::int64_t times_in(const Part& part, Axes span) {
  const bool is_of_row = part.reduced != 0 && (span & part.reduced) == 0;
  return product(is_of_row ? extents_of(part.domain, part.kept()) : part.domain);
}

}  // namespace

void Partition::move_axes(int p, const MovedAxes& moved, const Part& merged) {
  for (const NodeId n : part(p).nodes) {
    span_[at(n)] = moved_axes(moved, span_[at(n)]);
    times_[at(n)] = times_in(merged, span_[at(n)]);
  }
}

bool Partition::runs_alike(const Part& part, const Part& merged) const {
  return product(part.domain) == product(merged.domain) && (part.reduced != 0) == (merged.reduced != 0);
}

/// What nodes (ascending) take in a kernel like `as`, by the axes along which each varies there. `sweeps`: whether it
/// counts that loops over columns compute elements in each sweep.
Partition::Computed Partition::computed(const Part& as, const std::vector<NodeId>& nodes,
                                        const std::vector<Axes>& spans, bool sweeps) const {
  sweeps &= pattern_of(as, nodes) == Pattern::kColumns;
  const std::vector<int> swept =
      sweeps ? sweeps_over_columns(folded_, nodes, {as.stores.begin(), as.stores.end()}) : std::vector<int>{};
  Computed r;
  double most_us = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::int64_t once = times_[at(nodes[i])];
    std::int64_t times = times_in(as, spans[i]);
    if (sweeps && (spans[i] & as.reduced) != 0) times *= swept[i];
    const double us = us_of(flops_of(g_, nodes[i], times, device_), device_);
    r.us += us;
    if (times > once && us > most_us) most_us = us, r.most = nodes[i], r.times = times / once;
  }
  return r;
}

double Partition::compute_us(int p, bool sweeps) const {
  const std::vector<NodeId> nodes = nodes_of({p});
  std::vector<Axes> spans;
  for (const NodeId n : nodes) spans.push_back(span(n));
  return computed(part(p), nodes, spans, sweeps).us;
}

/// Results of other kernels may still be in the cache.
double Partition::memory_us(const Part& part) const {
  double seconds = 0;
  for (const NodeId s : part.sources) {
    const auto bytes = static_cast<double>(g_[s].nbytes());
    const bool is_cached = part_of(s) >= 0 && g_[s].nbytes() <= device_.cache_bytes / 2;
    if (!is_part(g_[s])) seconds += bytes / (is_cached ? device_.cache_bandwidth : device_.bandwidth);
  }
  for (const NodeId s : part.stores) seconds += static_cast<double>(g_[s].nbytes()) / device_.bandwidth;
  return seconds * 1e6;
}

/// Whether loops over columns would go over what several calls make more than once.
bool Partition::sweeps_again(int a, int b, const Part& merged) const {
  const bool one_call = g_[part(a).nodes[0]].stage == g_[part(b).nodes[0]].stage;
  return device_.is_cpu && merged.second_sweep && !one_call && (merged.kept() & (merged.kept() + 1)) != 0;
}

/// Memory and arithmetic overlap: what is computed again costs nothing where memory takes longer anyway.
std::optional<std::string> Partition::computes_again(int a, int b, const Verdict& v) const {
  const bool alike = runs_alike(part(a), v.merged) && runs_alike(part(b), v.merged);
  const bool sweeps = sweeps_again(a, b, v.merged);
  if (!options_.allow.empty() || (alike && !sweeps)) return std::nullopt;
  if (!alike && !options_.stored.empty())
    for (const Edge& e : crossing_edges(a, b))
      if (options_.stored.contains(name_in_variants(g_, e.producer)))
        return label(g_, e.producer) + " would be computed again, which is predicted to take longer than to store it";
  const std::vector<NodeId> nodes = nodes_of({a, b});
  std::vector<Axes> spans;
  for (const NodeId n : nodes)
    spans.push_back(moved_axes(part_of(n) == a ? v.match.moved_a : v.match.moved_b, span(n)));
  const Computed both = computed(v.merged, nodes, spans, sweeps);
  const double a_us = compute_us(a, sweeps), b_us = compute_us(b, sweeps);
  const bool is_product = v.merged.kind == WorkKind::kContraction;
  const double again_us = (both.us - a_us - b_us) * (is_product && !device_.is_cpu ? kOfEpilogue : 1);
  if (again_us <= device_.launch_us) return std::nullopt;
  const double two_us = device_.launch_us + std::max(a_us, memory_us(part(a))) + std::max(b_us, memory_us(part(b)));
  const double one_us = std::max(a_us + b_us + again_us, memory_us(v.merged));
  if (two_us >= (is_product ? kProductWorthTwo : 1) * one_us) return std::nullopt;
  return "it would compute " + label(g_, both.most) + " " + std::to_string(both.times) +
         " times, which is predicted to take longer than to store it";
}

}  // namespace kfusion
