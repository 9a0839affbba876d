// How one value is read by another: a strided map over the elements of a base value in C order.
//
// Transposes, slices, flips, broadcasts, squeezes and most reshapes of a value are such maps, so that a chain of views
// folds into one Access and costs nothing.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

struct Access {
  NodeId base = 0;             ///< a node that is no view (or the reshape that copies)
  std::int64_t base_size = 1;  ///< its elements
  Extents shape, strides;      ///< as the reader sees it; strides in elements of the base, 0 along broadcast axes
  std::int64_t offset = 0;     ///< in elements of the base
  bool operator==(const Access&) const = default;
};

/// The base itself: C order.
Access identity_access(NodeId base, const Extents& shape);

/// What `view` (a view node, whatever its own argument) makes of an access of its argument's shape. Nothing where a
/// reshape cannot be expressed by strides: it has to copy.
std::optional<Access> through_view(const Node& view, const Access& argument);

/// Same elements in the same order as the base stores them, nothing repeated or left out.
bool is_identity(const Access& a);
/// Distinct elements of the base that are touched: no view of ours reads one twice but by broadcasting.
std::int64_t distinct_elements(const Access& a);
/// Extents of 1 dropped, axes that are contiguous in each other merged.
Access collapsed(const Access& a);
/// The same elements in the same order under other extents, if strides can express that.
std::optional<Access> reshaped(const Access& a, const Extents& shape);
/// The same access as a reader of broadcast shape `shape` sees it (NumPy's rule).
Access broadcast_to(const Access& a, const Extents& shape);

}  // namespace kfusion
