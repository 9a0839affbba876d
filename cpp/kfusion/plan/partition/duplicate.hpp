// Computing a cheap value twice instead of storing it.
#pragma once
#include <optional>
#include <vector>

#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {

/// Looks for values that are stored only for other kernels, though those could compute them from what they read anyway:
/// relu(x) summed over rows in one kernel and over columns in another. Gives each such kernel elementwise copies of its
/// own; nothing where no estimate promises fewer bytes.
struct CopiedGraph {
  Graph graph;
  std::vector<NodeId> copies;  ///< to be merged with their readers before anything else
};
std::optional<CopiedGraph> with_copies(const Graph& g, const Partition& p, const FoldedGraph& folded);

}  // namespace kfusion
