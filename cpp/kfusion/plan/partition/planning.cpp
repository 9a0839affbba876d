#include "kfusion/plan/partition/planning.hpp"

#include <array>
#include <map>
#include <set>
#include <tuple>

#include "kfusion/interrupt.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/partition/check.hpp"
#include "kfusion/plan/partition/contractions.hpp"
#include "kfusion/plan/partition/finish.hpp"
#include "kfusion/plan/prices/cheapest.hpp"
#include "kfusion/plan/prices/measured.hpp"
#include "kfusion/plan/views/fold.hpp"
#include "kfusion/plan/views/joins.hpp"

namespace kfusion {
namespace {

/// Producers into consumers, epilogues of contractions included: for each consumer the largest value first.
bool merge_vertically(const Graph& g, Partition& p, Order order) {
  bool merged = false;
  const std::vector<NodeId>& nodes = p.order();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const NodeId n = nodes[order == Order::kBackward ? nodes.size() - 1 - i : i];
    check_interrupt();
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

/// Worth a word when two kernels both read it: no parameter, but at least as large as what the kernel runs over.
bool is_large_for(const Graph& g, const Partition& p, int part, NodeId value) {
  return g[value].size() > 1 && g[value].size() >= product(p.part(part).domain);
}

/// Kernels that sweep over the same full-size value: read it once.
bool merge_siblings(const Graph& g, Partition& p, std::vector<Neighbours>* apart) {
  std::vector<std::vector<NodeId>> readers(g.nodes.size());  // by what they read; one node for each kernel
  std::vector<NodeId> shared;
  for (const NodeId n : p.order()) {
    if (p.part(p.part_of(n)).kind == WorkKind::kContraction) continue;
    for (const NodeId s : p.reads(n)) {
      if (p.part_of(s) == p.part_of(n) || is_free(g[s])) continue;
      auto& list = readers[at(s)];
      if (list.empty()) shared.push_back(s);
      if (list.empty() || p.part_of(list.back()) != p.part_of(n)) list.push_back(n);
    }
  }
  bool merged = false;
  for (const NodeId s : shared) {
    check_interrupt();
    const auto& list = readers[at(s)];
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

/// Merges those of the kernels of these nodes that run over one domain: one launch instead of several.
bool merge_by_domain(const std::vector<NodeId>& nodes, Partition& p) {
  bool merged = false;
  std::map<Extents, int> latest;
  for (const NodeId n : nodes) {
    const int part = p.part_of(n);
    const auto [other, fresh] = latest.try_emplace(p.part(part).domain, part);
    if (fresh || other->second == part) continue;
    merged |= !p.merge_beside(other->second, part);
    other->second = p.part_of(n);
  }
  return merged;
}

/// Kernels that store into one join.
bool merge_parts(const FoldedGraph& folded, Partition& p) {
  bool merged = false;
  for (const auto& [join, stored] : folded.parts) {
    check_interrupt();
    merged |= merge_by_domain(stored, p);
  }
  return merged;
}

/// Kernels that sum the parts of sums.
bool merge_totals(const Graph& g, Partition& p) {
  std::vector<NodeId> totals;
  for (const NodeId n : p.order())
    if (g[n].op == Op::sum && g[g[n].arguments[0]].op == Op::partial_sums) totals.push_back(n);
  return merge_by_domain(totals, p);
}

Plan folded_plan(Graph g, Scope scope) {
  Plan p;
  p.graph = std::move(g);
  p.folded = fold_views(p.graph, scope == Scope::kEverything);
  return p;
}

}  // namespace

Planning::Planning(Graph g, const Device& device, const PlanOptions& options, Scope scope)
    : device_(device),
      options_(options),
      scope_(scope),
      plan_(folded_plan(std::move(g), scope)),
      partition_(plan_.graph, plan_.folded, device, options_) {}

void Planning::merge(const std::vector<NodeId>& copies, Order order) {
  for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy) merge_with_readers(*copy);
  if (scope_ != Scope::kEverything) {
    partition_.merge_across_stages(false);
    merge_kernels(order);
  }
  if (scope_ == Scope::kWithinCalls) return;
  partition_.merge_across_stages(true);
  merge_kernels(order);
  merge_siblings(plan_.graph, partition_, &apart_);
}

void Planning::finish() {
  kfusion::finish(plan_, partition_, device_);
  if (options_.measured) {
    plan_.measured = options_.measured;
    for (Group& group : plan_.groups) group.key = key_of(plan_, group);
  }
  choose_executors(plan_, options_.executors, device_);
  check_plan(plan_);
  cost_ = count_in_place(plan_, device_);
}

Plan Planning::take_with_refusals() {
  for (const NodeId n : partition_.order()) {
    check_interrupt();
    refuse_inputs(n);
  }
  for (const Neighbours& n : apart_) refuse_neighbours(n);
  std::sort(plan_.refusals.begin(), plan_.refusals.end(), [](const Refusal& a, const Refusal& b) {
    return std::tie(a.consumer, a.producer) < std::tie(b.consumer, b.producer);
  });
  return take();
}

/// Until nothing changes: a merge can make room for another.
void Planning::merge_kernels(Order order) {
  const Graph& g = plan_.graph;
  if (order == Order::kShared) merge_siblings(g, partition_, nullptr);
  while (merge_vertically(g, partition_, order) || merge_siblings(g, partition_, nullptr) ||
         merge_parts(plan_.folded, partition_) || merge_totals(g, partition_)) {
  }
  join_attention(g, plan_.folded, partition_);
  join_contraction_reductions(g, plan_.folded, partition_);
  join_casts(g, partition_);
  join_copies(plan_.folded, partition_);
  join_products_beside(g, plan_.folded, partition_);
}

void Planning::merge_with_readers(NodeId copy) {
  for (const NodeId reader : partition_.readers(copy)) {
    for (const Edge& e : partition_.edges_into(reader)) {
      if (e.producer == copy && partition_.part_of(copy) != partition_.part_of(reader)) partition_.merge_along(e);
    }
  }
}

Case Planning::make_case(NodeId producer, NodeId consumer, Reason reason) const {
  return {plan_.graph, partition_, device_, options_, reason, producer, consumer};
}

void Planning::refuse(const Case& c, std::string text) {
  const auto group = [this](NodeId n) { return plan_.group_of[static_cast<std::size_t>(n)]; };
  plan_.refusals.push_back({c.producer, c.consumer, group(c.producer), group(c.consumer), c.reason, std::move(text)});
}

/// One refusal for each value that n reads from another kernel or another memory.
void Planning::refuse_inputs(NodeId n) {
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
  refuse_joins(n);
}

/// For a join that n reads, each kernel that stores parts of it.
void Planning::refuse_joins(NodeId n) {
  std::set<int> done = {partition_.part_of(n)};
  for (const NodeId from : partition_.reads(n)) {
    const auto& parts = plan_.folded.parts;
    if (!parts.contains(from)) continue;
    for (const NodeId part : parts.at(from))
      if (done.insert(partition_.part_of(part)).second) refuse(make_case(part, n, Reason::kDomainMismatch));
  }
}

/// Whether the library's call stands where kernels could be.
bool Planning::replaces_kernels(const Case& c) const {
  return std::ranges::any_of(std::array{c.producer, c.consumer}, [&](NodeId n) {
    const auto* call = std::get_if<LibraryCallAttributes>(&plan_.graph[n].attributes);
    return call && call->kernels_ns >= 0;
  });
}

Case Planning::case_of(const Edge& e) {
  Case c = make_case(e.producer, e.consumer, Reason::kContraction);
  auto refused = partition_.refusal(e);
  if (!refused) return c;  // joined by pattern: no general rule speaks of it
  const bool could = refused->reason == Reason::kUnfused && options_.fuse;
  c.reason = could ? Reason::kNoGain : refused->reason;
  if (const std::string* why = partition_.why_no_pattern(e); why && c.reason == Reason::kContraction) {
    c.reason = reason_for(*why), c.missing = *why;
    return c;
  }
  if (c.reason == Reason::kLibraryCall && replaces_kernels(c)) c.reason = Reason::kLibraryIsFaster;
  c.merged = std::move(refused->merged);
  c.because = refused->because;
  c.missing = std::move(refused->missing);
  return c;
}

void Planning::refuse_neighbours(const Neighbours& n) {
  const int a = partition_.part_of(n.first), b = partition_.part_of(n.second);
  const auto linked = [&](const Refusal& r) {
    return (r.producer == n.first && r.consumer == n.second) || (r.producer == n.second && r.consumer == n.first);
  };
  if (a == b || std::any_of(plan_.refusals.begin(), plan_.refusals.end(), linked)) return;
  const Case c = make_case(n.first, n.second, Reason::kDomainMismatch);
  refuse(c, sentence_of_siblings(c, n.shared));
}

bool Counted::exceeds(const Counted& other) const {
  const Traffic &a = cost().total.traffic, &b = other.cost().total.traffic;
  return a.compulsory.total() > b.compulsory.total() || a.issued.total() > b.issued.total() || a.launches > b.launches;
}

bool Counted::is_faster_than(const Counted& other) const {
  if (!knows_what_differs_from(other) || !other.knows_what_differs_from(*this)) return us() < other.us();
  return cost().total.price.total_us < other.cost().total.price.total_us;
}

bool Counted::knows_what_differs_from(const Counted& other) const {
  const auto is_there = [&](const Group& group) {
    return std::ranges::any_of(other.plan().groups, [&](const Group& g) {
      return !g.key.empty() && g.key == group.key && g.executor == group.executor;
    });
  };
  for (std::size_t i = 0; i < plan().groups.size(); ++i)
    if (!cost().groups[i].price.measured && !is_there(plan().groups[i])) return false;
  return true;
}

}  // namespace kfusion
