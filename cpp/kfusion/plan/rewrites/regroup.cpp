#include "kfusion/plan/rewrites/regroup.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "kfusion/plan/rewrites/graph_copy.hpp"

namespace kfusion {
namespace {

bool is_reduction(const Node& n) { return kind(n.op) == OpKind::kReduce; }
const ReduceAttributes& reduction(const Node& n) { return std::get<ReduceAttributes>(n.attributes); }

/// Whether the elements of a reduction may be grouped in any way.
bool takes_any_order(const Node& n) {
  switch (n.op) {
    case Op::max:
    case Op::min:
    case Op::any:
    case Op::all:
      return true;
    case Op::sum:
    case Op::prod:
      return !is_float(n.dtype);
    default:
      return false;
  }
}

/// The axes, of `ndim`, of what `inner` reduces over which both reduce. Nothing where they are no neighbours: loops
/// over rows and columns at once read memory badly.
std::optional<AxisList> joined_axes(const Node& inner, const Node& outer, std::size_t ndim) {
  AxisList kept, axes = reduction(inner).axes;
  for (int i = 0; i < static_cast<int>(ndim); ++i)
    if (reduction(inner).keepdims || !std::ranges::binary_search(axes, i)) kept.push_back(i);
  for (const int axis : reduction(outer).axes) axes.push_back(kept[at(axis)]);
  std::ranges::sort(axes);
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes.back() - axes.front() + 1 == std::ssize(axes) ? std::optional(axes) : std::nullopt;
}

/// Whether `outer`, which reduces what `inner` gives, may reduce what `inner` reduces.
bool are_one(const Node& inner, const Node& outer) {
  const auto reduces = [](const Node& n) { return is_reduction(n) && !reduction(n).axes.empty() && n.size() > 0; };
  return reduces(inner) && reduces(outer) && inner.op == outer.op && inner.dtype == outer.dtype &&
         takes_any_order(inner) && reduction(inner).keepdims == reduction(outer).keepdims;
}

std::int64_t elements(const Extents& shape, const AxisList& axes) {
  std::int64_t count = 1;
  for (const int axis : axes) count *= shape[at(axis)];
  return count;
}

/// Which axes are reduced, by the extents of what is reduced; each set once.
class ReducedAxes {
 public:
  explicit ReducedAxes(const Graph& g) {
    for (const Node& n : g.nodes)
      if (is_reduction(n)) sets_[g[n.arguments[0]].shape].insert(reduction(n).axes);
  }

  /// Some of `axes`, of at least `least` elements. Empty: there are none.
  AxisList some_of(const AxisList& axes, const Extents& shape, std::int64_t least) const {
    const auto fits = [&](const AxisList& some) {
      return some.size() < axes.size() && std::ranges::includes(axes, some) && elements(shape, some) >= least;
    };
    const auto& sets = sets_.at(shape);
    const auto found = std::ranges::find_if(sets, fits);
    return found == sets.end() ? AxisList{} : *found;
  }

 private:
  std::map<Extents, std::set<AxisList>> sets_;
};

}  // namespace

std::optional<Graph> with_reductions_joined(const Graph& g) {
  const std::vector<int> readers = count_readers(g);
  const auto is_outer = [&](const Node& n) {
    return is_reduction(n) && readers[at(n.arguments[0])] == 1 && are_one(g[n.arguments[0]], n);
  };
  if (std::ranges::none_of(g.nodes, is_outer)) return std::nullopt;
  bool any = false;
  GraphCopy copy(g);
  Graph joined = copy.copied([&](NodeId n, Node outer) {
    if (!is_reduction(outer) || readers[at(g[n].arguments[0])] > 1) return copy.add(std::move(outer));
    const Node inner = copy[outer.arguments[0]];
    if (!are_one(inner, outer)) return copy.add(std::move(outer));
    const std::size_t ndim = copy[inner.arguments[0]].shape.size();
    if (const auto axes = joined_axes(inner, outer, ndim)) {
      outer.arguments = inner.arguments;
      outer.attributes = ReduceAttributes{*axes, reduction(outer).keepdims, axes->size() == ndim};
      any = true;
    }
    return copy.add(std::move(outer));
  });
  return any ? std::optional(std::move(joined)) : std::nullopt;
}

std::optional<Graph> with_reductions_split(const Graph& g, std::int64_t least_row) {
  const ReducedAxes reduced(g);
  const auto inner_axes = [&](const Node& n) {
    if (!is_reduction(n) || !takes_any_order(n) || n.size() == 0) return AxisList{};
    return reduced.some_of(reduction(n).axes, g[n.arguments[0]].shape, std::max<std::int64_t>(least_row, 2));
  };
  if (std::ranges::all_of(g.nodes, [&](const Node& n) { return inner_axes(n).empty(); })) return std::nullopt;
  GraphCopy copy(g);
  return copy.copied([&](NodeId n, Node outer) {
    const AxisList axes = inner_axes(g[n]);
    if (axes.empty()) return copy.add(std::move(outer));
    Extents shape = copy[outer.arguments[0]].shape;
    for (const int axis : axes) shape[at(axis)] = 1;
    Node inner = outer;
    inner.shape = std::move(shape);
    inner.attributes = ReduceAttributes{axes, true, false};
    outer.arguments = {copy.add(std::move(inner))};
    return copy.add(std::move(outer));
  });
}

}  // namespace kfusion
