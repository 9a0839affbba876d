// Reductions that give the same however their elements are grouped (maxima, minima, any, all, sums and products of
// integers), taken in other groups, so that they share a kernel with their neighbours: a kernel has one set of reduced
// axes. Where zeros have two signs, the largest may be the other one.
//
// Joined: x.max(-1).max(-1) is x.max((-2, -1)).
// Split: abs(y).max() is abs(y).max(-1).max() where something else of y's extents is reduced over its last axis, a
// normalisation say. So the kernel of that goes over y for both, and only its rows' results are reduced again.
#include <algorithm>
#include <map>
#include <set>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

/// Elements of rows whose extremes are taken beside what else is computed of them. A CPU takes extremes of computed
/// values (y = softmax(x) and its maximum) a row at a time: 65536 rows of 64 elements take one core 13.7 ms instead of
/// 3.1 by a second kernel, 26 instead of 17 with 512, as long with 1024. But with 512, x.sum(-1) with x.max() takes 5.9
/// instead of 11, and layer norm divided by its largest element 35 instead of 72.
constexpr std::int64_t kLeastSplitRow = 2, kLeastSplitRowCpu = 512;

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

std::optional<NodeId> joined_reduction(GraphCopy& to, NodeId n, const Node& node) {
  if (!is_reduction(node) || to.readers().only(to.from()[n].arguments[0]) < 0) return std::nullopt;
  const Node& inner = to[node.arguments[0]];
  if (!are_one(inner, node)) return std::nullopt;
  const std::size_t ndim = to[inner.arguments[0]].shape.size();
  const auto axes = joined_axes(inner, node, ndim);
  if (!axes) return std::nullopt;
  return to.add(node, node.op, inner.arguments,
                ReduceAttributes{*axes, reduction(node).keepdims, axes->size() == ndim});
}

std::optional<Graph> reductions_split(const Graph& g, const Device& device) {
  const ReducedAxes reduced(g);
  GraphCopy to(g);
  return to.changed([&](NodeId n, const Node& outer) -> std::optional<NodeId> {
    if (!is_reduction(outer) || !takes_any_order(outer) || outer.size() == 0) return std::nullopt;
    Extents shape = g[g[n].arguments[0]].shape;
    const AxisList axes =
        reduced.some_of(reduction(outer).axes, shape, device.is_cpu ? kLeastSplitRowCpu : kLeastSplitRow);
    if (axes.empty()) return std::nullopt;
    for (const int axis : axes) shape[at(axis)] = 1;
    Node inner = outer;
    inner.shape = std::move(shape);
    inner.attributes = ReduceAttributes{axes, true, false};
    return to.add(outer, outer.op, {to.add(std::move(inner))}, outer.attributes);
  });
}

}  // namespace kfusion
