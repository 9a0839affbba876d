// How results lie that the caller leaves to us.
#pragma once
#include <vector>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// A view without data of what `n` is, with strides in elements; C order where they are empty.
View view_of(const Node& n, const Extents& strides = {});

/// The strides of `v`, in elements.
Extents element_strides(const View& v);

/// The layout of a fresh result of `n`'s dtype and shape: the one that all inputs of that shape share, where they are
/// dense, else C order.
View shared_layout(const Node& n, const std::vector<View>& inputs);

/// The graph's inputs in order, as their strides say.
std::vector<View> input_views(const Graph& g);

}  // namespace kfusion
