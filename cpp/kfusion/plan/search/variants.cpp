#include "kfusion/plan/search/variants.hpp"

#include <algorithm>
#include <set>

#include "kfusion/graph/runnable.hpp"
#include "kfusion/plan/cells/push.hpp"
#include "kfusion/plan/cells/tiling.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/partition/duplicate.hpp"
#include "kfusion/plan/partition/partial_sums.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "kfusion/plan/rewrites/table.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// What copies have to save of all bytes. Else a chain of a thousand barriers would be planned once for each.
constexpr std::int64_t kLeastSaving = 100;

/// Nodes of graphs that are merged in several orders, and the share of the time that another order has to take at
/// most: less may be the prices' error.
constexpr std::size_t kMostReordered = 256;
constexpr double kClearlyFaster = 0.98;

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
  for (const Rewrite& r : rewrites())
    if (auto other = r.accepted ? std::nullopt : rewritten(g, r)) g = std::move(*other);
  Counted chosen = plan_in_cells(g, unfused);
  for (const Rewrite& r : rewrites()) {
    auto other = r.accepted ? rewritten(g, r) : std::nullopt;
    if (!other) continue;
    Counted made = plan_in_cells(*other, unfused);
    if (!made.exceeds(unfused) && r.accepted(chosen, made, device_)) chosen = std::move(made), g = std::move(*other);
  }
  if (in_any_order && !options_.names_kernels()) chosen = in_fastest_order(std::move(chosen), unfused);
  for (const Scope scope : {Scope::kCallsFirst, Scope::kWithinCalls})
    if (chosen.exceeds(unfused)) chosen = plan(scope);
  return chosen;
}

std::optional<Graph> Planner::rewritten(const Graph& g, const Rewrite& rewrite) const {
  auto other = rewrite.when(options_, device_) ? rewrite.of(g, device_) : std::nullopt;
  return other ? std::optional(simplify(std::move(*other))) : std::nullopt;
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
