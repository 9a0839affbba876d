// How axes go through a node, and which axes of a graph's values are the same axis.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// What an axis of an argument is that is none of the result: reduced; repeated (or of one element); needed as a whole
/// for any element.
enum LostAxis : int { kReducedAxis = -1, kRepeatedAxis = -2, kWholeAxis = -3 };

struct AxisRule {
  std::vector<AxisList> to_result;  ///< by argument and axis: the result's axis at whose own places alone it is read
  AxisList whole;                   ///< axes of the result that are not computed in parts
};

AxisRule axis_rule(const Graph& g, NodeId n);

/// What n would be of arguments with one more axis in front of theirs, of so many elements, which goes through to its
/// result. An input lies in C order then.
Node behind_axis(Node n, std::int64_t size);

/// Where axes of a broadcast argument lie in the result: counted from the last one.
AxisList aligned_axes(const Extents& argument, const Extents& result);

/// Axes of one label are one: an element of the one value needs only what is at its own place along the other's axis.
struct AxisLabels {
  std::vector<AxisList> of;                   ///< by node and axis
  std::map<NodeId, AxisList> reduced;         ///< of nodes that reduce or contract axes, the labels of these
  std::vector<std::pair<int, NodeId>> whole;  ///< labels that cannot be split, and the first node that needs all
};

AxisLabels axis_labels(const Graph& g);

}  // namespace kfusion
