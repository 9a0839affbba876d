#include "kfusion/plan/cells/tiling.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "kfusion/graph/axes.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

constexpr std::int64_t kMostCells = 16;
constexpr int kMostRounds = 32;

/// Whether a slice takes all of an axis, in order.
bool takes_all(const Graph& g, const Node& slice, std::size_t axis) {
  const auto& a = std::get<SliceAttributes>(slice.attributes);
  return a.start[axis] == 0 && a.step[axis] == 1 && slice.shape[axis] == g[slice.arguments[0]].shape[axis];
}

Cuts cuts_of_join(const Graph& g, NodeId join) {
  const auto axis = at(g.attributes<JoinAttributes>(join).axis);
  Cuts cuts(g[join].shape.size());
  std::int64_t position = 0;
  for (const NodeId a : g[join].arguments) cuts[axis].insert(position += g[a].shape[axis]);
  cuts[axis].erase(position);
  return cuts;
}

/// Where `slices`, the only readers of an elementwise value, end along the only axis that they cut. Nothing where they
/// share elements, leave some out, or cut another way.
Cuts cuts_of_slices(const Graph& g, NodeId n, const std::vector<NodeId>& slices) {
  std::optional<std::size_t> axis;
  std::set<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const NodeId s : slices) {
    const auto& [start, step] = g.attributes<SliceAttributes>(s);
    for (std::size_t d = 0; d < start.size(); ++d) {
      if (takes_all(g, g[s], d)) continue;
      if (axis.value_or(d) != d || step[d] != 1 || g[s].size() == 0) return {};
      axis = d;
      ranges.emplace(start[d], start[d] + g[s].shape[d]);
    }
  }
  if (ranges.size() < 2) return {};
  Cuts cuts(g[n].shape.size());
  std::int64_t end = 0;
  for (const auto& [first, last] : ranges) {
    if (first != end) return {};
    cuts[*axis].insert(end = last);
  }
  cuts[*axis].erase(end);
  return end == g[n].shape[*axis] ? cuts : Cuts{};
}

/// By node: the slices that read it; nothing where anything else does.
std::vector<std::vector<NodeId>> sliced_only(const Graph& g) {
  std::vector<std::vector<NodeId>> slices(g.nodes.size());
  std::vector<bool> others(g.nodes.size());
  for (const Output& o : g.outputs) others[at(o.node)] = true;
  for (NodeId n = 0; n < std::ssize(g.nodes); ++n)
    for (const NodeId a : g[n].arguments) {
      if (g[n].op == Op::slice) slices[at(a)].push_back(n);
      others[at(a)] = others[at(a)] || g[n].op != Op::slice;
    }
  for (std::size_t n = 0; n < slices.size(); ++n)
    if (others[n]) slices[n].clear();
  return slices;
}

class Analysis {
 public:
  Analysis(const Graph& g, const std::set<NodeId>& seeds)
      : g_(g), seeds_(seeds), slices_(sliced_only(g)), blocked_(g.nodes.size()) {}

  std::optional<Tiling> run() {
    for (int round = 0; round < kMostRounds; ++round) {
      if (!spread()) return std::nullopt;
      if (!block_what_is_crowded() && !block_what_is_reduced()) return result();
    }
    return std::nullopt;
  }

 private:
  /// From the seeds to all that is connected to them; false where that takes too long.
  bool spread() {
    tiling_ = {std::vector<Cuts>(g_.nodes.size()), std::vector<NodeId>(g_.nodes.size(), -1)};
    crowded_.clear();
    for (const NodeId n : seeds_)
      if (!blocked_[at(n)]) seed(n);
    for (int round = 0; round < kMostRounds; ++round) {
      changed_ = false;
      for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) spread_down(n);
      for (auto n = static_cast<NodeId>(g_.nodes.size()); n-- > 0;)
        if (tiling_.is_cut(n)) spread_up(n);
      if (!changed_ || !crowded_.empty()) return true;
    }
    return false;
  }

  void seed(NodeId n) {
    if (is_join(g_[n])) {
      if (std::ssize(g_[n].arguments) <= kMostCells) add(n, cuts_of_join(g_, n), n);
    } else if (is_elementwise(g_[n])) {
      add(n, cuts_of_slices(g_, n, slices_[at(n)]), n);
    }
  }

  /// Whether it can be computed cell by cell.
  bool can_be_cut(NodeId n) const {
    if (blocked_[at(n)] || g_[n].size() == 0) return false;
    if (is_join(g_[n])) return seeds_.contains(n);
    return is_elementwise(g_[n]) || kind(g_[n].op) == OpKind::kReduce || keeps_axes(g_, n);
  }

  void add(NodeId n, const Cuts& cuts, NodeId origin) {
    if (std::ranges::all_of(cuts, [](const auto& axis) { return axis.empty(); }) || !can_be_cut(n)) return;
    for (std::size_t d = 0; g_[n].op == Op::slice && d < cuts.size(); ++d)
      if (!cuts[d].empty() && !takes_all(g_, g_[n], d)) return;
    Cuts& own = tiling_.cuts[at(n)];
    if (own.empty()) own.resize(cuts.size()), tiling_.origin[at(n)] = origin;
    std::int64_t cells = 1;
    for (std::size_t d = 0; d < cuts.size(); ++d) {
      const std::size_t before = own[d].size();
      own[d].insert(cuts[d].begin(), cuts[d].end());
      changed_ |= own[d].size() != before;
      cells = std::min(cells * (std::ssize(own[d]) + 1), kMostCells + 1);
    }
    if (cells > kMostCells) crowded_.push_back(n);
  }

  void spread_down(NodeId n) {
    const Node& node = g_[n];
    if (!can_be_cut(n)) return;
    for (std::size_t i = 0; i < node.arguments.size(); ++i) {
      const NodeId a = node.arguments[i];
      if (!tiling_.is_cut(a)) continue;
      if (is_join(node)) {
        add(n, moved_into_join(n, i), tiling_.origin[at(a)]);
      } else if (is_elementwise(node) ? g_[a].shape == node.shape : !cuts_what_is_lost(n)) {
        Cuts cuts(node.shape.size());
        const AxisList to = axis_rule(g_, n).to_result[i];
        for (std::size_t d = 0; d < to.size(); ++d)
          if (to[d] >= 0) cuts[at(to[d])] = tiling_.cuts[at(a)][d];
        add(n, cuts, tiling_.origin[at(a)]);
      }
    }
  }

  /// The cuts of part i, where it lies in the join.
  Cuts moved_into_join(NodeId join, std::size_t i) const {
    const auto axis = at(g_.attributes<JoinAttributes>(join).axis);
    std::int64_t start = 0;
    for (std::size_t k = 0; k < i; ++k) start += g_[g_[join].arguments[k]].shape[axis];
    Cuts cuts = tiling_.cuts[at(g_[join].arguments[i])];
    std::set<std::int64_t> moved;
    for (const std::int64_t c : cuts[axis]) moved.insert(c + start);
    cuts[axis] = std::move(moved);
    return cuts;
  }

  /// Whether a reduction or slice of one argument takes a cut axis away, or a part of it.
  bool cuts_what_is_lost(NodeId n) const {
    const Node& node = g_[n];
    const Cuts& cuts = tiling_.cuts[at(node.arguments[0])];
    if (cuts.empty()) return false;
    if (const auto* reduce = std::get_if<ReduceAttributes>(&node.attributes))
      return std::ranges::any_of(reduce->axes, [&](int axis) { return !cuts[at(axis)].empty(); });
    if (node.op != Op::slice) return false;
    for (std::size_t d = 0; d < cuts.size(); ++d)
      if (!cuts[d].empty() && !takes_all(g_, node, d)) return true;
    return false;
  }

  void spread_up(NodeId n) {
    const Node& node = g_[n];
    const Cuts& cuts = tiling_.cuts[at(n)];
    if (is_join(node)) return spread_to_parts(n);
    const AxisRule rule = axis_rule(g_, n);
    for (std::size_t k = 0; k < node.arguments.size(); ++k) {
      const AxisList& to = rule.to_result[k];
      Cuts of_argument(to.size());
      for (std::size_t d = 0; d < to.size(); ++d)
        if (to[d] >= 0) of_argument[d] = cuts[at(to[d])];
      add(node.arguments[k], of_argument, tiling_.origin[at(n)]);
    }
  }

  void spread_to_parts(NodeId join) {
    const auto axis = at(g_.attributes<JoinAttributes>(join).axis);
    std::int64_t start = 0;
    for (const NodeId a : g_[join].arguments) {
      const std::int64_t end = start + g_[a].shape[axis];
      Cuts cuts = tiling_.cuts[at(join)];
      std::set<std::int64_t> inside;
      for (const std::int64_t c : cuts[axis])
        if (c > start && c < end) inside.insert(c - start);
      cuts[axis] = std::move(inside);
      add(a, cuts, tiling_.origin[at(join)]);
      start = end;
    }
  }

  /// Seeds stay as they are that cut something into too many cells; false where there are none.
  bool block_what_is_crowded() {
    for (const NodeId n : crowded_) blocked_[at(tiling_.origin[at(n)])] = true;
    return !crowded_.empty();
  }

  /// Blocks what is cut along an axis that a reduction needs as a whole, with all that it is computed from; false
  /// where there is nothing of it.
  bool block_what_is_reduced() {
    std::vector<NodeId> open;
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n)
      if (kind(g_[n].op) == OpKind::kReduce && cuts_what_is_lost(n)) open.push_back(g_[n].arguments[0]);
    const bool any = !open.empty();
    while (!open.empty()) {
      const NodeId n = open.back();
      open.pop_back();
      if (!tiling_.is_cut(n) || blocked_[at(n)]) continue;
      blocked_[at(n)] = true;
      open.insert(open.end(), g_[n].arguments.begin(), g_[n].arguments.end());
    }
    return any;
  }

  /// Views that nothing reads cell by cell, or in slices, are views of the join of what they look at.
  void leave_last_views() {
    std::vector<bool> needed(g_.nodes.size());
    for (auto n = static_cast<NodeId>(g_.nodes.size()); n-- > 0;) {
      if (kind(g_[n].op) == OpKind::kView && !needed[at(n)]) tiling_.cuts[at(n)].clear();
      for (const NodeId a : g_[n].arguments)
        if (tiling_.is_cut(n) || g_[n].op == Op::slice) needed[at(a)] = true;
    }
  }

  std::optional<Tiling> result() {
    leave_last_views();
    const bool any = std::ranges::any_of(seeds_, [&](NodeId n) { return tiling_.is_cut(n); });
    return any ? std::optional(std::move(tiling_)) : std::nullopt;
  }

  const Graph& g_;
  const std::set<NodeId>& seeds_;
  const std::vector<std::vector<NodeId>> slices_;
  std::vector<bool> blocked_;
  Tiling tiling_;
  bool changed_ = false;
  std::vector<NodeId> crowded_;  ///< cut into too many cells
};

}  // namespace

std::vector<std::vector<NodeId>> cuttable(const Graph& g) {
  const std::vector<std::vector<NodeId>> slices = sliced_only(g);
  std::map<NodeId, std::multiset<Op>> readers;  // of those that can be cut
  for (NodeId n = 0; n < std::ssize(g.nodes); ++n) {
    const bool is_sliced = is_elementwise(g[n]) && !cuts_of_slices(g, n, slices[at(n)]).empty();
    if (is_join(g[n]) || is_sliced) readers[n];
  }
  if (readers.empty()) return {};
  for (const Node& n : g.nodes)
    for (const NodeId a : n.arguments)
      if (const auto found = readers.find(a); found != readers.end()) found->second.insert(n.op);
  std::map<std::tuple<Op, Extents, std::multiset<Op>>, std::vector<NodeId>> alike;
  for (auto& [n, ops] : readers) alike[{g[n].op, g[n].shape, std::move(ops)}].push_back(n);
  std::vector<std::vector<NodeId>> found;
  for (auto& [key, nodes] : alike) found.push_back(std::move(nodes));
  std::ranges::sort(found);
  return found;
}

std::optional<Tiling> tiling_of(const Graph& g, const std::set<NodeId>& seeds) { return Analysis(g, seeds).run(); }

bool keeps_axes(const Graph& g, NodeId n) {
  const Node& node = g[n];
  if (node.op == Op::transpose || node.op == Op::slice) return true;
  if (node.op != Op::reshape) return false;
  const auto without_ones = [](Extents e) {
    erase_if(e, [](std::int64_t extent) { return extent == 1; });
    return e;
  };
  return without_ones(node.shape) == without_ones(g[node.arguments[0]].shape);
}

}  // namespace kfusion
