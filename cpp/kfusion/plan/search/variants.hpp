// Plans of one graph, with the changes to it that pay.
#pragma once
#include <memory>

#include "kfusion/plan/partition/planning.hpp"

namespace kfusion {

struct Rewrite;

/// Kinds of seeds that are tried one after the other at most, each for one more plan.
inline constexpr std::size_t kMostTrials = 8;

/// What a planner plans: with names of its own for each stage, and of what is to run only work that has elements.
Graph prepared(Graph g, const PlanOptions& options);

/// Plans of one prepared graph, as the executors need it or as it could be.
class Planner {
 public:
  Planner(const Graph& g, const Device& device, const PlanOptions& options)
      : device_(device), options_(options), graph_(g) {}

  Counted plan(Scope scope) const;

  /// Never more bytes or kernels than `unfused`. `in_any_order`: the fastest of several orders of merging.
  Counted fused(const Counted& unfused, bool in_any_order = true) const;

 private:
  Counted in_fastest_order(Counted chosen, const Counted& unfused) const;
  std::optional<Graph> rewritten(const Graph& g, const Rewrite& rewrite) const;
  Counted plan_in_cells(const Graph& g, const Counted& unfused) const;
  Counted plan_with_copies(Graph g) const;
  std::unique_ptr<Planning> planning_of(Graph g, Scope scope) const;
  Graph simple_graph(Scope scope) const { return simplify(graph_, scope == Scope::kEverything); }
  Graph runnable_graph(Graph simple, Scope scope) const;

  const Device& device_;
  const PlanOptions& options_;
  const Graph& graph_;
};

}  // namespace kfusion
