// Products of which elementwise work reads two halves, as gates in models do: x @ w with both weights in one matrix.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The same values, not simplified: halves of a product's columns, plus halves of a bias, as products of halves of the
/// right factor. Nothing where no product is read so.
std::optional<Graph> with_products_cut(const Graph& g);

}  // namespace kfusion
