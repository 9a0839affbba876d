#include "kfusion/plan/search/variants.hpp"

#include <algorithm>
#include <set>

#include "kfusion/plan/partition/joins.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "kfusion/plan/reports/names.hpp"
#include "kfusion/plan/rewrites/align_rows.hpp"
#include "kfusion/plan/rewrites/cut_products.hpp"
#include "kfusion/plan/rewrites/duplicate.hpp"
#include "kfusion/plan/rewrites/partial_sums.hpp"
#include "kfusion/plan/rewrites/pointwise_convolutions.hpp"
#include "kfusion/plan/rewrites/push.hpp"
#include "kfusion/plan/rewrites/push_gathers.hpp"
#include "kfusion/plan/rewrites/push_masks.hpp"
#include "kfusion/plan/rewrites/regroup.hpp"
#include "kfusion/plan/rewrites/runnable.hpp"
#include "kfusion/plan/rewrites/tiling.hpp"
#include "kfusion/plan/rewrites/unroll.hpp"
#include "kfusion/plan/rewrites/widen_positions.hpp"

namespace kfusion {
namespace {

/// What copies have to save of all bytes. Else a chain of a thousand barriers would be planned once for each.
constexpr std::int64_t kLeastSaving = 100;

/// Nodes of graphs that are merged in several orders, and the share of the time that another order has to take at
/// most: less may be the prices' error.
constexpr std::size_t kMostReordered = 256;
constexpr double kClearlyFaster = 0.98;

/// Short reductions that may be written out. A CPU takes rows of a few elements for much longer than operations on
/// slices (1024 x 1024 distances in 32 dimensions 56 ms instead of 3.6). To a GPU, which reads neighbours best,
/// elements a few apart cost more: reading an array in that way must save half of all bytes.
constexpr Unroll kUnrollCpu{32, true}, kUnrollGpu{4, false};
constexpr std::int64_t kLeastRatio = 2;

/// Elements of rows whose extremes are taken beside what else is computed of them. Of computed values (y = softmax(x)
/// and its maximum) a CPU takes them a row at a time: 65536 rows of 64 elements take one core 13.7 ms instead of 3.1 by
/// a second kernel, of 512 26 instead of 17, of 1024 as long. But of 512, x.sum(-1) with x.max() takes 5.9 instead of
/// 11, and layer norm divided by its largest element 35 instead of 72.
constexpr std::int64_t kLeastSplitRowCpu = 512;

}  // namespace

Graph prepared(Graph g, const PlanOptions& options) {
  make_stage_names_unique(g);
  return options.beyond_executors() ? g : without_empty_work(std::move(g));
}

Counted Planner::plan(Scope scope) const {
  auto planning = planning_of(runnable_graph(simple_graph(scope), scope), scope);
  planning->merge();
  return Counted(std::move(planning));
}

Counted Planner::fused(const Counted& unfused, bool in_any_order) const {
  Graph g = simple_graph(Scope::kEverything);
  const bool names_kernels = !options_.allow.empty() || !options_.forbid.empty();
  if (auto masked = names_kernels ? std::nullopt : with_masks_pushed(g)) g = simplify(std::move(*masked));
  Counted chosen = plan_in_cells(g, unfused);
  const auto consider = [&](std::optional<Graph> other, auto is_better) {
    if (!other) return;
    *other = simplify(std::move(*other));
    Counted made = plan_in_cells(*other, unfused);
    if (!made.exceeds(unfused) && is_better(made)) chosen = std::move(made), g = std::move(*other);
  };
  const auto saves_time = [&](const Counted& other) { return other.us() < chosen.us(); };
  const auto saves_both = [&](const Counted& other) { return saves_time(other) && other.bytes() < chosen.bytes(); };
  if (!names_kernels) {  // else the caller names the reductions and values that there are
    consider(with_reductions_joined(g), saves_both);
    consider(with_reductions_split(g, device_.is_cpu ? kLeastSplitRowCpu : 1), saves_both);
    consider(with_positions_widened(g), saves_time);
  }
  consider(unrolled(g, device_.is_cpu ? kUnrollCpu : kUnrollGpu),
           [&](const Counted& other) { return is_worth_unrolling(chosen, other); });
  if (!names_kernels) consider(with_products_cut(g), saves_time);
  if (!names_kernels && !device_.is_cpu) consider(with_pointwise_convolutions(g), saves_time);
  if (!names_kernels && !device_.is_cpu) consider(with_rows_aligned(g), saves_time);
  consider(with_gathers_pushed(g), saves_time);
  if (!names_kernels)
    for (const SumsOf what : {SumsOf::kProducts, SumsOf::kRows})
      consider(with_partial_sums(g, what, device_),
               [&](const Counted& other) { return saves_time(other) && has_kernels_for_partial_sums(other.plan()); });
  if (in_any_order && !names_kernels) chosen = in_fastest_order(std::move(chosen), unfused);
  for (const Scope scope : {Scope::kCallsFirst, Scope::kWithinCalls})
    if (chosen.exceeds(unfused)) chosen = plan(scope);
  return chosen;
}

/// A merge may be in the way of others that save more: which ones, the order decides. The plan's own graph is planned
/// again, once for each order. That would take a quarter more time of models of a dozen layers, to save 0.1 %.
Counted Planner::in_fastest_order(Counted chosen, const Counted& unfused) const {
  for (const Order order : {Order::kBackward, Order::kShared}) {
    if (chosen.plan().groups.size() < 2 || chosen.plan().graph.nodes.size() > kMostReordered) break;
    auto planning = planning_of(chosen.plan().graph, Scope::kEverything);
    planning->merge({}, order);
    Counted other(std::move(planning));
    const bool runs = options_.beyond_executors() || other.runs() || !chosen.runs();
    const bool is_allowed = !other.exceeds(unfused) && runs && has_kernels_for_partial_sums(other.plan());
    const bool is_faster = other.us() < kClearlyFaster * chosen.us() && other.is_faster_than(chosen);  // as measured
    if (is_allowed && (is_faster || chosen.exceeds(unfused))) chosen = std::move(other);
  }
  return chosen;
}

bool Planner::is_worth_unrolling(const Counted& chosen, const Counted& other) const {
  const bool saves = device_.is_cpu || kLeastRatio * other.bytes() <= chosen.bytes();
  return saves && !other.exceeds(chosen) && other.us() <= chosen.us();
}

/// Joins are pushed, and sliced values computed in slices, where that saves time: all of them, else those that are
/// alike, one kind after the other.
Counted Planner::plan_in_cells(const Graph& g, const Counted& unfused) const {
  Counted chosen = plan_with_copies(runnable_graph(g, Scope::kEverything));
  const std::vector<std::vector<NodeId>> kinds = cuttable(g);
  std::set<NodeId> taken;
  const auto take = [&](std::set<NodeId> seeds) {
    Counted other = plan_with_copies(runnable_graph(simplify(pushed(g, seeds)), Scope::kEverything));
    if (other.exceeds(unfused) || other.us() >= chosen.us()) return false;
    chosen = std::move(other);
    taken = std::move(seeds);
    return true;
  };
  std::set<NodeId> all;
  for (const auto& kind : kinds) all.insert(kind.begin(), kind.end());
  if (kinds.empty() || take(all)) return chosen;
  for (std::size_t i = 0; kinds.size() > 1 && i < std::min(kinds.size(), kMostTrials); ++i) {
    std::set<NodeId> more = taken;
    more.insert(kinds[i].begin(), kinds[i].end());
    take(std::move(more));
  }
  return chosen;
}

/// Copies of cheap values stay where bytes fall, and time does not rise by more than prices know: to a CPU,
/// exponentials of a matrix cost more than storing them, those of a few hundred elements nothing beside a launch. A
/// copy can make another one pay: of what the first one reads.
Counted Planner::plan_with_copies(Graph g) const {
  auto planning = planning_of(std::move(g), Scope::kEverything);
  planning->merge();
  auto copied = planning->graph_with_copies();
  Counted best(std::move(planning));
  while (copied) {
    auto again = planning_of(std::move(copied->graph), Scope::kEverything);
    again->merge(copied->copies);
    copied = again->graph_with_copies();
    Counted other(std::move(again));
    const bool saves = best.bytes() - other.bytes() > best.bytes() / kLeastSaving;
    if (other.exceeds(best) || other.us() > best.us() + kIndistinctLaunch * device_.launch_us || !saves) break;
    best = std::move(other);
  }
  return best;
}

std::unique_ptr<Planning> Planner::planning_of(Graph g, Scope scope) const {
  return std::make_unique<Planning>(std::move(g), device_, options_, scope);
}

Graph Planner::runnable_graph(Graph simple, Scope scope) const {
  if (!options_.beyond_executors()) simple = with_own_results(std::move(simple));
  return with_parts(std::move(simple), scope == Scope::kEverything);
}

}  // namespace kfusion
