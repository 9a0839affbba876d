// Masks pushed below the maps of a product whose largest elements are wanted: the maps can follow the reduction then.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The same values, not simplified: where(m, f(x), f(c)) as f(where(m, x, c)), and f(x) * m, of a mask of 0 and 1 and
/// f(0) = 0, as f(x * m). Nothing where no maximum or minimum of such values of a product is taken.
std::optional<Graph> with_masks_pushed(const Graph& g);

}  // namespace kfusion
