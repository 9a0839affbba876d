// The passes of the planner, in order.
#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "kfusion/graph/shapes.hpp"
#include "kfusion/interrupt.hpp"
#include "kfusion/plan/check.hpp"
#include "kfusion/plan/contractions.hpp"
#include "kfusion/plan/cut_products.hpp"
#include "kfusion/plan/duplicate.hpp"
#include "kfusion/plan/finish.hpp"
#include "kfusion/plan/joins.hpp"
#include "kfusion/plan/library_forms.hpp"
#include "kfusion/plan/names.hpp"
#include "kfusion/plan/partial_sums.hpp"
#include "kfusion/plan/partition.hpp"
#include "kfusion/plan/plan.hpp"
#include "kfusion/plan/pointwise_convolutions.hpp"
#include "kfusion/plan/push.hpp"
#include "kfusion/plan/push_gathers.hpp"
#include "kfusion/plan/push_masks.hpp"
#include "kfusion/plan/reasons.hpp"
#include "kfusion/plan/regroup.hpp"
#include "kfusion/plan/runnable.hpp"
#include "kfusion/plan/slow_products.hpp"
#include "kfusion/plan/tiling.hpp"
#include "kfusion/plan/traffic.hpp"
#include "kfusion/plan/unroll.hpp"
#include "kfusion/plan/widen_positions.hpp"

namespace kfusion {
namespace {

/// Producers into consumers, epilogues of contractions included: for each consumer the largest value first.
bool merge_vertically(const Graph& g, Partition& p) {
  bool merged = false;
  for (const NodeId n : p.order()) {
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

/// Of the kernels that compute these nodes, those over one domain: one launch instead of several.
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

/// Where merging starts, and how far it goes.
enum class Scope : std::uint8_t {
  kEverything,   ///< any calls may share a kernel
  kCallsFirst,   ///< each call alone, then all: no merge moves more bytes, so nothing exceeds one kernel per call
  kWithinCalls,  ///< no calls share a kernel
};

class Planning {
 public:
  Planning(Graph g, const Device& device, const PlanOptions& options, Scope scope)
      : device_(device),
        options_(options),
        scope_(scope),
        plan_(folded_plan(std::move(g), scope)),
        partition_(plan_.graph, plan_.folded, device, options_) {}
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  /// Copies go to the readers that they were made for.
  void merge(const std::vector<NodeId>& copies = {}) {
    for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy) merge_with_readers(*copy);
    if (scope_ != Scope::kEverything) {
      partition_.merge_across_stages(false);
      merge_kernels();
    }
    if (scope_ == Scope::kWithinCalls) return;
    partition_.merge_across_stages(true);
    merge_kernels();
    merge_siblings(plan_.graph, partition_, &apart_);
  }

  std::optional<CopiedGraph> graph_with_copies() const { return with_copies(plan_.graph, partition_, plan_.folded); }

  /// Makes groups of the parts, and counts what they move.
  void finish() {
    kfusion::finish(plan_, partition_, device_);
    if (options_.measured) {
      plan_.measured = options_.measured;
      for (Group& group : plan_.groups) group.key = key_of(plan_, group);
    }
    choose_executors(plan_, options_.executors, device_);
    check_plan(plan_);
    cost_ = count_in_place(plan_, device_);
  }

  const Plan& plan() const { return plan_; }
  const PlanCost& cost() const { return cost_; }

  /// The finished plan.
  Plan take() { return std::move(plan_); }

  /// With the reasons why its kernels are not fewer.
  Plan take_with_refusals() {
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

 private:
  static Plan folded_plan(Graph g, Scope scope) {
    Plan p;
    p.graph = std::move(g);
    p.folded = fold_views(p.graph, scope == Scope::kEverything);
    return p;
  }

  /// Until nothing changes: a merge can make room for another.
  void merge_kernels() {
    const Graph& g = plan_.graph;
    while (merge_vertically(g, partition_) || merge_siblings(g, partition_, nullptr) ||
           merge_parts(plan_.folded, partition_) || merge_totals(g, partition_)) {
    }
    join_attention(g, plan_.folded, partition_);
    join_contraction_reductions(g, plan_.folded, partition_);
    join_casts(g, partition_);
    join_copies(plan_.folded, partition_);
    join_products_beside(g, plan_.folded, partition_);
  }

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
    refuse_joins(n);
  }

  /// For a join that n reads, each kernel that stores parts of it.
  void refuse_joins(NodeId n) {
    std::set<int> done = {partition_.part_of(n)};
    for (const NodeId from : partition_.reads(n)) {
      const auto& parts = plan_.folded.parts;
      if (!parts.contains(from)) continue;
      for (const NodeId part : parts.at(from))
        if (done.insert(partition_.part_of(part)).second) refuse(make_case(part, n, Reason::kDomainMismatch));
    }
  }

  /// Whether the library's call stands where kernels could be.
  bool replaces_kernels(const Case& c) const {
    return std::ranges::any_of(std::array{c.producer, c.consumer}, [&](NodeId n) {
      const auto* call = std::get_if<LibraryCallAttributes>(&plan_.graph[n].attributes);
      return call && call->kernels_ns >= 0;
    });
  }

  Case case_of(const Edge& e) {
    Case c = make_case(e.producer, e.consumer, Reason::kContraction);
    auto refused = partition_.refusal(e);
    if (!refused) return c;  // joined by pattern: no general rule speaks of it
    const bool could = refused->reason == Reason::kUnfused && options_.fuse;
    c.reason = could ? Reason::kNoGain : refused->reason;
    if (const std::string* why = partition_.missing_pattern(e); why && c.reason == Reason::kContraction) {
      c.reason = reason_for(*why), c.missing = *why;
      return c;
    }
    if (c.reason == Reason::kLibraryCall && replaces_kernels(c)) c.reason = Reason::kLibraryIsFaster;
    c.merged = std::move(refused->merged);
    c.because = refused->because;
    c.missing = std::move(refused->missing);
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
  const PlanOptions options_;
  const Scope scope_;
  Plan plan_;
  Partition partition_;
  PlanCost cost_;
  std::vector<Neighbours> apart_;
};

/// A plan and what it moves.
class Counted {
 public:
  explicit Counted(std::unique_ptr<Planning> merged) : planning_(std::move(merged)) { planning_->finish(); }

  const Plan& plan() const { return planning_->plan(); }
  const PlanCost& cost() const { return planning_->cost(); }
  double us() const { return cost().total.price.predicted_us; }
  std::int64_t bytes() const { return cost().total.traffic.compulsory.total(); }
  bool runs() const { return std::ranges::all_of(plan().groups, &Group::executor); }

  /// More bytes, or more kernels.
  bool exceeds(const Counted& other) const {
    const Traffic &a = cost().total.traffic, &b = other.cost().total.traffic;
    return a.compulsory.total() > b.compulsory.total() || a.issued.total() > b.issued.total() ||
           a.launches > b.launches;
  }

  /// Less than another one of the same function: as measured, where all was in which the two differ.
  bool is_faster_than(const Counted& other) const {
    if (!knows_what_differs_from(other) || !other.knows_what_differs_from(*this)) return us() < other.us();
    return cost().total.price.total_us < other.cost().total.price.total_us;
  }

  Plan take() && { return planning_->take(); }
  Plan take_with_refusals() && { return planning_->take_with_refusals(); }

 private:
  bool knows_what_differs_from(const Counted& other) const {
    const auto is_there = [&](const Group& group) {
      return std::ranges::any_of(other.plan().groups, [&](const Group& g) {
        return !g.key.empty() && g.key == group.key && g.executor == group.executor;
      });
    };
    for (std::size_t i = 0; i < plan().groups.size(); ++i)
      if (!cost().groups[i].price.measured && !is_there(plan().groups[i])) return false;
    return true;
  }

  std::unique_ptr<Planning> planning_;
};

/// What copies have to save of all bytes. Else a chain of a thousand barriers would be planned once for each.
constexpr std::int64_t kLeastSaving = 100;

/// Short reductions that may be written out. A CPU takes rows of a few elements for much longer than operations on
/// slices (1024 x 1024 distances in 32 dimensions 56 ms instead of 3.6). To a GPU, which reads neighbours best,
/// elements a few apart cost more: reading an array in that way must save half of all bytes.
constexpr Unroll kUnrollCpu{32, true}, kUnrollGpu{4, false};
constexpr std::int64_t kLeastRatio = 2;

/// Elements of rows whose extremes are taken beside what else is computed of them. Of computed values (y = softmax(x)
/// and its maximum) a CPU takes them a row at a time: 65536 rows of 64 elements take one core 13.7 ms instead of 3.1 by
/// a second kernel, of 512 26 instead of 17, of 1024 as long. But of 512, x.sum(-1) with x.max() takes 5.9 instead of
/// 11, and layer norm divided by its largest element 35 instead of 72.
constexpr std::int64_t kLeastSplitRowCpu = 512;

/// Kinds of seeds that are tried one after the other at most, each for one more plan.
constexpr std::size_t kMostTrials = 8;

/// Whether an executor took operations into a product, say.
bool takes_operations(const Executor* executor, const Plan& plan) {
  return std::ranges::any_of(plan.groups, [&](const Group& group) {
    return is_run_by(group, executor) && !is_loops(group.pattern) && group.nodes.size() > 1;
  });
}

/// What a planner plans: with names of its own for each stage, and of what is to run only work that has elements.
Graph prepared(Graph g, const PlanOptions& options) {
  make_stage_names_unique(g);
  return options.beyond_executors() ? g : without_empty_work(std::move(g));
}

/// Plans of one prepared graph, as the executors need it or as it could be.
class Planner {
 public:
  Planner(const Graph& g, const Device& device, const PlanOptions& options)
      : device_(device), options_(options), graph_(g) {}

  Counted plan(Scope scope) const {
    auto planning = planning_of(runnable_graph(simple_graph(scope), scope), scope);
    planning->merge();
    return Counted(std::move(planning));
  }

  /// Never more bytes or kernels than `unfused`.
  Counted fused(const Counted& unfused) const {
    Graph g = simple_graph(Scope::kEverything);
    const bool names_kernels = !options_.allow.empty() || !options_.forbid.empty();
    if (auto masked = names_kernels ? std::nullopt : with_masks_pushed(g)) g = simplify(std::move(*masked));
    Counted chosen = plan_in_cells(g, unfused);
    const auto consider = [&](std::optional<Graph> other, auto is_better) {
      if (!other) return;
      *other = simplify(std::move(*other));
      Counted made = plan_in_cells(*other, unfused);
      if (!made.exceeds(unfused) && is_better(made)) chosen = std::move(made), g = std::move(*other);
    };
    const auto saves_time = [&](const Counted& other) { return other.us() < chosen.us(); };
    const auto saves_both = [&](const Counted& other) { return saves_time(other) && other.bytes() < chosen.bytes(); };
    if (!names_kernels) {  // else the caller names the reductions and values that there are
      consider(with_reductions_joined(g), saves_both);
      consider(with_reductions_split(g, device_.is_cpu ? kLeastSplitRowCpu : 1), saves_both);
      consider(with_positions_widened(g), saves_time);
    }
    consider(unrolled(g, device_.is_cpu ? kUnrollCpu : kUnrollGpu),
             [&](const Counted& other) { return is_worth_unrolling(chosen, other); });
    if (!names_kernels) consider(with_products_cut(g), saves_time);
    if (!names_kernels && !device_.is_cpu) consider(with_pointwise_convolutions(g), saves_time);
    consider(with_gathers_pushed(g), saves_time);
    if (!names_kernels)
      consider(with_partial_sums(g, device_),
               [&](const Counted& other) { return saves_time(other) && has_kernels_for_partial_sums(other.plan()); });
    for (const Scope scope : {Scope::kCallsFirst, Scope::kWithinCalls})
      if (chosen.exceeds(unfused)) chosen = plan(scope);
    return chosen;
  }

 private:
  bool is_worth_unrolling(const Counted& chosen, const Counted& other) const {
    const bool saves = device_.is_cpu || kLeastRatio * other.bytes() <= chosen.bytes();
    return saves && !other.exceeds(chosen) && other.us() <= chosen.us();
  }

  /// Joins are pushed, and sliced values computed in slices, where that saves time: all of them, else those that are
  /// alike, one kind after the other.
  Counted plan_in_cells(const Graph& g, const Counted& unfused) const {
    Counted chosen = plan_with_copies(runnable_graph(g, Scope::kEverything));
    const std::vector<std::vector<NodeId>> kinds = cuttable(g);
    std::set<NodeId> taken;
    const auto take = [&](std::set<NodeId> seeds) {
      Counted other = plan_with_copies(runnable_graph(simplify(pushed(g, seeds)), Scope::kEverything));
      if (other.exceeds(unfused) || other.us() >= chosen.us()) return false;
      chosen = std::move(other);
      taken = std::move(seeds);
      return true;
    };
    std::set<NodeId> all;
    for (const auto& kind : kinds) all.insert(kind.begin(), kind.end());
    if (kinds.empty() || take(all)) return chosen;
    for (std::size_t i = 0; kinds.size() > 1 && i < std::min(kinds.size(), kMostTrials); ++i) {
      std::set<NodeId> more = taken;
      more.insert(kinds[i].begin(), kinds[i].end());
      take(std::move(more));
    }
    return chosen;
  }

  /// Copies of cheap values stay where bytes fall, and time does not rise: to a CPU, exponentials of a matrix cost more
  /// than storing them. A copy can make another one pay: of what the first one reads.
  Counted plan_with_copies(Graph g) const {
    auto planning = planning_of(std::move(g), Scope::kEverything);
    planning->merge();
    auto copied = planning->graph_with_copies();
    Counted best(std::move(planning));
    while (copied) {
      auto again = planning_of(std::move(copied->graph), Scope::kEverything);
      again->merge(copied->copies);
      copied = again->graph_with_copies();
      Counted other(std::move(again));
      const bool saves = best.bytes() - other.bytes() > best.bytes() / kLeastSaving;
      if (other.exceeds(best) || other.us() > best.us() || !saves) break;
      best = std::move(other);
    }
    return best;
  }

  std::unique_ptr<Planning> planning_of(Graph g, Scope scope) const {
    return std::make_unique<Planning>(std::move(g), device_, options_, scope);
  }

  Graph simple_graph(Scope scope) const { return simplify(graph_, scope == Scope::kEverything); }

  Graph runnable_graph(Graph simple, Scope scope) const {
    if (!options_.beyond_executors()) simple = with_own_results(std::move(simple));
    return with_parts(std::move(simple), scope == Scope::kEverything);
  }

  const Device& device_;
  const PlanOptions& options_;
  const Graph& graph_;
};

/// The fused plan of a prepared graph by the executors that are quickest.
///
/// Merging goes by bytes: an executor that takes operations with it may be slower than two that take none. So there are
/// plans without it, and without what it takes with those products for which that is slower.
class Fastest {
 public:
  Fastest(const Graph& g, const Device& device, const PlanOptions& options, const Counted& unfused)
      : g_(g),
        device_(device),
        options_(options),
        unfused_(unfused),
        chosen_(Planner(g, device, options).fused(unfused)) {}

  Counted run() {
    for (const Executor* e : Executors(options_.executors)) {
      if (!takes_operations(e, chosen_.plan())) continue;
      if (options_.allow.empty()) set_apart(e);  // else the caller says what may share a kernel, whatever it takes
      if (e == &anyone()) continue;
      PlanOptions without = options_;
      std::erase(without.executors, e);
      take_if_faster(Planner(g_, device_, without).fused(unfused_), true);
    }
    if (options_.allow.empty()) not_slower_than_unfused();
    return std::move(chosen_);
  }

 private:
  bool take_if_faster(Counted other, bool has_to_run) {
    if (has_to_run && !other.runs()) return false;
    if (!other.is_faster_than(chosen_)) return false;
    chosen_ = std::move(other);
    return true;
  }

  /// All products that an executor is slower for than kernels for each operation, else those of one shape, one shape
  /// after the other.
  void set_apart(const Executor* executor) {
    const std::map<std::string, std::set<std::string>> kinds =
        slow_products(chosen_.plan(), chosen_.cost(), executor, device_);
    std::set<std::string> all;
    for (const auto& [kind, stages] : kinds) all.insert(stages.begin(), stages.end());
    if (all.empty() || try_apart(executor, all) || kinds.size() == 1) return;
    std::set<std::string> taken;
    std::size_t trials = 0;
    for (const auto& [kind, stages] : kinds) {
      if (++trials > kMostTrials) return;
      std::set<std::string> more = taken;
      more.insert(stages.begin(), stages.end());
      if (try_apart(executor, more)) taken = std::move(more);
    }
  }

  bool try_apart(const Executor* executor, const std::set<std::string>& stages) {
    PlanOptions options = options_;
    options.apart[executor] = stages;
    Counted other = Planner(g_, device_, options).fused(unfused_);
    if (other.exceeds(unfused_) || !take_if_faster(std::move(other), false)) return false;
    options_ = std::move(options);
    return true;
  }

  void not_slower_than_unfused() {
    for (const Scope scope : {Scope::kCallsFirst, Scope::kWithinCalls}) {
      if (!unfused_.is_faster_than(chosen_)) return;
      take_if_faster(Planner(g_, device_, options_).plan(scope), false);
    }
  }

  const Graph& g_;
  const Device& device_;
  PlanOptions options_;
  const Counted& unfused_;
  Counted chosen_;
};

Counted fastest(const Graph& g, const Device& device, const PlanOptions& options, const Counted& unfused) {
  return Fastest(g, device, options, unfused).run();
}

/// Takes functions of the library in the place of kernels where that is predicted to be faster.
class FormChoice {
 public:
  FormChoice(const Graph& g, const Device& device, const PlanOptions& options, const Counted& unfused)
      : g_(g), device_(device), options_(options), unfused_(unfused), taken_(g.forms.size()) {}

  /// `kernels`: the plan without any.
  Counted run(Counted kernels) {
    costs_ = form_costs(g_, kernels.plan(), kernels.cost(), device_);
    for (std::size_t i = 0; i < costs_.size(); ++i) {
      g_.forms[i].call.library_ns = static_cast<std::int64_t>(costs_[i].library_us * 1e3);
      g_.forms[i].call.kernels_ns = static_cast<std::int64_t>(costs_[i].kernels_us * 1e3);
    }
    best_ = std::move(kernels);
    try_all([&](std::size_t i) { return costs_[i].alone; });
    for (const std::string& kind : kinds_of_others()) try_all([&](std::size_t i) { return kind_of(i) == kind; });
    return std::move(*best_);
  }

 private:
  static constexpr std::size_t kMostKinds = 6;  // each is one more plan
  static constexpr double kClearly = 0.98;

  /// Not where there is no product: such functions are bound by memory, and the kernels read and write no more. The
  /// library's may (torch's cross entropy on a CPU takes ten times as long), which nothing here knows.
  bool is_faster(std::size_t i) const {
    return costs_[i].has_product && costs_[i].library_us < kClearly * costs_[i].kernels_us;
  }

  /// Calls of one function with results of one shape.
  std::string kind_of(std::size_t i) const {
    const Extents& shape = g_[g_.forms[i].result].shape;
    return g_.forms[i].call.function + shape_text(shape);
  }

  /// Of those whose kernels compute other things too: what they save is known by planning only.
  std::set<std::string> kinds_of_others() const {
    std::set<std::string> kinds;
    for (std::size_t i = 0; i < taken_.size() && kinds.size() < kMostKinds; ++i)
      if (!taken_[i] && !costs_[i].alone && is_faster(i)) kinds.insert(kind_of(i));
    return kinds;
  }

  template <class Wanted>
  void try_all(Wanted wanted) {
    std::vector<bool> taken = taken_;
    for (std::size_t i = 0; i < taken.size(); ++i) taken[i] = taken[i] || (wanted(i) && is_faster(i));
    if (taken == taken_) return;
    const Graph g = prepared(with_library_calls(g_, taken), options_);
    Counted other = fastest(g, device_, options_, unfused_);
    const bool runs = options_.beyond_executors() || other.runs();
    if (!runs || other.exceeds(unfused_) || other.us() >= best_->us()) return;
    best_ = std::move(other);
    taken_ = std::move(taken);
  }

  Graph g_;
  const Device& device_;
  const PlanOptions& options_;
  const Counted& unfused_;
  std::vector<bool> taken_;
  std::vector<FormCost> costs_;
  std::optional<Counted> best_;
};

Counted unfused_plan(Graph g, const Device& device, const PlanOptions& options) {
  return Planner(prepared(std::move(g), options), device, options).plan(Scope::kWithinCalls);
}

bool has_forms(const Graph& g, const PlanOptions& options) {
  return !g.forms.empty() && options.allow.empty() && options.forbid.empty();
}

Counted fused_plan(const Graph& g, const Device& device, const PlanOptions& options, const Counted& unfused) {
  Counted chosen = fastest(prepared(g, options), device, options, unfused);
  return has_forms(g, options) ? FormChoice(g, device, options, unfused).run(std::move(chosen)) : std::move(chosen);
}

}  // namespace

bool PlanOptions::beyond_executors() const { return std::ranges::count(executors, &anyone()) > 0; }

PlanPair make_plans(const Graph& g, const Device& device, const PlanOptions& options) {
  Counted unfused = unfused_plan(g, device, options);
  std::optional<Plan> library;
  if (has_forms(g, options)) {
    library = unfused_plan(as_library_runs(g), device, options).take();
  }
  if (options.fuse) {
    Plan chosen = fused_plan(g, device, options, unfused).take_with_refusals();
    return {std::move(chosen), std::move(unfused).take_with_refusals(), std::move(library)};
  }
  Plan plan = std::move(unfused).take_with_refusals();
  return {plan, std::move(plan), std::move(library)};
}

std::vector<Plan> rival_plans(const Graph& g, const Device& device, const PlanOptions& options) {
  const Counted unfused = unfused_plan(g, device, options);
  const Graph whole = prepared(g, options);
  std::vector<Plan> plans;
  plans.push_back(Planner(whole, device, options).fused(unfused).take());
  for (const Executor* e : options.executors) {
    if (!takes_operations(e, plans[0])) continue;
    PlanOptions without = options;
    std::erase(without.executors, e);
    Counted other = Planner(whole, device, without).fused(unfused);
    if (other.runs()) plans.push_back(std::move(other).take());
  }
  return plans;
}

Plan make_plan(const Graph& g, const Device& device, const PlanOptions& options) {
  Counted unfused = unfused_plan(g, device, options);
  return options.fuse ? fused_plan(g, device, options, unfused).take() : std::move(unfused).take();
}

}  // namespace kfusion
