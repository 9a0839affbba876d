// Elementwise graphs, which are the same work whatever the shape of their arrays.
#pragma once
#include <cstdint>
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The graph of arrays of one axis and `elements` elements. Nothing where it is not elementwise: where something but
/// maps and casts is computed, or the inputs have several shapes or memory orders, or are not dense.
std::optional<Graph> flattened(const Graph& g, std::int64_t elements);

}  // namespace kfusion
