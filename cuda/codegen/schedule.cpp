#include "codegen/schedule.hpp"

#include <algorithm>

namespace kfusion::codegen {
namespace {

class Scheduler {
 public:
  Scheduler(const Kernel& k, const Arrangement& a) : k_(k), a_(a) {
    s_.pair.assign(k.steps.size(), -1);
    for (std::size_t i = 0; i < k.pairs.size(); ++i)
      for (const int step : {k.pairs[i].first, k.pairs[i].second}) s_.pair[at(step)] = static_cast<int>(i);
  }

  Schedule run() {
    for (const Step& step : k_.steps) {
      s_.per_row.push_back(per_row(step));
      s_.time.push_back(time_of(step));
    }
    for (const Store& store : k_.stores) {
      const bool once = a_.per_row(store.to);
      s_.store_time.push_back(once ? -1 : std::max(element_time(store.step), 0));
    }
    for (std::size_t i = 0; i < k_.steps.size(); ++i)
      if (k_.steps[i].kind == StepKind::kReduce) s_.sweeps = std::max(s_.sweeps, s_.time[i] + 1);
    for (const int t : s_.store_time) s_.sweeps = std::max(s_.sweeps, t + 1);
    return std::move(s_);
  }

 private:
  bool per_row(const Step& step) const {
    switch (step.kind) {
      case StepKind::kConstant:
      case StepKind::kReduce:
        return true;
      case StepKind::kLoad:
        return a_.per_row(k_.loads[at(step.index)]);
      case StepKind::kIota:
        return a_.per_row(k_.iotas[at(step.index)]);
      default:
        return a_.form != Form::kPointwise &&
               std::ranges::all_of(step.arguments, [&](int i) { return s_.per_row[at(i)]; });
    }
  }

  /// The first sweep in which elements can use `step`.
  int element_time(int step) const { return s_.time[at(step)] + (s_.per_row[at(step)] ? 1 : 0); }

  int time_of(const Step& step) const {
    const auto index = s_.time.size();
    const bool own_row = s_.per_row[index] && step.kind != StepKind::kReduce;
    int time = own_row ? -1 : 0;
    for (const int i : step.arguments) time = std::max(time, own_row ? s_.time[at(i)] : element_time(i));
    const int pair = s_.pair[index];
    return pair >= 0 && k_.pairs[at(pair)].second == static_cast<int>(index) ? s_.time[at(k_.pairs[at(pair)].first)]
                                                                             : time;
  }

  const Kernel& k_;
  const Arrangement& a_;
  Schedule s_;
};

}  // namespace

Schedule schedule(const Kernel& k, const Arrangement& a) { return Scheduler(k, a).run(); }

std::vector<int> steps_of(const Kernel& k, const Schedule& s, int sweep) {
  std::vector<bool> wanted(k.steps.size(), false);
  for (std::size_t i = 0; i < k.stores.size(); ++i)
    if (s.store_time[i] == sweep) wanted[at(k.stores[i].step)] = true;
  std::vector<int> found;
  for (int i = static_cast<int>(k.steps.size()) - 1; i >= 0; --i) {
    const Step& step = k.steps[at(i)];
    const bool reduces = step.kind == StepKind::kReduce && s.time[at(i)] == sweep;
    const bool second = s.pair[at(i)] >= 0 && k.pairs[at(s.pair[at(i)])].second == i;
    const bool computed = wanted[at(i)] && !s.per_row[at(i)];
    if (computed) found.push_back(i);
    if (computed || (reduces && !second))
      for (const int argument : step.arguments) wanted[at(argument)] = true;
  }
  std::ranges::reverse(found);
  return found;
}

}  // namespace kfusion::codegen
