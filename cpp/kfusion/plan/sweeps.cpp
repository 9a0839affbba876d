#include "kfusion/plan/sweeps.hpp"

#include <algorithm>
#include <map>

#include "kfusion/plan/domain.hpp"

namespace kfusion {
namespace {

class Sweeps {
 public:
  Sweeps(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes)
      : g_(g), folded_(folded), nodes_(nodes) {}

  int count(const std::vector<NodeId>& stores) {
    int last = 1;
    for (const NodeId n : nodes_) {
      const bool reduces = work(n).kind == WorkKind::kReduce;
      int sweep = 1;
      for (const Access& a : work(n).reads) {
        const auto produced = found_.find(a.base);
        if (produced == found_.end()) continue;
        const bool spread = produced->second.per_row && distinct_elements(a) < product(a.shape);
        sweep = std::max(sweep, produced->second.sweep + (spread ? 1 : 0));
      }
      const NodeId partner = reduces ? merged_with(g_, folded_, nodes_, n) : -1;
      if (partner >= 0) sweep = found_[partner].sweep;
      found_[n] = {sweep, reduces || all_per_row(n)};
    }
    for (const NodeId n : stores) last = std::max(last, found_[n].sweep);
    return last;
  }

 private:
  struct Found {
    int sweep = 1;  ///< during which a value of every element is known, or after which one of a row is
    bool per_row = false;
  };

  const Work& work(NodeId n) const { return folded_.work[static_cast<std::size_t>(n)]; }

  /// A map whose result is as small as the reduced values that it reads.
  bool all_per_row(NodeId n) const {
    bool any = false;
    for (const Access& a : work(n).reads) {
      const auto produced = found_.find(a.base);
      if (produced == found_.end()) continue;
      if (!produced->second.per_row || distinct_elements(a) < product(a.shape)) return false;
      any = true;
    }
    return any;
  }

  const Graph& g_;
  const FoldedGraph& folded_;
  const std::vector<NodeId>& nodes_;
  std::map<NodeId, Found> found_;
};

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

}  // namespace

NodeId merged_with(const Graph& g, const FoldedGraph& folded, const std::vector<NodeId>& nodes, NodeId reduction) {
  const Walk walk(g, folded, nodes);
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
                 const std::vector<NodeId>& stores) {
  return Sweeps(g, folded, nodes).count(stores);
}

void count_sweeps(const Graph& g, const FoldedGraph& folded, const Device& device, Group& group) {
  const bool loops = group.pattern == Pattern::kRows || group.pattern == Pattern::kColumns ||
                     group.pattern == Pattern::kFullReduction || group.pattern == Pattern::kPointwise;
  if (!loops) return;
  group.passes = count_passes(g, folded, group.nodes, group.stores);
  if (group.passes == 1) return;
  std::int64_t bytes = 0;
  for (const Load& l : group.loads) {
    if (l.every_sweep) bytes += static_cast<std::int64_t>(item_bytes(g[l.access.base].dtype));
  }
  group.row_on_chip = bytes == 0 || group.cols() <= device.on_chip_bytes / bytes;
}

}  // namespace kfusion
