#include "kfusion/plan/partition/picks.hpp"

#include <optional>

namespace kfusion {
namespace {

/// Recognises where(t >= low and t < high, t, other) in a folded graph.
class Guard {
 public:
  Guard(const Graph& g, const FoldedGraph& folded, const Positions& positions)
      : g_(g), folded_(folded), positions_(positions) {}

  bool holds(NodeId index) const {
    if (g_[index].op != Op::where) return false;
    const NodeId condition = read(index, 0).base;
    const auto otherwise = constant(read(index, 2).base);
    if (g_[condition].op != Op::logical_and || !otherwise || !positions_.has(*otherwise)) return false;
    const Access& t = read(index, 1);
    return (is_above(read(condition, 0).base, t) && is_below(read(condition, 1).base, t)) ||
           (is_above(read(condition, 1).base, t) && is_below(read(condition, 0).base, t));
  }

 private:
  const Access& read(NodeId n, std::size_t i) const { return folded_.work[at(n)].reads[i]; }

  /// An integer that is no argument of the call.
  std::optional<std::int64_t> constant(NodeId n) const {
    if (g_[n].op != Op::constant || !is_integer(g_[n].dtype)) return std::nullopt;
    const auto& c = g_.attributes<ConstantAttributes>(n);
    return c.parameter < 0 ? std::optional(c.integer) : std::nullopt;
  }

  bool is_same(const Access& a, const Access& b) const { return collapsed(a) == collapsed(b); }

  /// n: t >= a constant that has a position (a negative one counts from the end).
  bool is_above(NodeId n, const Access& t) const {
    if (g_[n].op != Op::greater_equal || !is_same(read(n, 0), t)) return false;
    const auto low = constant(read(n, 1).base);
    return low && positions_.has(*low);
  }

  /// n: t < at most the axis' extent.
  bool is_below(NodeId n, const Access& t) const {
    if (g_[n].op != Op::less || !is_same(read(n, 0), t)) return false;
    const auto high = constant(read(n, 1).base);
    return high && *high <= positions_.extent;
  }

  const Graph& g_;
  const FoldedGraph& folded_;
  const Positions& positions_;
};

}  // namespace

Positions positions_of(const Graph& g, const FoldedGraph& folded, NodeId gather) {
  return {folded.work[at(gather)].reads[0].positions, g.attributes<TakeAttributes>(gather).nonnegative};
}

bool is_vector_along(const Access& from, std::int64_t extent) {
  for (std::size_t i = 0; i < from.shape.size(); ++i)
    if (from.shape[i] > 1 && from.strides[i] != 0) return false;
  return from.positions == extent;
}

bool always_has_position(const Graph& g, const FoldedGraph& folded, NodeId gather) {
  return Guard(g, folded, positions_of(g, folded, gather)).holds(folded.work[at(gather)].reads[1].base);
}

}  // namespace kfusion
