// The passes of the planner, in order.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "kfusion/plan/contractions.hpp"
#include "kfusion/plan/duplicate.hpp"
#include "kfusion/plan/finish.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/partition.hpp"
#include "kfusion/plan/plan.hpp"
#include "kfusion/plan/reasons.hpp"
#include "kfusion/plan/runnable.hpp"

namespace kfusion {
namespace {

/// Producers into consumers, epilogues of contractions included: for each consumer the largest value first.
bool merge_vertically(const Graph& g, Partition& p) {
  bool merged = false;
  for (const NodeId n : p.order()) {
    auto edges = p.edges_into(n);
    std::sort(edges.begin(), edges.end(), [&](const Edge& a, const Edge& b) {
      const auto key = [&](const Edge& e) { return std::pair(-g[e.producer].nbytes(), p.rank(e.producer)); };
      return key(a) < key(b);
    });
    for (const Edge& e : edges) {
      if (p.part_of(e.producer) != p.part_of(n)) merged |= !p.merge_along(e);
    }
  }
  return merged;
}

/// What keeps two readers of one value apart, for the report.
struct Neighbours {
  NodeId first = 0, second = 0, shared = 0;
};

/// Worth a word when two kernels both read it: no parameter, but at least as large as what the kernel runs over.
bool is_large_for(const Graph& g, const Partition& p, int part, NodeId value) {
  return g[value].size() > 1 && g[value].size() >= product(p.part(part).domain);
}

/// Kernels that sweep over the same full-size value: read it once.
bool merge_siblings(const Graph& g, Partition& p, std::vector<Neighbours>* apart) {
  std::unordered_map<NodeId, std::vector<NodeId>> readers;  // by what they read; one node for each kernel
  std::vector<NodeId> shared;
  for (const NodeId n : p.order()) {
    if (p.part(p.part_of(n)).kind == WorkKind::kContraction) continue;
    for (const NodeId s : p.reads(n)) {
      if (p.part_of(s) == p.part_of(n) || is_free(g[s])) continue;
      auto& list = readers[s];
      if (list.empty()) shared.push_back(s);
      if (list.empty() || p.part_of(list.back()) != p.part_of(n)) list.push_back(n);
    }
  }
  bool merged = false;
  for (const NodeId s : shared) {
    const auto& list = readers[s];
    for (std::size_t i = 1; i < list.size(); ++i) {
      const int a = p.part_of(list[i - 1]), b = p.part_of(list[i]);
      if (a == b) continue;
      const auto reason = p.merge_siblings(a, b, s);
      merged |= !reason;
      if (reason == Reason::kDomainMismatch && apart && is_large_for(g, p, a, s) && is_large_for(g, p, b, s)) {
        apart->push_back({list[i - 1], list[i], s});
      }
    }
  }
  return merged;
}

/// Unless a third part has to run between (a graph from outside may mix its stages).
void unite_in_order(Partition& p, NodeId a, NodeId b) {
  const int first = p.part_of(a), second = p.part_of(b);
  if (first == second) return;
  if (p.depends_through_others(first, second) || p.depends_through_others(second, first)) return;
  p.unite(first, second);
}

/// One part per user-level call.
void merge_stages(const Graph& g, Partition& p) {
  std::unordered_map<StageId, NodeId> first;
  for (const NodeId n : p.order()) {
    const auto [found, added] = first.try_emplace(g[n].stage, n);
    if (!added) unite_in_order(p, found->second, n);
  }
}

class Planning {
 public:
  Planning(const Graph& g, const Device& device, const PlanOptions& options)
      : device_(device),
        options_(options),
        folded_(fold_views(g, options.fuse)),
        partition_(g, folded_, device, options) {
    plan_.graph = g;
  }

  /// Merges until nothing changes: a merge can make room for another. Copies go to the readers that they were made for.
  void merge(const std::vector<NodeId>& copies = {}) {
    const Graph& g = plan_.graph;
    if (!options_.fuse && !options_.only_executable) {
      merge_stages(g, partition_);
      extras_.resize(static_cast<std::size_t>(partition_.parts()));
      return;
    }
    for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy) merge_with_readers(*copy);
    while (merge_vertically(g, partition_) || merge_siblings(g, partition_, nullptr)) {
    }
    merge_siblings(g, partition_, &apart_);
    extras_.resize(static_cast<std::size_t>(partition_.parts()));
    if (options_.only_executable) return;
    join_attention(g, folded_, partition_, extras_);
    join_contraction_reductions(g, folded_, partition_, extras_);
    join_casts(g, partition_);
    join_copies(folded_, partition_);
  }

  std::optional<CopiedGraph> graph_with_copies() const { return with_copies(plan_.graph, partition_, folded_); }

  Plan result() {
    finish(plan_, partition_, folded_, extras_, device_);
    for (const NodeId n : partition_.order()) refuse_inputs(n);
    for (const Neighbours& n : apart_) refuse_neighbours(n);
    std::sort(plan_.refusals.begin(), plan_.refusals.end(), [](const Refusal& a, const Refusal& b) {
      return std::tie(a.consumer, a.producer) < std::tie(b.consumer, b.producer);
    });
    return std::move(plan_);
  }

 private:
  void merge_with_readers(NodeId copy) {
    for (const NodeId reader : partition_.readers(copy)) {
      for (const Edge& e : partition_.edges_into(reader)) {
        if (e.producer == copy && partition_.part_of(copy) != partition_.part_of(reader)) partition_.merge_along(e);
      }
    }
  }

  Case make_case(NodeId producer, NodeId consumer, Reason reason) const {
    return {plan_.graph, partition_, device_, options_, reason, producer, consumer};
  }

  void refuse(const Case& c, std::string text) {
    const auto group = [this](NodeId n) { return plan_.group_of[static_cast<std::size_t>(n)]; };
    plan_.refusals.push_back({c.producer, c.consumer, group(c.producer), group(c.consumer), c.reason, std::move(text)});
  }
  void refuse(const Case& c) { refuse(c, sentence(c)); }

  /// One refusal for each value that n reads from another kernel or another memory.
  void refuse_inputs(NodeId n) {
    std::vector<NodeId> done;
    for (const NodeId from : partition_.reads(n)) {
      if (std::find(done.begin(), done.end(), from) != done.end()) continue;
      done.push_back(from);
      const Node& source = plan_.graph[from];
      if (source.op == Op::input && source.place != plan_.graph[n].place && !source.shape.empty()) {
        refuse(make_case(from, n, Reason::kCrossDevice));
      }
    }
    done.clear();
    for (const Edge& e : partition_.edges_into(n)) {
      if (partition_.part_of(e.producer) == partition_.part_of(n)) continue;
      if (std::find(done.begin(), done.end(), e.producer) != done.end()) continue;
      done.push_back(e.producer);
      refuse(case_of(e));
    }
  }

  Case case_of(const Edge& e) {
    Case c = make_case(e.producer, e.consumer, Reason::kUnfused);
    if (!options_.fuse && !options_.only_executable) return c;
    if (auto refused = partition_.refusal(e)) {
      c.reason = refused->reason;
      c.merged = std::move(refused->merged);
      c.because = refused->because;
    } else {
      c.reason = Reason::kContraction;  // joined by pattern: no general rule speaks of it
    }
    return c;
  }

  void refuse_neighbours(const Neighbours& n) {
    const int a = partition_.part_of(n.first), b = partition_.part_of(n.second);
    const auto linked = [&](const Refusal& r) {
      return (r.producer == n.first && r.consumer == n.second) || (r.producer == n.second && r.consumer == n.first);
    };
    if (a == b || std::any_of(plan_.refusals.begin(), plan_.refusals.end(), linked)) return;
    const Case c = make_case(n.first, n.second, Reason::kDomainMismatch);
    refuse(c, sentence_of_siblings(c, n.shared));
  }

  const Device& device_;
  const PlanOptions& options_;
  Plan plan_;
  FoldedGraph folded_;
  Partition partition_;
  std::vector<Extras> extras_;  ///< by part
  std::vector<Neighbours> apart_;
};

std::int64_t bytes_between_kernels(const Plan& p) {
  std::int64_t bytes = 0;
  for (const Group& g : p.groups) {
    std::map<NodeId, std::int64_t> read;
    for (const Load& l : g.loads) {
      std::int64_t& elements = read[l.access.base];
      elements = std::min(elements + distinct_elements(l.access), l.access.base_size);
    }
    for (const auto& [base, elements] : read) {
      bytes += elements * static_cast<std::int64_t>(item_bytes(p.graph[base].dtype));
    }
    for (const NodeId n : g.stores) {
      bytes +=
          product(p.computed[static_cast<std::size_t>(n)]) * static_cast<std::int64_t>(item_bytes(p.graph[n].dtype));
    }
  }
  return bytes;
}

}  // namespace

Plan make_plan(const Graph& g, const Device& device, const PlanOptions& options) {
  Graph named = g;
  make_stage_names_unique(named);
  if (options.only_executable) named = without_empty_work(named);
  Graph simple = simplify(named, options.fuse);
  if (options.only_executable) simple = with_own_results(simple);
  Planning planning(simple, device, options);
  planning.merge();
  auto copied = options.fuse ? planning.graph_with_copies() : std::nullopt;
  Plan plan = planning.result();
  while (copied) {  // a copy can make another one pay: of what the first one reads
    Planning again(copied->graph, device, options);
    again.merge(copied->copies);
    auto next = again.graph_with_copies();
    Plan other = again.result();
    if (bytes_between_kernels(other) >= bytes_between_kernels(plan)) break;
    plan = std::move(other);
    copied = std::move(next);
  }
  return plan;
}

}  // namespace kfusion
