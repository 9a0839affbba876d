#include <algorithm>
#include <optional>

#include "kfusion/graph/copy.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/cells/push.hpp"
#include "kfusion/plan/cells/tiling.hpp"

namespace kfusion {
namespace {

/// A shape, and by axis the extents that it is the product of.
struct Factors {
  std::vector<Extents> of;

  Extents flat() const {
    Extents all;
    for (const Extents& f : of) all.insert(all.end(), f.begin(), f.end());
    return all;
  }
  bool operator==(const Factors&) const = default;
};

/// Nothing where `merged` is not `from` with neighbours merged.
std::optional<Factors> factors_of(const Extents& merged, const Extents& from) {
  Factors r;
  std::size_t next = 0;
  for (const std::int64_t extent : merged) {
    Extents& f = r.of.emplace_back();
    std::int64_t n = 1;
    while (n < extent && next < from.size()) n *= f.emplace_back(from[next++]);
    if (n != extent || extent == 0) return std::nullopt;
  }
  if (!r.of.empty())
    r.of.back().insert(r.of.back().end(), from.begin() + static_cast<std::ptrdiff_t>(next), from.end());
  return r.flat() == from ? std::optional(std::move(r)) : std::nullopt;
}

/// How an argument of extents `shape`, which is broadcast to what has `factors`, is cut with it.
Factors broadcast_factors(const Factors& factors, const Extents& shape, const Extents& result) {
  Factors r;
  const std::size_t lead = result.size() - shape.size();
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const Extents& f = factors.of[lead + d];
    r.of.push_back(shape[d] == result[lead + d] ? f : Extents(f.size(), 1));
  }
  return r;
}

/// One axis of a slice as slices of its factors: nothing where they would not all be ranges.
struct Ranges {
  Extents start, step, shape;
};
std::optional<Ranges> ranges_of(const Extents& factors, std::int64_t start, std::int64_t step, std::int64_t count) {
  Ranges r{Extents(factors.size(), 0), Extents(factors.size(), 1), factors};
  const std::int64_t all = kfusion::product(factors);
  if (start == 0 && step == 1 && count == all) return r;
  const auto outer = std::ranges::find_if(factors, [](std::int64_t f) { return f != 1; });
  if (outer == factors.end()) return std::nullopt;
  const std::int64_t inner = all / *outer;
  const auto first = static_cast<std::size_t>(outer - factors.begin());
  if (count == 1) step = inner;
  const bool blocks = step == 1 && start % inner == 0 && count % inner == 0;
  if (!blocks && step != inner) return std::nullopt;
  r.start[first] = start / inner;
  r.shape[first] = blocks ? count / inner : count;
  if (blocks) return r;
  std::int64_t rest = start % inner, below = inner;
  for (std::size_t d = first + 1; d < factors.size(); ++d) {
    below /= factors[d];
    r.start[d] = rest / below, r.shape[d] = 1;
    rest %= below;
  }
  return r;
}

class Unmerging : private GraphCopy {
 public:
  Unmerging(const Graph& g, const std::set<NodeId>& seeds)
      : GraphCopy(g), seeds_(seeds), factors_(g.nodes.size()), open_(g.nodes.size(), -1) {}

  Unmerged run() {
    if (!find_factors()) return {g_, seeds_};
    Graph made = copied([&](NodeId n, Node node) { return moved(n, std::move(node)); });
    std::set<NodeId> seeds;
    for (const NodeId seed : seeds_) seeds.insert(moved_[at(seed)]);
    return {std::move(made), std::move(seeds)};
  }

 private:
  /// Which nodes run over more axes than they have. False where none does.
  bool find_factors() {
    std::vector<std::set<int>> joined(g_.nodes.size());  // axes
    bool any = false;
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n) {
      const Node& node = g_[n];
      if (kind(node.op) == OpKind::kJoin && seeds_.contains(n)) joined[at(n)] = {g_.attributes<JoinAttributes>(n).axis};
      for (const NodeId a : node.arguments) {
        if (is_elementwise(node) && g_[a].shape == node.shape) {
          joined[at(n)].insert(joined[at(a)].begin(), joined[at(a)].end());
          if (factors_[at(a)]) give(n, *factors_[at(a)]);
        }
      }
      if (node.op != Op::reshape) continue;
      auto factors = factors_of(node.shape, g_[node.arguments[0]].shape);
      if (!factors || !merges(*factors, joined[at(node.arguments[0])])) continue;
      factors_[at(n)] = std::move(factors);
      any = true;
    }
    for (bool changed = any; changed;) changed = spread();
    return any;
  }

  /// Whether one of `axes` is merged with another.
  static bool merges(const Factors& factors, const std::set<int>& axes) {
    int first = 0;
    for (const Extents& f : factors.of) {
      const int end = first + static_cast<int>(f.size());
      const bool several = std::ssize(f) - std::ranges::count(f, 1) > 1;
      if (several && std::ranges::any_of(axes, [&](int axis) { return axis >= first && axis < end; })) return true;
      first = end;
    }
    return false;
  }

  bool give(NodeId n, const Factors& factors) {
    const bool is_new = !factors_[at(n)] && is_elementwise(g_[n]);
    if (is_new) factors_[at(n)] = factors;
    return is_new;
  }

  bool spread() {
    bool changed = false;
    for (auto n = static_cast<NodeId>(g_.nodes.size()); n-- > 0;) {
      if (!factors_[at(n)] || !is_elementwise(g_[n])) continue;
      for (const NodeId a : g_[n].arguments)
        changed |= give(a, broadcast_factors(*factors_[at(n)], g_[a].shape, g_[n].shape));
    }
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n)
      for (const NodeId a : g_[n].arguments)
        if (factors_[at(a)] && g_[a].shape == g_[n].shape) changed |= give(n, *factors_[at(a)]);
    return changed;
  }

  /// What stands for node n of the graph; `node`: of the arguments that stand for its own.
  NodeId moved(NodeId n, Node node) {
    if (factors_[at(n)] && is_elementwise(node)) {
      const Extents shape = node.shape;
      for (std::size_t i = 0; i < node.arguments.size(); ++i) {
        const NodeId a = g_[n].arguments[i];
        const Factors seen = broadcast_factors(*factors_[at(n)], g_[a].shape, shape);
        node.arguments[i] =
            factors_[at(a)] == seen ? open_[at(a)] : reshaped(node.arguments[i], seen.flat(), node.stage);
      }
      node.shape = factors_[at(n)]->flat();
      open_[at(n)] = add(std::move(node));
      return reshaped(open_[at(n)], shape, g_[n].stage);
    }
    if (node.op == Op::slice && factors_[at(g_[n].arguments[0])])
      if (const auto sliced = slice_of_open(n)) return *sliced;
    if (factors_[at(n)]) open_[at(n)] = node.arguments[0];  // a reshape that merges
    return add(std::move(node));
  }

  std::optional<NodeId> slice_of_open(NodeId n) {
    const Factors& factors = *factors_[at(g_[n].arguments[0])];
    const auto& [start, step] = g_.attributes<SliceAttributes>(n);
    Node s = g_[n];
    Ranges all;
    const auto append = [](Extents& to, const Extents& more) { to.insert(to.end(), more.begin(), more.end()); };
    for (std::size_t d = 0; d < start.size(); ++d) {
      if (factors.of[d].empty()) continue;  // of an extent of 1
      const auto r = ranges_of(factors.of[d], start[d], step[d], s.shape[d]);
      if (!r || s.size() == 0) return std::nullopt;
      append(all.start, r->start), append(all.step, r->step), append(all.shape, r->shape);
    }
    s.arguments = {open_[at(g_[n].arguments[0])]};
    s.shape = all.shape;
    s.attributes = SliceAttributes{all.start, all.step};
    return reshaped(add(std::move(s)), g_[n].shape, g_[n].stage);
  }

  const std::set<NodeId>& seeds_;
  std::vector<std::optional<Factors>> factors_;  ///< by node, nothing: as it is
  std::vector<NodeId> open_;                     ///< by node: over its factors, in the copy
};

}  // namespace

Unmerged unmerged(const Graph& g, const std::set<NodeId>& seeds) { return Unmerging(g, seeds).run(); }

Graph pushed(const Graph& g, const std::set<NodeId>& seeds) {
  const Unmerged u = unmerged(g, seeds);
  return in_cells(u.graph, u.seeds);
}

}  // namespace kfusion
