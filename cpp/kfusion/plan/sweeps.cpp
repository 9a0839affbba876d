#include "kfusion/plan/sweeps.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/views/domain.hpp"
#include "kfusion/plan/views/reads.hpp"

namespace kfusion {
namespace {

/// What is read inside one group.
class Inside : public ReadsReader {
 public:
  Inside(const Graph& graph, const FoldedGraph& reads, const std::vector<NodeId>& nodes)
      : ReadsReader{graph, reads}, nodes_(nodes) {}

  bool has(NodeId n) const { return std::binary_search(nodes_.begin(), nodes_.end(), n); }
  Op op(const Access* a) const { return has(a->base) || is_free(g[a->base]) ? g[a->base].op : Op::input; }
  const Access* read(NodeId n) const { return &folded.work[at(n)].reads[0]; }
  auto reduction() const {
    return m::such([this](const Access* a) { return folded.work[at(a->base)].kind == WorkKind::kReduce; });
  }

  /// Equal bases are read at equal elements inside a group. Strides along extents of 1 say nothing.
  auto same(const Access* const& as) const {
    return m::such([this, &as](const Access* a) {
      if (a->base != as->base || has(a->base)) return a->base == as->base;
      return a->shape == as->shape && collapsed(*a) == collapsed(*as);
    });
  }

 private:
  const std::vector<NodeId>& nodes_;
};

/// Whether a constant is an integer that no position reaches.
bool is_beyond(const Graph& g, NodeId constant, NodeId positions) {
  if (g[constant].op != Op::constant || g[positions].op != Op::iota || !is_integer(g[constant].dtype)) return false;
  const auto& c = g.attributes<ConstantAttributes>(constant);
  return c.parameter < 0 && c.integer >= g[positions].shape[at(g.attributes<IotaAttributes>(positions).axis)];
}

/// The maximum or minimum of x for the smallest of where(x == it or x is not a number, position, a number beyond all
/// positions): as argmax and argmin have it. -1: none.
NodeId searched_with(const Inside& inside, NodeId reduction) {
  const Access *x = nullptr, *extreme = nullptr, *position = nullptr, *beyond = nullptr;
  const auto of_x = inside.same(x);
  const auto is_extreme = m::both(m::either(m::max(of_x), m::min(of_x)), inside.reduction());
  const auto equal = m::equal(m::bind(x), m::bind(extreme, is_extreme));
  const auto never_nan = m::such([&](const Access*) { return !is_float(inside.g[x->base].dtype); });
  const auto hit = m::either(m::logical_or(equal, m::isnan(of_x)), m::both(equal, never_nan));
  if (!m::where(hit, m::bind(position), m::bind(beyond))(inside, inside.read(reduction))) return -1;
  return is_beyond(inside.g, beyond->base, position->base) ? extreme->base : -1;
}

}  // namespace

NodeId merged_with(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes, NodeId reduction) {
  const Inside inside(g, folded, nodes);
  const auto is_product = [&](NodeId n) { return g[n].op == Op::matmul; };
  if (g[reduction].op == Op::min)  // loops have searches of their own
    return std::ranges::any_of(nodes, is_product) ? searched_with(inside, reduction) : -1;
  if (g[reduction].op != Op::sum && g[reduction].op != Op::mean) return -1;
  const Access *v = nullptr, *first = nullptr, *difference = nullptr;
  const auto less = [&](Op by) {
    const auto is_first = m::both(m::operation(by, inside.same(v)), inside.reduction());
    return m::bind(difference, m::subtract(m::bind(v), m::bind(first, is_first)));
  };
  const auto squares = m::either(m::square(less(Op::mean)), m::multiply(less(Op::mean), inside.same(difference)));
  const bool found = squares(inside, inside.read(reduction)) ||
                     (g[reduction].op == Op::sum && m::exp(less(Op::max))(inside, inside.read(reduction)));
  return found ? first->base : -1;
}

int count_passes(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes,
                 std::span<const NodeId> stores, const Extents& domain) {
  const std::int64_t elements = product(domain);
  if (elements == 0) return 1;
  const auto work = [&](NodeId n) -> const Work& { return folded.work[at(n)]; };
  std::map<NodeId, int> ready;
  for (const NodeId n : nodes) {
    int arguments = 0;
    for (const Access& a : work(n).reads)
      if (const auto made = ready.find(a.base); made != ready.end()) arguments = std::max(arguments, made->second);
    const bool is_pick = kind(g[n].op) == OpKind::kGather && ready.contains(work(n).reads[0].base);  // of a whole row
    const bool reduces = work(n).kind == WorkKind::kReduce || is_pick;
    const NodeId first = reduces ? merged_with(g, folded, nodes, n) : -1;
    ready[n] = ready_after(arguments, reduces, first >= 0 ? ready.at(first) : -1);
  }
  int last = 1;
  for (const NodeId n : stores) {
    const bool per_row = work(n).kind == WorkKind::kReduce || product(work(n).reads[0].shape) < elements;
    last = std::max(last, ready.at(n) + (per_row ? 0 : 1));
  }
  return last;
}

std::vector<int> sweeps_over_columns(const FoldedGraph& folded, const std::vector<NodeId>& nodes,
                                     std::span<const NodeId> stores) {
  std::map<NodeId, int> ready;             // the first sweep that can use it
  std::map<NodeId, std::uint64_t> needed;  // a bit for each sweep
  const auto reduces = [&](NodeId n) { return folded.work[at(n)].kind == WorkKind::kReduce; };
  const auto before = [&](NodeId n) {
    int arguments = 0;
    for (const Access& a : folded.work[at(n)].reads)
      if (const auto made = ready.find(a.base); made != ready.end()) arguments = std::max(arguments, made->second);
    return arguments;
  };
  const auto bit = [](int sweep) { return std::uint64_t{1} << std::min(sweep, 63); };
  for (const NodeId n : nodes) ready[n] = ready_after(before(n), reduces(n), -1);
  for (const NodeId n : stores) needed[n] |= bit(ready.at(n));
  for (auto n = nodes.rbegin(); n != nodes.rend(); ++n)
    for (const Access& a : folded.work[at(*n)].reads)
      if (ready.contains(a.base)) needed[a.base] |= reduces(*n) ? bit(before(*n)) : needed[*n];
  std::vector<int> sweeps;
  for (const NodeId n : nodes) sweeps.push_back(std::max(std::popcount(needed[n]), 1));
  return sweeps;
}

bool takes_at_reduced(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes) {
  std::set<NodeId> reduced;  // and what depends on them
  for (const NodeId n : nodes) {
    const Work& work = folded.work[at(n)];
    const auto is_reduced = [&](const Access& a) { return reduced.contains(a.base); };
    if (kind(g[n].op) == OpKind::kGather && is_reduced(work.reads[1])) return true;
    if (work.kind == WorkKind::kReduce || std::ranges::any_of(work.reads, is_reduced)) reduced.insert(n);
  }
  return false;
}

void count_sweeps(const Graph& g, const FoldedGraph& folded, const Device& device, Group& group) {
  const bool loops = group.pattern == Pattern::kRows || group.pattern == Pattern::kColumns ||
                     group.pattern == Pattern::kFullReduction || group.pattern == Pattern::kPointwise;
  if (!loops) return;
  group.passes = count_passes(g, folded, group.nodes, group.stores, group.domain);
  if (group.passes == 1) return;
  std::int64_t bytes = 0;
  for (const Load& l : group.loads) {
    if (l.every_sweep) bytes += static_cast<std::int64_t>(item_bytes(g[l.access.base].dtype));
  }
  group.row_on_chip = bytes == 0 || group.cols() <= device.on_chip_bytes / bytes;
}

}  // namespace kfusion
