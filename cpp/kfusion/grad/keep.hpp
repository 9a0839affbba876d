// What a forward pass keeps for a backward pass that is planned apart from it: by a minimal cut of both (joint.hpp).
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "kfusion/graph/builder.hpp"
#include "kfusion/plan/device.hpp"

namespace kfusion::grad {

/// A value that backward reads.
struct Kept {
  NodeId node = 0;
  int result = -1;         ///< which of the function's results it is
  std::int64_t bytes = 0;  ///< of its own: 0 for arguments and results
  /// What it saves beside the best choice without it; infinite where there is none.
  double seconds = 0;
};

/// Arguments of the function too, ascending; `seconds` are left out. `memory`: no more bytes than these.
/// Throws ValueError where what must not be computed again has more.
std::vector<Kept> kept_for_backward(const GraphBuilder& graph, const NodeIds& results, const NodeIds& inputs,
                                    const Device& device, std::optional<std::int64_t> memory);

/// kept_for_backward() with `seconds`.
std::vector<Kept> explained(const GraphBuilder& graph, const NodeIds& results, const NodeIds& inputs,
                            const Device& device, std::optional<std::int64_t> memory);

/// What a trace computes: nodes but for sources and views, ascending; and a hash of what they do with each other, which
/// does not depend on extents, nor on numbers that are arguments. So two traces of one function can be compared, and
/// their nodes found.
struct Computed {
  std::vector<NodeId> nodes;
  std::uint64_t hash = 0;
};
Computed computed(const Graph& g);

}  // namespace kfusion::grad
