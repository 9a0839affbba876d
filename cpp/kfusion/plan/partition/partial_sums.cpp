#include "kfusion/plan/partition/partial_sums.hpp"

#include <algorithm>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

std::int64_t leading(const Extents& shape, int axes) { return product({shape.begin(), shape.begin() + axes}); }

}  // namespace

bool are_of_tiles(const Graph& g, NodeId n) {
  const auto& partial = g.attributes<PartialAttributes>(n);
  return leading(g[g[n].arguments[0]].shape, partial.axes) == kRowsOfTile * partial.parts;
}

bool has_kernels_for_partial_sums(const Plan& plan) {
  return std::ranges::all_of(plan.groups, [&](const Group& group) {
    return std::ranges::all_of(group.nodes, [&](NodeId n) {
      if (plan.graph[n].op != Op::partial_sums) return true;
      if (group.pattern == Pattern::kMatmul) return are_of_tiles(plan.graph, n);
      const Extents& shape = plan.folded.work[at(n)].shape;
      const int axes = plan.graph.attributes<PartialAttributes>(n).axes;
      return group.pattern == Pattern::kRows && group.rows() == leading(shape, axes);
    });
  });
}

}  // namespace kfusion
