// Sums along rows beside what is computed of each row: y = f(x) row by row, and the sums of columns of g(x), as
// gradients of weights and biases are.
//
// A kernel of rows has all elements at hand, but no column as a whole. So it adds up the columns of as many parts of
// the rows as the device has work for at once, and a second kernel sums these parts. A kernel around a product does so,
// too, as for biases of linear layers before an activation: a part is the rows of a tile then.
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
