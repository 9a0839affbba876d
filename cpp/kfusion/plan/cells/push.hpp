// Joins pushed through their readers: an elementwise operation over a join is a join of that operation over its parts,
// which read the parts where they are. No join is stored that only such operations read. A value that is read in slices
// is computed slice by slice, where it is read.
//
// Two passes over the graph. `unmerged` moves reshapes that merge a joined axis with others (rotary embeddings of
// neighbouring pairs) behind the operations that read them, so that these run over the joined axis itself.
// `in_cells` cuts what is connected to a seed by operations over one domain (tiling.hpp) where parts or slices meet.
#pragma once
#include <set>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The graph with `seeds` pushed, some of cuttable() (tiling.hpp). Not simplified. Equal to `g` where nothing can be
/// pushed.
Graph pushed(const Graph& g, const std::set<NodeId>& seeds);

struct Unmerged {
  Graph graph;
  std::set<NodeId> seeds;  ///< as `graph` numbers them
};
Unmerged unmerged(const Graph& g, const std::set<NodeId>& seeds);

Graph in_cells(const Graph& g, const std::set<NodeId>& seeds);

}  // namespace kfusion
