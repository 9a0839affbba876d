// Convolutions with windows of one element as products.
#pragma once
#include <optional>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// The same function, in which convolutions of half types by windows of one element, without stride and padding, are
/// products of all pixels and the weight: (N H W, C) by (C, O). Not of images that the caller's arrays have with their
/// channels outermost: a product would read them against their order. Elementwise operations on such products run over
/// pixels, too. Nothing where there is none.
std::optional<Graph> with_pointwise_convolutions(const Graph& g);

}  // namespace kfusion
