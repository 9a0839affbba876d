// Runs a graph on the CPU, one node after the other, plainly: the interpreter that executors are checked by.
#pragma once
#include <vector>

#include "kfusion/graph/graph.hpp"
#include "kfusion/view.hpp"

namespace kfusion {

/// Computes all outputs. `inputs` are the graph's input nodes in order, any strides, on the CPU, with the nodes' dtypes
/// and shapes; `outputs` are dense results to write, disjoint from all else.
///
/// Maps compute in T (ops.def): float for half types. Within a stage half values stay float32; where one is read by
/// another stage or is an output it is rounded to its dtype, as the unfused kernels do. Sums of floats accumulate in
/// double. Throws ValueError where an index of `take` is out of range; nothing else can fail but memory.
void run_reference(const Graph& g, const std::vector<View>& inputs, const std::vector<View>& outputs);

}  // namespace kfusion
