// Gradients as nodes of the same graph: reverse mode, before anything is planned.
#pragma once
#include <string>
#include <vector>

#include "kfusion/graph/builder.hpp"

namespace kfusion::grad {

/// A function of the array library that a gradient needs, as the graph numbers it.
struct LibraryAdjoint {
  std::string kind;  ///< "take", "take_along_axis": sums of elements by index; "conv2d"; "library_call"; "attention"
  /// The axis; stride, padding, dilation and groups; of a call the number of its function,
  /// and the order in which its gradients of as many axes have them.
  std::vector<std::int64_t> numbers;
  std::vector<int> results;    ///< of a library_call: those with a gradient, in order, behind its own arguments
  std::vector<int> arguments;  ///< those whose gradients are the results
  bool operator==(const LibraryAdjoint&) const = default;
};

struct Vjp {
  std::vector<NodeId> gradients;      ///< for each of `inputs`, in its shape and dtype
  std::vector<LibraryAdjoint> calls;  ///< with numbers from `first_call` on
};

/// Adds sum_k cotangents[k] * d outputs[k] / d inputs[i] for each i. Cotangents have the outputs' shapes and dtypes;
/// outputs and inputs are floats. Each stage of `graph` has a stage NAME_backward then. The gradient of an input that
/// an output does not depend on is 0. Throws TypeError where an op on the way has no adjoint.
Vjp add_vjp(GraphBuilder& graph, const NodeIds& outputs, const NodeIds& cotangents, const NodeIds& inputs,
            std::int64_t first_call);

}  // namespace kfusion::grad
