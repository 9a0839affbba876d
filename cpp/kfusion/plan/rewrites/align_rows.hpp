// Pads rows of products' factors to multiples of 16 bytes.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The graph with zeros behind the rows of large computed factors of half types: a GPU's products are quick where rows
/// begin at multiples of kRowAlignment (device.hpp), and the kernel that computes a factor can store its rows so. Where
/// the padded axis is summed over, the other factor gets as many zeros; else a slice of the product is taken. Nothing
/// where no factor needs any.
std::optional<Graph> with_rows_aligned(const Graph& g);

}  // namespace kfusion
