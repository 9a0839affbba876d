// Graphs as plain dicts, lists and scalars, ready for JSON, and back from untrusted ones.
#pragma once
#include <pybind11/pybind11.h>

#include "kfusion/graph/graph.hpp"

namespace kfusion {

/// {"kfusion_graph": 1, "nodes": [...], "stages": [{"name", "source"}], "outputs": [{"name", "node"}]}
pybind11::dict graph_to_dict(const Graph& g);

/// op, dtype, shape, arguments, stage (None for sources), library, device, and the op's attributes.
pybind11::dict node_to_dict(const Node& n);

/// Throws ValueError or TypeError for whatever is no dict of node_to_dict's. It may be valid in no graph.
Node node_from_dict(pybind11::handle object);

/// Throws ValueError or TypeError for whatever is no dict of graph_to_dict's; the result is verified.
Graph graph_from_dict(pybind11::handle object);

}  // namespace kfusion
