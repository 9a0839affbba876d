// What the nodes of a kernel compute.
#pragma once
#include <cstdint>

#include "kfusion/graph/graph.hpp"
#include "kfusion/plan/device.hpp"

namespace kfusion {

/// Floating-point operations by dtype and unit.
struct FlopCount {
  DType dtype = DType::kFloat32;
  bool matrix = false;
  std::int64_t count = 0;  ///< as the function says: an element of a value once
  double work = 0;         ///< what the unit could do in their time: more than `count` for divisions and functions
                           ///< (op_cost.hpp), and where a kernel computes elements more than once
};

/// The FLOPs of a node of which its kernel computes `times` elements: more than it has where it is broadcast there,
/// fewer where only some are needed. Those of reductions, products and calls do not depend on `times`.
FlopCount flops_of(const Graph& g, NodeId n, std::int64_t times, const Device& device);

/// The time of these FLOPs at the peak of their unit.
double us_of(const FlopCount& f, const Device& device);

}  // namespace kfusion
