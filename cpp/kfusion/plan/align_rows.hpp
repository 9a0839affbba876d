// Factors of products whose rows begin at multiples of 16 bytes.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// Bytes at whose multiples the rows of factors of half types begin, where a GPU's products are quick.
inline constexpr std::int64_t kLineBytes = 16;

/// The graph with zeros behind the rows of large values of half types that products read, where rows would begin
/// anywhere: the kernel that computes them stores rows that are a little apart. An axis that is summed over gets as
/// many zeros in the other factor; of what others give, a slice is taken. Nothing where there are none.
std::optional<Graph> with_rows_aligned(const Graph& g);

}  // namespace kfusion
