#include "kfusion/plan/sweeps.hpp"

#include <algorithm>
#include <map>

#include "kfusion/plan/domain.hpp"

namespace kfusion {
namespace {

class Sweeps {
 public:
  Sweeps(const Graph& g, const FoldedGraph& folded, const Group& group) : g_(g), folded_(folded), group_(group) {}

  int count() {
    int last = 1;
    for (const NodeId n : group_.nodes) {
      const bool reduces = work(n).kind == WorkKind::kReduce;
      int sweep = 1;
      for (const Access& a : work(n).reads) {
        const auto produced = found_.find(a.base);
        if (produced == found_.end()) continue;
        const bool spread = produced->second.per_row && distinct_elements(a) < product(a.shape);
        sweep = std::max(sweep, produced->second.sweep + (spread ? 1 : 0));
      }
      const NodeId partner = reduces ? merged_with(n) : -1;
      if (partner >= 0) sweep = found_[partner].sweep;
      found_[n] = {sweep, reduces || all_per_row(n)};
    }
    for (const NodeId n : group_.stores) last = std::max(last, found_[n].sweep);
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

  /// The earlier reduction that `reduction` can be merged with: sum of squares of v - mean(v), sum of exp(v - max(v)).
  NodeId merged_with(NodeId reduction) const {
    const NodeId value = base(reduction, 0);
    if (!found_.contains(value)) return -1;
    const Op op = g_[value].op;
    const bool squares = op == Op::square || (op == Op::multiply && base(value, 0) == base(value, 1));
    if (!squares && op != Op::exp) return -1;
    const NodeId difference = base(value, 0);
    if (!found_.contains(difference) || g_[difference].op != Op::subtract) return -1;
    const NodeId other = base(difference, 1);
    const bool wanted = found_.contains(other) && g_[other].op == (squares ? Op::mean : Op::max);
    return wanted && base(other, 0) == base(difference, 0) ? other : -1;
  }

  NodeId base(NodeId n, std::size_t argument) const { return work(n).reads[argument].base; }

  const Graph& g_;
  const FoldedGraph& folded_;
  const Group& group_;
  std::map<NodeId, Found> found_;
};

}  // namespace

void count_sweeps(const Graph& g, const FoldedGraph& folded, const Device& device, Group& group) {
  const bool loops = group.kind == GroupKind::kRows || group.kind == GroupKind::kColumns ||
                     group.kind == GroupKind::kFullReduction || group.kind == GroupKind::kPointwise;
  if (!loops) return;
  group.passes = Sweeps(g, folded, group).count();
  if (group.passes == 1) return;
  std::int64_t bytes = 0;
  for (const Load& l : group.loads) {
    if (l.every_sweep) bytes += static_cast<std::int64_t>(item_bytes(g[l.access.base].dtype));
  }
  group.row_on_chip = bytes == 0 || group.cols() <= device.on_chip_bytes / bytes;
}

}  // namespace kfusion
