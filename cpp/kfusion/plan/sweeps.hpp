// How often a kernel goes over its rows.
#pragma once
#include "kfusion/plan/fold.hpp"
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// The reduction of the group (`nodes`, ascending) with which `reduction` can be taken in one sweep, because both can
/// be merged from pieces: the mean of v for the sum or mean of (v - mean)^2 (Chan, Golub and LeVeque, 1983), the
/// maximum of v for the sum of exp(v - max) (Milakov and Gimelshein, 2018). -1: none.
NodeId merged_with(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes, NodeId reduction);

/// How often a kernel of these nodes (ascending) goes over its rows to store some of them. A sweep ends where a reduced
/// value is needed again by all elements of its row, unless it is merged with the reduction that needs it.
int count_passes(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes,
                 const std::vector<NodeId>& stores);

/// Sets passes and row_on_chip.
void count_sweeps(const Graph& g, const FoldedGraph& folded, const Device& device, Group& group);

}  // namespace kfusion
