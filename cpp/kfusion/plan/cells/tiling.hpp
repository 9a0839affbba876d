// Where nodes are cut when joins are pushed through their readers.
#pragma once
#include <optional>
#include <set>
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// Interior positions by axis.
using Cuts = std::vector<std::set<std::int64_t>>;

struct Tiling {
  std::vector<Cuts> cuts;      ///< by node; empty where it is not cut
  std::vector<NodeId> origin;  ///< by node that is cut: what it is cut for

  bool is_cut(NodeId n) const { return !cuts[at(n)].empty(); }
};

/// What could be cut: joins where their parts meet, and elementwise values that are only read through slices which have
/// no element in common (the halves of a gated unit) where those end. Those of one op and shape with readers of one
/// kind stand together, as do the layers of a network: what pays for one of them pays for all.
std::vector<std::vector<NodeId>> cuttable(const Graph& g);

/// The cuts of `seeds`, some of cuttable(), and of all that is connected to them by elementwise operations of one
/// domain, reductions over other axes and transposes, so that each can be computed cell by cell. A seed that feeds a
/// reduction over the axis that it cuts stays as it is. Nothing where there would be none, or too many cells.
std::optional<Tiling> tiling_of(const Graph& g, const std::set<NodeId>& seeds);

/// Whether a node is computed cell by cell where its argument is: its axes are those of its argument.
bool keeps_axes(const Graph& g, NodeId n);

}  // namespace kfusion
