// Whether one kernel takes longer than two, because it computes what is small for it again wherever it is read.
#include <algorithm>

#include "kfusion/plan/flops.hpp"
#include "kfusion/plan/joins.hpp"
#include "kfusion/plan/partition.hpp"
#include "kfusion/plan/reasons.hpp"

namespace kfusion {
namespace {

/// Of what a product takes with operations around it: its time is not known better.
constexpr double kClearly = 0.9;
/// Of what an epilogue computes on a GPU: the rest runs beside another tile's product.
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

double Partition::compute_us(const Part& part) const {
  double us = 0;
  for (const NodeId n : part.nodes) us += us_of(flops_of(g_, n, times_[at(n)], device_), device_);
  return us;
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

Partition::Again Partition::again_in(int p, const MovedAxes& moved, const Part& merged) const {
  Again r;
  double most_us = 0;
  if (runs_alike(part(p), merged)) return r;
  for (const NodeId n : part(p).nodes) {
    const std::int64_t once = times_[at(n)], times = times_in(merged, moved_axes(moved, span(n)));
    const double us = us_of(flops_of(g_, n, times, device_), device_) - us_of(flops_of(g_, n, once, device_), device_);
    r.us += us;
    if (us > most_us) most_us = us, r.most = n, r.times = times / once;
  }
  return r;
}

/// Memory and arithmetic overlap: what is computed again costs nothing where memory takes longer anyway.
std::optional<std::string> Partition::computes_again(int a, int b, const Verdict& v) const {
  const Again of_a = again_in(a, v.match.moved_a, v.merged), of_b = again_in(b, v.match.moved_b, v.merged);
  const bool is_product = v.merged.kind == WorkKind::kContraction;
  const double again_us = (of_a.us + of_b.us) * (is_product && !device_.is_cpu ? kOfEpilogue : 1);
  if (again_us <= device_.launch_us || !options_.allow.empty()) return std::nullopt;
  const double a_us = compute_us(part(a)), b_us = compute_us(part(b));
  const double two_us = device_.launch_us + std::max(a_us, memory_us(part(a))) + std::max(b_us, memory_us(part(b)));
  const double one_us = std::max(a_us + b_us + again_us, memory_us(v.merged));
  if (two_us >= (is_product ? kClearly : 1) * one_us) return std::nullopt;
  const Again& worse = of_a.us > of_b.us ? of_a : of_b;
  return "it would compute " + label(g_, worse.most) + " " + std::to_string(worse.times) +
         " times, which is predicted to take longer than to store it";
}

}  // namespace kfusion
