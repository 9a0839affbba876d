// Sums along rows beside what is computed of each row: y = f(x) row by row, and the sums of columns of g(x), as
// gradients of weights and biases are.
//
// A kernel of rows has all elements at hand, but no column as a whole. So it adds up the columns of as many parts of
// the rows as the device has work for at once, and a second kernel sums these parts.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"
#include "kfusion/plan/plan.hpp"

namespace kfusion {

/// Sums along leading axes become sums of partial sums (Op::partial_sums), where the other axes of something of the
/// same shape are reduced, and rows and their number suit the device. Nothing: there are none.
std::optional<Graph> with_partial_sums(const Graph& g, const Device& device);

/// Whether each partial sum has a kernel of rows.
bool has_kernels_for_partial_sums(const Plan& plan);

}  // namespace kfusion
