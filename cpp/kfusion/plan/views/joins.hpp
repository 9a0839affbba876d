// Joins as memory. A concatenate is no kernel: it is an array that the kernels of its parts store into, each part into
// a slice. Planning gives every part a node that stands for this store, a concatenate of the part alone. It fuses with
// what computes the part as any map does, since it is one.
#pragma once
#include <vector>

#include "kfusion/plan/views/fold.hpp"

namespace kfusion {

inline bool is_join(const Node& n) { return kind(n.op) == OpKind::kJoin; }

/// The graph with concatenates that join nothing but such nodes, or concatenates that only they read (unless
/// `across_stages`, of their own stage). `g` is simplified: none of its concatenates has one argument.
Graph with_parts(Graph g, bool across_stages);

/// A node that stores a part into a slice; only of graphs from with_parts().
inline bool is_part(const Node& n) { return is_join(n) && n.arguments.size() == 1; }

/// Gives each part its place: `value` becomes its slice of the join that is stored, and `parts` lists it there.
void place_parts(const Graph& g, FoldedGraph& folded);

/// What lies in memory where kernels store `n`: itself, or the join that it is a part of.
inline NodeId stored_in(const FoldedGraph& folded, NodeId n) { return folded.value[at(n)].base; }

/// The nodes whose kernels write `value`: the parts of a join, else itself.
inline std::vector<NodeId> writers_of(const FoldedGraph& folded, NodeId value) {
  const auto join = folded.parts.find(value);
  return join == folded.parts.end() ? std::vector{value} : join->second;
}

}  // namespace kfusion
