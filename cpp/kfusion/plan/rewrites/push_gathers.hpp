// Gathers pushed through what they read: elements of f(x, y) at positions are f of the elements of x and of y there. So
// that no array is stored of which only a few elements are wanted, as of log_softmax for a loss by class numbers.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The same values, not simplified; nothing where no gather reads elementwise work.
std::optional<Graph> with_gathers_pushed(const Graph& g);

}  // namespace kfusion
