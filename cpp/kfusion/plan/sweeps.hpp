// How often a kernel goes over its rows.
#pragma once
#include <span>

#include "kfusion/plan/plan.hpp"
#include "kfusion/plan/views/fold.hpp"

namespace kfusion {

/// The rule by which sweeps over a row are counted, before lowering and after (lower/schedule.hpp): elements can use a
/// value from that sweep on in which they can use all of its `arguments`, a reduction one sweep later, and the second
/// reduction of a pair when they can use the `first` (-1: there is none).
constexpr int ready_after(int arguments, bool reduces, int first) {
  return first >= 0 ? first : arguments + (reduces ? 1 : 0);
}

/// The reduction of the group (`nodes`, ascending) with which `reduction` can be taken in one sweep, because both can
/// be merged from pieces: the mean of v for the sum or mean of (v - mean)^2 (Chan, Golub and LeVeque, 1983), the
/// maximum of v for the sum of exp(v - max) (Milakov and Gimelshein, 2018); around a product, the extreme of v for the
/// first position that has it. -1: none.
NodeId merged_with(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes, NodeId reduction);

/// How often a kernel of these nodes (ascending) goes over its rows to store some of them: Schedule::sweeps of what
/// will be Kernel::paired. `domain`: what it loops over.
int count_passes(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes,
                 std::span<const NodeId> stores, const Extents& domain);

/// By entry of `nodes` (ascending): in how many sweeps its elements are needed, every reduction in a sweep of its own.
/// A CPU's loops over columns compute it in each of them: what they keep is sums, no elements.
std::vector<int> sweeps_over_columns(const FoldedGraph& folded, const std::vector<NodeId>& nodes,
                                     std::span<const NodeId> stores);

/// Whether a gather among `nodes` (ascending) has indices that a reduction among them gives.
bool takes_at_reduced(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes);

/// Sets passes and row_on_chip.
void count_sweeps(const Graph& g, const FoldedGraph& folded, const Device& device, Group& group);

}  // namespace kfusion
