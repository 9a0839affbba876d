#include "kfusion/plan/partition/sweeps.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <set>

#include "kfusion/plan/partition/domain.hpp"

namespace kfusion {
namespace {

/// Walks from a reduction to what it reads, inside one group.
class Walk {
 public:
  Walk(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes)
      : g_(g), folded_(folded), nodes_(nodes) {}

  /// `node` of the group, if it is an `op`.
  bool is(NodeId node, Op op) const {
    return g_[node].op == op && std::binary_search(nodes_.begin(), nodes_.end(), node);
  }
  bool reduces(NodeId n) const { return folded_.work[static_cast<std::size_t>(n)].kind == WorkKind::kReduce; }
  const Access& read(NodeId n, std::size_t argument) const {
    return folded_.work[static_cast<std::size_t>(n)].reads[argument];
  }
  /// Inside a group equal bases are read at equal elements. Strides along extents of 1 say nothing.
  bool reads_same(const Access& a, const Access& b) const {
    if (a.base != b.base || std::binary_search(nodes_.begin(), nodes_.end(), a.base)) return a.base == b.base;
    return a.shape == b.shape && collapsed(a) == collapsed(b);
  }

 private:
  const Graph& g_;
  const FoldedGraph& folded_;
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
NodeId searched_with(const Graph& g, const Walk& walk, NodeId reduction) {
  const NodeId choice = walk.read(reduction, 0).base;
  if (!walk.is(choice, Op::where) || !is_beyond(g, walk.read(choice, 2).base, walk.read(choice, 1).base)) return -1;
  NodeId equal = walk.read(choice, 0).base, isnan = -1;
  if (walk.is(equal, Op::logical_or)) {
    const NodeId one = walk.read(equal, 0).base, other = walk.read(equal, 1).base;
    equal = walk.is(one, Op::equal) ? one : other, isnan = equal == one ? other : one;
  }
  if (!walk.is(equal, Op::equal) || (isnan >= 0 && !walk.is(isnan, Op::isnan))) return -1;
  for (const std::size_t which : {0, 1}) {
    const Access& x = walk.read(equal, 1 - which);
    const NodeId extreme = walk.read(equal, which).base;
    if ((!walk.is(extreme, Op::max) && !walk.is(extreme, Op::min)) || !walk.reduces(extreme)) continue;
    const bool same =
        walk.reads_same(walk.read(extreme, 0), x) && (isnan < 0 || walk.reads_same(walk.read(isnan, 0), x));
    if (same && (isnan >= 0 || !is_float(g[x.base].dtype))) return extreme;
  }
  return -1;
}

}  // namespace

NodeId merged_with(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes, NodeId reduction) {
  const Walk walk(g, folded, nodes);
  const auto is_product = [&](NodeId n) { return g[n].op == Op::matmul; };
  if (g[reduction].op == Op::min)  // loops have searches of their own
    return std::ranges::any_of(nodes, is_product) ? searched_with(g, walk, reduction) : -1;
  if (g[reduction].op != Op::sum && g[reduction].op != Op::mean) return -1;
  const NodeId value = walk.read(reduction, 0).base;
  const bool squares = walk.is(value, Op::square) ||
                       (walk.is(value, Op::multiply) && walk.reads_same(walk.read(value, 0), walk.read(value, 1)));
  const bool exponentials = walk.is(value, Op::exp) && g[reduction].op == Op::sum;
  if (!squares && !exponentials) return -1;
  const NodeId difference = walk.read(value, 0).base;
  if (!walk.is(difference, Op::subtract)) return -1;
  const NodeId first = walk.read(difference, 1).base;
  if (!walk.is(first, squares ? Op::mean : Op::max) || !walk.reduces(first)) return -1;
  return walk.reads_same(walk.read(first, 0), walk.read(difference, 0)) ? first : -1;
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
