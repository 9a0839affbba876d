#include "kfusion/plan/partition/finish.hpp"

#include <algorithm>
#include <queue>
#include <stdexcept>

#include "kfusion/interrupt.hpp"
#include "kfusion/plan/sweeps.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// Group i is to be part `part` of the partition.
class Finishing {
 public:
  Finishing(Plan& plan, const Partition& p, const Device& device)
      : plan_(plan), g_(plan.graph), p_(p), folded_(plan.folded), device_(device) {}

  void run() {
    for (int i = 0; i < p_.parts(); ++i) {
      check_interrupt();
      if (!p_.part(i).nodes.empty()) plan_.groups.push_back(group(members(i)));
    }
    sort_groups();
    assign_nodes();
  }

 private:
  struct Members {
    int part = 0;
    std::vector<NodeId> nodes;
  };

  Members members(int part) const {
    Members m{part, p_.part(part).nodes};
    std::sort(m.nodes.begin(), m.nodes.end());
    return m;
  }

  bool is_inside(const Members& m, NodeId n) const { return p_.part_of(n) == m.part; }
  const std::vector<Access>& reads(NodeId n) const { return folded_.work[static_cast<std::size_t>(n)].reads; }

  Group group(const Members& m) const {
    const Part& part = p_.part(m.part);
    Group r;
    r.nodes = m.nodes;
    for (const NodeId n : m.nodes) r.spans.push_back(p_.span(n));
    r.deferred = part.deferred;
    r.domain = part.domain;
    for (std::size_t i = 0; i < part.domain.size(); ++i) {
      if (part.reduced & axis_bit(i)) r.reduced.push_back(static_cast<int>(i));
    }
    r.pattern = p_.pattern_of(part, m.nodes);
    add_loads(m, r);
    for (const NodeId n : m.nodes) {
      if (is_stored(m, n)) r.stores.push_back(n);
    }
    count_sweeps(g_, folded_, device_, r);
    return r;
  }

  bool is_stored(const Members& m, NodeId n) const {
    const auto& readers = p_.readers(n);
    return p_.is_output(n) || std::any_of(readers.begin(), readers.end(), [&](NodeId r) { return !is_inside(m, r); });
  }

  void add_loads(const Members& m, Group& r) const {
    const std::int64_t size = std::max<std::int64_t>(product(r.domain), 1);
    for (const NodeId n : m.nodes) {
      for (const Access& a : reads(n)) {
        if (is_inside(m, a.base) || is_free(g_[a.base])) continue;
        const bool seen = std::any_of(r.loads.begin(), r.loads.end(), [&](const Load& l) { return l.access == a; });
        if (!seen) r.loads.push_back({a, n, distinct_elements(a) == size});
      }
    }
  }

  /// Each group after those that it reads; among the ready ones, the one that was written first.
  void sort_groups() {
    auto& groups = plan_.groups;
    std::vector<int> computes(g_.nodes.size(), -1), waits(groups.size(), 0);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (const NodeId n : groups[i].stores) computes[static_cast<std::size_t>(n)] = static_cast<int>(i);
    }
    std::vector<std::vector<int>> next(groups.size());  // ascending
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (const Load& l : groups[i].loads) {
        for (const NodeId writer : writers_of(folded_, l.access.base)) {
          const int from = computes[at(writer)];
          if (from < 0 || (!next[at(from)].empty() && next[at(from)].back() == static_cast<int>(i))) continue;
          next[at(from)].push_back(static_cast<int>(i));
          ++waits[i];
        }
      }
    }
    using Ready = std::pair<NodeId, int>;
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (waits[i] == 0) ready.emplace(groups[i].nodes.back(), static_cast<int>(i));
    }
    std::vector<Group> sorted;
    while (!ready.empty()) {
      const auto i = static_cast<std::size_t>(ready.top().second);
      ready.pop();
      sorted.push_back(std::move(groups[i]));
      for (const int n : next[i]) {
        if (--waits[static_cast<std::size_t>(n)] == 0)
          ready.emplace(groups[static_cast<std::size_t>(n)].nodes.back(), n);
      }
    }
    if (sorted.size() != groups.size()) throw std::logic_error("kfusion: internal error: kernels wait for each other");
    groups = std::move(sorted);
  }

  void assign_nodes() {
    for (std::size_t n = 0; n < g_.nodes.size(); ++n) {
      const Work& w = folded_.work[n];
      plan_.computed.push_back(w.kind == WorkKind::kPointwise ? w.shape : g_.nodes[n].shape);
    }
    plan_.group_of.assign(g_.nodes.size(), -1);
    for (std::size_t i = 0; i < plan_.groups.size(); ++i) {
      for (const NodeId n : plan_.groups[i].nodes) plan_.group_of[static_cast<std::size_t>(n)] = static_cast<int>(i);
    }
    for (NodeId n = 0; n < std::ssize(g_.nodes); ++n)
      if (kind(g_[n].op) == OpKind::kJoin && !is_part(g_[n])) fold_into_last_part(n);
    for (auto n = static_cast<NodeId>(g_.nodes.size()); n-- > 0;) {
      const int group = plan_.group_of[static_cast<std::size_t>(n)];
      for (const NodeId a : g_[n].arguments) fold_into(a, group);
    }
    for (const Output& o : g_.outputs) {
      fold_into(o.node, plan_.group_of[static_cast<std::size_t>(folded_.value[static_cast<std::size_t>(o.node)].base)]);
    }
  }

  /// A join is whole with the last kernel that stores a part of it.
  void fold_into_last_part(NodeId join) {
    int last = -1;
    for (const NodeId a : g_[join].arguments) last = std::max(last, plan_.group_of[at(a)]);
    plan_.group_of[at(join)] = last;
    if (last >= 0) plan_.groups[at(last)].views.push_back(join);
  }

  /// A view belongs to the kernel that reads through it.
  void fold_into(NodeId view, int group) {
    while (group >= 0 && kind(g_[view].op) == OpKind::kView && plan_.group_of[static_cast<std::size_t>(view)] < 0) {
      plan_.group_of[static_cast<std::size_t>(view)] = group;
      plan_.groups[static_cast<std::size_t>(group)].views.push_back(view);
      view = g_[view].arguments[0];
    }
  }

  Plan& plan_;
  const Graph& g_;
  const Partition& p_;
  const FoldedGraph& folded_;
  const Device& device_;
};

}  // namespace

std::int64_t Group::rows() const {
  std::int64_t n = 1;
  for (std::size_t i = 0; i < domain.size(); ++i) {
    if (std::find(reduced.begin(), reduced.end(), static_cast<int>(i)) == reduced.end()) n *= domain[i];
  }
  return n;
}

std::int64_t Group::cols() const { return product(domain) / rows(); }

void finish(Plan& plan, const Partition& partition, const Device& device) { Finishing(plan, partition, device).run(); }

}  // namespace kfusion
