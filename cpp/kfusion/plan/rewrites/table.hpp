// Rewrites: equivalent graphs that may plan better. The table (table.cpp) has them in the order in which the
// search tries each of them on the graph that the ones before have left.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "kfusion/graph/copy.hpp"
#include "kfusion/plan/partition/planning.hpp"

namespace kfusion {

struct Rewrite {
  std::string_view name;
  bool (*pattern)(const Graph& g, NodeId n);  ///< a node that it may be about; without one, nothing is copied
  std::optional<Graph> (*replacement)(const Graph& g, const Device& device);  ///< not simplified; nothing: no change
  bool (*when)(const PlanOptions& options, const Device& device);
  /// Whether plan `made` replaces `chosen`. nullptr: always applied, without planning, before all rows that have one.
  bool (*accepted)(const Counted& chosen, const Counted& made, const Device& device);

  /// The graph with it, if it changes anything.
  std::optional<Graph> of(const Graph& g, const Device& device) const;
};

std::span<const Rewrite> rewrites();

// Each is described where it stands: NAME.cpp.
std::optional<Graph> masks_pushed(const Graph& g, const Device& device);
std::optional<Graph> reductions_split(const Graph& g, const Device& device);
std::optional<Graph> positions_widened(const Graph& g, const Device& device);
std::optional<Graph> reductions_unrolled(const Graph& g, const Device& device);
std::optional<Graph> products_cut(const Graph& g, const Device& device);
std::optional<Graph> pointwise_convolutions(const Graph& g, const Device& device);
std::optional<Graph> rows_aligned(const Graph& g, const Device& device);
std::optional<Graph> gathers_pushed(const Graph& g, const Device& device);
std::optional<Graph> products_summed_in_parts(const Graph& g, const Device& device);
std::optional<Graph> rows_summed_in_parts(const Graph& g, const Device& device);

/// A rewrite of single nodes: what takes the place of node n of to.from(), whose arguments are nodes of the copy in
/// `node`; nothing where it stays.
using Replace = std::optional<NodeId> (*)(GraphCopy& to, NodeId n, const Node& node);

template <Replace replace>
std::optional<Graph> everywhere(const Graph& g, const Device&) {
  GraphCopy to(g);
  return to.changed([&](NodeId n, const Node& node) { return replace(to, n, node); });
}

std::optional<NodeId> joined_reduction(GraphCopy& to, NodeId n, const Node& node);

}  // namespace kfusion
