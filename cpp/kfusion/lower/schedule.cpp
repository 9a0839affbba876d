#include "kfusion/lower/schedule.hpp"

#include <algorithm>

#include "kfusion/lower/idioms.hpp"
#include "kfusion/plan/sweeps.hpp"

namespace kfusion {
namespace {

/// A kernel without rows has elements and constants only.
Level level_of(const Kernel& k, const Step& s) {
  const auto if_row = [&](bool row) { return row && k.kind != Pattern::kPointwise ? Level::kRow : Level::kElement; };
  switch (s.kind) {
    case StepKind::kConstant:
    case StepKind::kReduce:
      return Level::kRow;
    case StepKind::kLoad:
      return if_row(k.loads[at(s.index)].per_row());
    case StepKind::kIota:
      return if_row(k.iotas[at(s.index)].per_row());
    case StepKind::kTake:
      return if_row(k.tables[at(s.index)].from.per_row() && k.step(s.arguments[0]).level == Level::kRow);
    default:
      return if_row(std::ranges::all_of(s.arguments, [&](int a) { return k.step(a).level == Level::kRow; }));
  }
}

bool is_second(const Kernel& k, int step) {
  const int pair = k.step(step).pair;
  return pair >= 0 && k.pairs[at(pair)].second == step;
}

Schedule schedule_of(const Kernel& k, bool paired) {
  Schedule s;
  for (int i = 0; i < std::ssize(k.steps); ++i) {
    const Step& step = k.step(i);
    const bool reduces = step.kind == StepKind::kReduce;
    int arguments = 0;
    for (const int a : step.arguments) arguments = std::max(arguments, s.ready[at(a)]);
    const int first = paired && is_second(k, i) ? s.ready[at(k.pairs[at(step.pair)].first)] : -1;
    s.ready.push_back(ready_after(arguments, reduces, first));
    if (reduces) s.sweeps = std::max(s.sweeps, s.ready.back());
  }
  for (const Store& store : k.stores) {
    const bool once = k.kind != Pattern::kPointwise && store.to.per_row();
    s.stored.push_back(once ? -1 : s.ready[at(store.step)]);
    s.sweeps = std::max(s.sweeps, s.stored.back() + 1);
  }
  return s;
}

}  // namespace

void set_schedule(Kernel& k) {
  for (Step& s : k.steps) s.level = level_of(k, s);
  k.separate = schedule_of(k, false);
  k.paired = schedule_of(k, true);
  annotate(k);
}

std::vector<int> element_steps(const Kernel& k, int sweep) {
  std::vector<bool> wanted(k.steps.size(), false);
  for (std::size_t i = 0; i < k.stores.size(); ++i)
    if (k.paired.stored[i] == sweep) wanted[at(k.stores[i].step)] = true;
  std::vector<int> found;
  for (int i = static_cast<int>(k.steps.size()) - 1; i >= 0; --i) {
    const Step& step = k.step(i);
    const bool reduces = step.kind == StepKind::kReduce && k.paired.ready[at(i)] == sweep + 1;
    const bool computed = wanted[at(i)] && step.level == Level::kElement;
    if (computed) found.push_back(i);
    if (computed || (reduces && !is_second(k, i)))
      for (const int argument : step.arguments) wanted[at(argument)] = true;
  }
  std::ranges::reverse(found);
  return found;
}

std::vector<int> reductions(const Kernel& k, int sweep) {
  std::vector<int> found;
  for (int i = 0; i < std::ssize(k.steps); ++i)
    if (k.step(i).kind == StepKind::kReduce && k.paired.ready[at(i)] == sweep + 1 && !is_second(k, i))
      found.push_back(i);
  return found;
}

}  // namespace kfusion
