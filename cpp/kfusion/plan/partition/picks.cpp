#include "kfusion/plan/partition/picks.hpp"

#include <optional>

#include "kfusion/plan/partition/reads.hpp"

namespace kfusion {

Positions positions_of(const Graph& g, const FoldedGraph& folded, NodeId gather) {
  return {folded.work[at(gather)].reads[0].positions, g.attributes<TakeAttributes>(gather).nonnegative};
}

bool is_vector_along(const Access& from, std::int64_t extent) {
  for (std::size_t i = 0; i < from.shape.size(); ++i)
    if (from.shape[i] > 1 && from.strides[i] != 0) return false;
  return from.positions == extent;
}

bool always_has_position(const Graph& g, const FoldedGraph& folded, NodeId gather) {
  const Positions positions = positions_of(g, folded, gather);
  const Access* t = nullptr;
  std::optional<double> low, high, otherwise;
  const auto same = m::such([&](const Access* a) { return collapsed(*a) == collapsed(*t); });
  const auto in_range = m::logical_and(m::greater_equal(m::bind(t), m::number(low)), m::less(same, m::number(high)));
  const auto guarded = m::where(in_range, same, m::number(otherwise));
  const auto has = [&](double n) { return positions.has(static_cast<std::int64_t>(n)); };
  return guarded(ReadsReader{g, folded}, &folded.work[at(gather)].reads[1]) && has(*low) && has(*otherwise) &&
         *high <= static_cast<double>(positions.extent);
}

}  // namespace kfusion
