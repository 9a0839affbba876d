#include "kfusion/plan/views/picks.hpp"

#include <cmath>
#include <optional>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/views/reads.hpp"

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
  // A condition that is read in its own order is about the element of t at the same place.
  const auto whole = [](auto test) { return m::both(m::such([](const Access* a) { return is_identity(*a); }), test); };
  const auto above = m::greater_equal(m::bind(t), m::number(low));
  const auto below = m::less(same, m::number(high));
  const auto guarded = m::where(whole(m::logical_and(whole(above), whole(below))), same, m::number(otherwise));
  const auto extent = static_cast<double>(positions.extent);
  const auto has = [&](double n) { return std::abs(n) <= extent && positions.has(static_cast<std::int64_t>(n)); };
  return guarded(ReadsReader{g, folded}, &folded.work[at(gather)].reads[1]) && has(*low) && has(*otherwise) &&
         *high <= extent;
}

}  // namespace kfusion
