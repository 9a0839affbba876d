#include "kfusion/plan/search/fastest.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/prices/price.hpp"
#include "kfusion/plan/search/library_alternatives.hpp"
#include "kfusion/plan/search/slow_products.hpp"

namespace kfusion {
namespace {

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
    if (!options_.by_time) return std::move(chosen_);
    for (const Executor* e : Executors(options_.executors)) {
      if (!takes_operations(e, chosen_.plan())) continue;
      if (options_.allow.empty()) set_apart(e);  // else the caller says what may share a kernel, whatever it takes
      if (e == &anyone()) continue;
      PlanOptions without = options_;
      std::erase(without.executors, e);
      take_if_faster(Planner(g_, device_, without).fused(unfused_), true);
    }
    if (options_.allow.empty()) let_products_wait();
    if (options_.allow.empty()) store_what_is_computed_again();
    if (options_.allow.empty()) not_slower_than_unfused();
    return std::move(chosen_);
  }

 private:
  static constexpr std::size_t kMostOfTrials = 256;  ///< nodes of graphs that are planned again for one value

  bool take_if_faster(Counted other, bool has_to_run) {
    if (has_to_run && !other.runs()) return false;
    if (!other.is_faster_than(chosen_)) return false;
    chosen_ = std::move(other);
    return true;
  }

  /// Products that an executor is slower for than kernels for each operation: all of them but for kinds that are
  /// slower because of the others (what one stores beside its result, another one reads); else one kind after the
  /// other.
  void set_apart(const Executor* executor) {
    constexpr std::size_t kMostReturns = 2;  // each is one more plan of everything
    const std::vector<SlowProducts> kinds = slow_products(chosen_.plan(), chosen_.cost(), executor, device_);
    std::set<std::string> taken;
    for (const SlowProducts& kind : kinds) taken.insert(kind.names.begin(), kind.names.end());
    if (taken.empty()) return;
    const bool all = try_apart(executor, taken);
    if (kinds.size() == 1) return;
    if (!all) taken.clear();
    for (std::size_t i = 0; i < std::min(kinds.size(), all ? kMostReturns : kMostTrials); ++i) {
      const SlowProducts& kind = kinds[all ? kinds.size() - 1 - i : i];
      std::set<std::string> other = taken;
      if (all)
        std::erase_if(other, [&](const std::string& name) { return kind.names.contains(name); });
      else
        other.insert(kind.names.begin(), kind.names.end());
      if (try_apart(executor, other)) taken = std::move(other);
    }
  }

  bool try_apart(const Executor* executor, const std::set<std::string>& names) {
    PlanOptions options = options_;
    options.apart[executor] = names;
    Counted other = Planner(g_, device_, options).fused(unfused_);
    if (other.exceeds(unfused_) || !take_if_faster(std::move(other), false)) return false;
    options_ = std::move(options);
    return true;
  }

  /// For one another, as many in a kernel as hold no more memory: what they read stays until the last one runs.
  void let_products_wait() {
    if (device_.is_cpu || kernels_of_results(chosen_.plan()) < 2) return;
    for (const int most : {4, 3, 2}) {
      PlanOptions options = options_;
      options.most_waiting = most;
      Counted other = Planner(g_, device_, options).fused(unfused_);
      if (other.plan().groups.size() == chosen_.plan().groups.size()) return;  // nothing runs several at once
      const bool holds_more = other.cost().peak_intermediate_bytes > chosen_.cost().peak_intermediate_bytes;
      if (!holds_more && !other.exceeds(unfused_) && take_if_faster(std::move(other), false)) return;
    }
  }

  /// Kernels with a product that store nothing but results of the function.
  static std::ptrdiff_t kernels_of_results(const Plan& plan) {
    const Graph& g = plan.graph;
    const auto is_result = [&](NodeId n) { return std::ranges::find(g.outputs, n, &Output::node) != g.outputs.end(); };
    return std::ranges::count_if(plan.groups, [&](const Group& group) {
      return std::ranges::any_of(group.nodes, [&](NodeId n) { return g[n].op == Op::matmul; }) &&
             std::ranges::all_of(group.stores, is_result);
    });
  }

  /// Values that kernels compute again since each merge saved time, where all of them together do not: all are stored,
  /// else one after the other.
  void store_what_is_computed_again() {
    if (chosen_.plan().graph.nodes.size() > kMostOfTrials) return;
    const std::vector<std::string> values = values_computed_again(chosen_.plan(), device_);
    if (values.empty() || try_stored({values.begin(), values.end()})) return;
    for (std::size_t i = 0; values.size() > 1 && i < std::min(values.size(), kMostTrials); ++i) try_stored({values[i]});
  }

  bool try_stored(std::set<std::string> values) {
    PlanOptions options = options_;
    options.stored.merge(values);
    Counted other = Planner(g_, device_, options).fused(unfused_);
    if (other.exceeds(unfused_) || !take_if_faster(std::move(other), !options_.beyond_executors())) return false;
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
class AlternativeChoice {
 public:
  AlternativeChoice(const Graph& g, const Device& device, const PlanOptions& options, const Counted& unfused)
      : g_(g), device_(device), options_(options), unfused_(unfused), taken_(g.alternatives.size()) {}

  /// `kernels`: the plan without any. A call may leave a value that others share (a mask) to their kernels: prices
  /// change with what is taken.
  Counted run(Counted kernels) {
    best_ = std::move(kernels);
    for (int round = 0; round < kMostRounds && take_faster(); ++round) continue;
    return std::move(*best_);
  }

 private:
  static constexpr int kMostRounds = 4;
  static constexpr std::size_t kMostKinds = 6;  // a round's; each is one or two more plans
  static constexpr double kClearly = 0.02;      // the share of a time that prices cannot tell apart

  /// Whether any is taken, by prices of the best plan so far: those of kernels of their own; then those of one kind
  /// that are faster; then all of one kind where they are together, since its kernels may share values.
  bool take_faster() {
    const std::vector<bool> before = taken_;
    costs_ = alternative_costs(g_, best_->plan(), best_->cost(), device_);
    const std::vector<std::pair<std::string, AlternativeCost>> kinds = promising_kinds();
    try_all([&](std::size_t i) { return costs_[i].alone && is_faster(costs_[i]); });
    for (const auto& [kind, each] : kinds) {
      try_all([&](std::size_t i) { return is_faster(costs_[i]) && kind_of(i) == kind; });
      if (is_faster(each)) try_all([&](std::size_t i) { return kind_of(i) == kind; }, &each);
    }
    return taken_ != before;
  }

  /// Not where there is no product: such functions are bound by memory, and the kernels read and write no more. The
  /// library's may (torch's cross entropy on a CPU takes ten times as long), which nothing here knows.
  bool is_faster(const AlternativeCost& c) const {
    return c.products > 0 && c.library_us + (c.products == 1 ? clearly_us(c) : 0) < c.kernels_us;
  }

  /// What a call of one product has to save: its price leaves out the bias, which the kernel's has.
  double clearly_us(const AlternativeCost& c) const {
    return std::min(kIndistinctLaunch * device_.launch_us, kClearly * c.kernels_us);
  }

  /// Calls of one function with results of one shape.
  std::string kind_of(std::size_t i) const {
    const Extents& shape = g_[g_.alternatives[i].result].shape;
    return g_.alternatives[i].call.function + shape_text(shape);
  }

  /// Kinds of which planning may find more that are faster, and what one of each costs on average: a kernel that all
  /// share counts for each in part. Those first that may save most.
  std::vector<std::pair<std::string, AlternativeCost>> promising_kinds() const {
    std::map<std::string, std::vector<AlternativeCost>> untaken;
    for (std::size_t i = 0; i < taken_.size(); ++i)
      if (!taken_[i]) untaken[kind_of(i)].push_back(costs_[i]);
    std::vector<std::pair<std::string, AlternativeCost>> found;
    std::map<std::string, double> saved;
    for (const auto& [kind, costs] : untaken) {
      AlternativeCost each = costs[0];
      each.library_us = each.kernels_us = 0;
      for (const AlternativeCost& c : costs) {
        each.library_us += c.library_us / static_cast<double>(costs.size());
        each.kernels_us += c.kernels_us / static_cast<double>(costs.size());
        saved[kind] += std::max(c.kernels_us - c.library_us, 0.0);
      }
      const bool any = std::ranges::any_of(costs, [&](const AlternativeCost& c) { return !c.alone && is_faster(c); });
      if (any || is_faster(each)) found.emplace_back(kind, each);
    }
    std::ranges::stable_sort(found, std::ranges::greater{}, [&](const auto& f) { return saved.at(f.first); });
    found.resize(std::min(found.size(), kMostKinds));
    return found;
  }

  /// `each`: what each is said to cost, where they were priced together.
  template <class Wanted>
  void try_all(Wanted wanted, const AlternativeCost* each = nullptr) {
    std::vector<bool> taken = taken_;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (taken[i] || !wanted(i)) continue;
      taken[i] = true;
      const AlternativeCost& cost = each == nullptr ? costs_[i] : *each;
      g_.alternatives[i].call.library_ns = static_cast<std::int64_t>(cost.library_us * 1e3);
      g_.alternatives[i].call.kernels_ns = static_cast<std::int64_t>(cost.kernels_us * 1e3);
    }
    if (!tried_.insert(taken).second) return;
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
  std::set<std::vector<bool>> tried_ = {taken_};
  std::vector<AlternativeCost> costs_;
  std::optional<Counted> best_;
};

}  // namespace

bool takes_operations(const Executor* executor, const Plan& plan) {
  return std::ranges::any_of(plan.groups, [&](const Group& group) {
    return is_run_by(group, executor) && !is_loops(group.pattern) && group.nodes.size() > 1;
  });
}

Counted unfused_plan(Graph g, const Device& device, const PlanOptions& options) {
  return Planner(prepared(std::move(g), options), device, options).plan(Scope::kWithinCalls);
}

bool has_alternatives(const Graph& g, const PlanOptions& options) {
  return !g.alternatives.empty() && !options.names_kernels();
}

Counted fused_plan(const Graph& g, const Device& device, const PlanOptions& options, const Counted& unfused) {
  Counted chosen = fastest(prepared(g, options), device, options, unfused);
  return has_alternatives(g, options) ? AlternativeChoice(g, device, options, unfused).run(std::move(chosen))
                                      : std::move(chosen);
}

}  // namespace kfusion
