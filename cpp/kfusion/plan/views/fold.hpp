// Pass 1: views disappear. What is left are computing nodes that read each other through strided accesses.
//
// A view of an input, or of a result that is stored anyway, becomes part of its reader's Access. A view of a pointwise
// value moves up instead, so that the value is computed in the order in which it is read: relu(x).T is relu(x.T). That
// needs every reader to see the value through the same views.
#pragma once
#include <map>
#include <vector>

#include "kfusion/plan/views/access.hpp"

namespace kfusion {

enum class WorkKind : std::uint8_t {
  kNone,       ///< inputs, constants, iota, folded views, joins
  kPointwise,  ///< maps, casts, gathers, parts of joins and reductions of one element
  kCopy,       ///< a reshape that no strides express: pointwise, in the order of its argument
  kReduce,
  kPartial,  ///< partial sums: of every element of `shape`, like a map, but none of them is left
  kContraction,
  kLibrary,
};

/// One node of the graph as a loop: `reads` are over `shape` for pointwise work, over the argument's shape else.
struct Work {
  WorkKind kind = WorkKind::kNone;
  Extents shape;  ///< what is looped over: the result of a map (views moved up), the argument of what reduces
  std::vector<Access> reads;  ///< one per argument; the base is a node of the graph. Positions along a gather's first
                              ///< are the values of its second
};

struct FoldedGraph {
  std::vector<Work> work;  ///< by node
  std::vector<Access>
      value;  ///< by node: how a reader sees it (for outputs); a pulled view is the identity of its base
  std::map<NodeId, std::vector<NodeId>> parts;  ///< by join that is stored: the nodes that store into it (joins.hpp)
};

/// `move`: whether pointwise values may move under views; where nothing fuses, each is computed as it was written.
FoldedGraph fold_views(const Graph& g, bool move);

constexpr bool is_pointwise(WorkKind k) { return k == WorkKind::kPointwise || k == WorkKind::kCopy; }

}  // namespace kfusion
