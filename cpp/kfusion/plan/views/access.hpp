// How one value is read by another: a strided map over the elements of a base value in C order.
//
// Transposes, slices, flips, broadcasts, squeezes and most reshapes of a value are such maps, so that a chain of views
// folds into one Access and costs nothing. The elements that a gather reads are such a map too, but for one axis of the
// base: along it each element has a position, an index that is read beside the access.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

struct Access {
  NodeId base = 0;             ///< a node that is no view (or the reshape that copies)
  std::int64_t base_size = 1;  ///< its elements
  Extents shape, strides;      ///< as the reader sees it; strides in elements of the base, 0 along broadcast axes
  std::int64_t offset = 0;     ///< in elements of the base
  std::int64_t positions = kNoPositions, step = 0;  ///< of the axis with positions: its extent, its stride

  static constexpr std::int64_t kNoPositions = -1;
  bool has_positions() const { return positions != kNoPositions; }
  bool operator==(const Access&) const = default;
};

/// The base itself: C order.
Access identity_access(NodeId base, const Extents& shape);

/// The strides of images, four axes, whose channels, the second, lie innermost.
Extents channels_last(const Extents& shape);

/// What `view` (a view node, whatever its own argument) makes of an access of its argument's shape. Nothing where a
/// reshape cannot be expressed by strides: it has to copy.
std::optional<Access> through_view(const Node& view, const Access& argument);

/// How a gather (a node) sees the array that it takes elements of, and its indices: both in its own shape.
Access taken_elements(const Node& gather, const Access& x);
Access taken_indices(const Node& gather, const Access& indices);

/// Same elements in the same order as the base stores them, nothing repeated or left out.
bool is_identity(const Access& a);
/// Distinct elements of the base that are touched: no view of ours reads one twice but by broadcasting. At positions
/// that are read, as many as there may be.
std::int64_t distinct_elements(const Access& a);
/// Extents of 1 dropped, axes that are contiguous in each other merged.
Access collapsed(const Access& a);
/// Gives the elements, in their order, other extents, if strides can express that.
std::optional<Access> reshaped(const Access& a, const Extents& shape);
/// The access as a reader of broadcast shape `shape` sees it (NumPy's rule).
Access broadcast_to(const Access& a, const Extents& shape);

}  // namespace kfusion
