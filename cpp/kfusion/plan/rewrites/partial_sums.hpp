// Sums along rows beside what is computed of each row: y = f(x) row by row, and the sums of columns of g(x), as
// gradients of weights and biases are.
//
// A kernel of rows has all elements at hand, but no column as a whole. So it adds up the columns of as many parts of
// the rows as the device has work for at once, and a second kernel sums these parts. A kernel around a product does so,
// too, as for biases of linear layers before an activation: a part is the rows of a tile then.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// What computes the elements that are summed.
enum class SumsOf : std::uint8_t { kRows, kProducts };

/// Rows that a tile of a product has on its way to memory, where it leaves sums of columns.
inline constexpr std::int64_t kRowsOfTile = 64;

/// Sums along leading axes become sums of partial sums (Op::partial_sums), where rows and their number suit the device:
/// kRows: where the other axes of something of the same shape are reduced; kProducts: where elements of a product, of
/// a half type, are what is summed, after maps perhaps. Nothing: there are none.
std::optional<Graph> with_partial_sums(const Graph& g, SumsOf what, const Device& device);

/// Whether partial sums `n` are of so many rows each as a product's tile leaves.
bool are_of_tiles(const Graph& g, NodeId n);

/// Whether each partial sum has a kernel: of rows, or around a product.
bool has_kernels_for_partial_sums(const Plan& plan);

}  // namespace kfusion
