// Which kernels leave sums of parts of the rows (Op::partial_sums).
#pragma once
#include "kfusion/graph/graph.hpp"
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Rows that a tile of a product has on its way to memory, where it leaves sums of columns.
inline constexpr std::int64_t kRowsOfTile = 64;

/// Whether partial sums `n` are of so many rows each as a product's tile leaves.
bool are_of_tiles(const Graph& g, NodeId n);

/// Whether each partial sum has a kernel: of rows, or around a product.
bool has_kernels_for_partial_sums(const Plan& plan);

}  // namespace kfusion
