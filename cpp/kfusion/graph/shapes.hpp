// The shape rules, NumPy's. Each throws ValueError with a message that starts with the op's name.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The shape of a node whose op, arguments and attributes are given. Where the shape is itself what was asked for
/// (sources, reshape, slice, broadcast), the node's, after checking that its argument has it to give.
Extents inferred_shape(const Graph& g, const Node& n);

/// At most 64 axes, extents >= 0, less than 2^63 bytes (an extent of 0 counts as 1, so that strides fit too).
void require_bounded(std::string_view who, const Extents& shape, DType dtype);

/// An axis counted from the end if negative, of an array with `ndim` axes.
int normalized_axis(std::string_view who, std::int64_t axis, std::size_t ndim);

/// `shape` with its -1 replaced.
Extents completed_reshape(const Extents& from, Extents shape);

/// NumPy's broadcasting of two shapes; nothing where they do not fit.
std::optional<Extents> broadcast(const Extents& a, const Extents& b);

/// The shape of a product of matrices, whose leading axes broadcast.
Extents matmul_shape(const Extents& a, const Extents& b);

/// "(3, 4)"
std::string shape_text(const Extents& shape);

}  // namespace kfusion
