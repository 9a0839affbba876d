#include "cpu/codegen/rows/row_plan.hpp"

#include <algorithm>

#include "cpu/codegen/form/policy.hpp"
#include "cpu/codegen/form/row_finds.hpp"

namespace kfusion::cpu::ir {
namespace {

using Flags = std::vector<bool>;  ///< by step

/// What a sweep computes, without what only kept elements are made of.
Flags computed_by(const Form& form, const Sweep& sweep, const Flags& kept) {
  Flags computed(form.kernel.steps.size(), false);
  for (const int s : sweep.wanted) computed[at(s)] = true;
  for (std::size_t s = computed.size(); s-- > 0;) {
    computed[s] = computed[s] && form.varies(static_cast<int>(s));
    if (!computed[s] || kept[s]) continue;
    for (const int a : form.kernel.steps[s].arguments) computed[at(a)] = true;
  }
  return computed;
}

bool is_long(const Step& s) { return s.kind == StepKind::kMap && info(s.op).cost > OpCost::kDivision; }

/// Elements that take a long function to make again.
Flags long_values(const Form& form) {
  Flags found;
  for (std::size_t s = 0; s < form.kernel.steps.size(); ++s) {
    const Step& step = form.kernel.steps[s];
    const auto of_long = [&found](int a) { return bool(found[at(a)]); };
    found.push_back(form.is_vector(static_cast<int>(s)) &&
                    (is_long(step) || std::ranges::any_of(step.arguments, of_long)));
  }
  return found;
}

/// Whether a sweep takes `s` for what `there` does not compute.
bool is_last(const Form& form, int s, const Sweep& sweep, const Flags& here, const Flags& there) {
  if (std::ranges::find(sweep.wanted, s) != sweep.wanted.end()) return true;
  for (std::size_t user = 0; user < here.size(); ++user) {
    const std::vector<int>& of = form.kernel.steps[user].arguments;
    if (here[user] && !there[user] && std::ranges::find(of, s) != of.end()) return true;
  }
  return false;
}

std::vector<Sweep> sweeps_of(const Form& form) {
  const Kernel& k = form.kernel;
  const Schedule& schedule = form.schedule();
  std::vector<Sweep> sweeps(at(schedule.sweeps));
  for (int s = 0; s < std::ssize(k.steps); ++s) {
    if (k.step(s).kind != StepKind::kReduce) continue;
    Sweep& in = sweeps[at(schedule.ready[at(s)] - 1)];
    if (search_of_chunk(form, s)) {
      in.searches.emplace_back(form, s);
      continue;
    }
    if (pick_of_one(form, s)) {
      in.picks.emplace_back(form, s);
      continue;
    }
    const int pair = form.has_moments ? k.step(s).pair : -1;
    if (pair >= 0 && k.pairs[at(pair)].second == s) continue;
    if (pair >= 0 && k.pairs[at(pair)].first == s)
      in.moments.emplace_back(form, k.pairs[at(pair)]);
    else
      in.reductions.emplace_back(form, s);
    in.wanted.push_back(k.step(s).arguments[0]);
  }
  for (int t = 0; t < std::ssize(k.stores); ++t) {
    const int sweep = schedule.stored[at(t)];
    if (sweep < 0) continue;
    sweeps[at(sweep)].stores.push_back(t);
    sweeps[at(sweep)].wanted.push_back(k.stores[at(t)].step);
  }
  return sweeps;
}

/// Takes them out of `sweeps`, which want only what they have themselves then.
std::vector<Sweep> seconds_of(const Form& form, std::vector<Sweep>& sweeps) {
  std::vector<Sweep> seconds(sweeps.size());
  if (!form.takes_pairs()) return seconds;
  const Kernel& k = form.kernel;
  for (std::size_t i = 0; i < sweeps.size(); ++i) {
    std::vector<RowReduction> all;
    all.swap(sweeps[i].reductions);
    sweeps[i].wanted.clear();
    for (RowReduction& r : all) {
      const bool is_second = std::ranges::find(k.pairs, r.step(), &Pair::second) != k.pairs.end();
      Sweep& to = is_second ? seconds[i] : sweeps[i];
      to.wanted.push_back(r.argument());
      to.reductions.push_back(r);
    }
    for (const int t : sweeps[i].stores) sweeps[i].wanted.push_back(k.stores[at(t)].step);
  }
  return seconds;
}

/// What pieces keep has to lie as the row does, and in the cache.
bool can_keep(const Form& form) {
  return !form.in_pieces || (form.run_axes() == 0 && form.kernel.cols() <= kLongestRow);
}

}  // namespace

RowPlan::RowPlan(const Form& form) : sweeps(sweeps_of(form)), seconds(seconds_of(form, sweeps)) {
  if (can_keep(form)) choose_kept(form);
  choose_fetching(form);
}

/// The last values that a sweep shares with an earlier one, where they are made of long functions.
void RowPlan::choose_kept(const Form& form) {
  const Flags none(form.kernel.steps.size(), false), long_ones = long_values(form);
  Flags is_kept = none;
  for (std::size_t later = 1; later < sweeps.size(); ++later) {
    const Flags here = computed_by(form, sweeps[later], is_kept);
    for (std::size_t earlier = 0; earlier < later; ++earlier) {
      const Flags there = computed_by(form, sweeps[earlier], none);
      for (int s = 0; s < std::ssize(here); ++s) {
        const bool shared = here[at(s)] && there[at(s)] && long_ones[at(s)] && !is_kept[at(s)];
        if (!shared || form.kernel.step(s).dtype == DType::kBool) continue;
        if (!is_last(form, s, sweeps[later], here, there)) continue;
        is_kept[at(s)] = true;
        sweeps[earlier].keeps.push_back(s);
        kept.push_back(s);
      }
    }
  }
}

/// A sweep of long functions behind the one that reads the row: memory would be idle meanwhile. Without one, all: what
/// reads and what stores take turns, and memory does both at an even rate. Where pages are fetched in turn, the first
/// sweep and the one of long functions, or the only two, share the next row: softmax of 4096 columns 1.45 to 1.35
/// copies, layernorm of 16384 1.40 to 1.29.
void RowPlan::choose_fetching(const Form& form) {
  Flags is_kept(form.kernel.steps.size(), false);
  const auto share_with_first = [&](Sweep& other) {
    if (form.pages_in_turn && !form.in_pieces) sweeps[0].fetches = other.fetches, sweeps[0].share = 0, other.share = 1;
  };
  for (std::size_t i = 0; i < sweeps.size() && !form.in_pieces; ++i) {
    const Flags computed = computed_by(form, sweeps[i], is_kept);
    for (std::size_t s = 0; s < computed.size(); ++s)
      if (i > 0 && computed[s] && !is_kept[s] && is_long(form.kernel.steps[s])) sweeps[i].fetches = Fetch::kFar;
    if (sweeps[i].fetches) return share_with_first(sweeps[i]);
    for (const int s : sweeps[i].keeps) is_kept[at(s)] = true;
  }
  for (Sweep& s : sweeps) s.fetches = form.fetches_near ? Fetch::kNear : Fetch::kFar;
  if (sweeps.size() == 2) share_with_first(sweeps[1]);
}

}  // namespace kfusion::cpu::ir
