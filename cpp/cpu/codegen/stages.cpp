#include "cpu/codegen/stages.hpp"

#include <algorithm>
#include <map>

#include "cpu/codegen/ops.hpp"

namespace kfusion::cpu::ir {
namespace {

class StagesMaker {
 public:
  explicit StagesMaker(const Kernel& k) : kernel_(k), last_use_(k.steps.size(), -1), slot_(k.steps.size(), -1) {
    for (int s = 0; s < std::ssize(k.steps); ++s) stage_.push_back(stage_of(s));
    for (const Store& t : k.stores) last_ = std::max(last_, stage_of(t));
    for (int s = 0; s < std::ssize(k.steps); ++s) {
      last_ = std::max(last_, stage_[at(s)]);
      for (const int a : k.steps[at(s)].arguments) note_use(a, stage_[at(s)]);
    }
    for (const Store& t : k.stores) note_use(t.step, stage_of(t));
    give_slots();
  }

  Stages run() {
    for (int i = 0; i <= last_; ++i)
      if (Link made = make(i); !made.stores.empty()) result_.stages.push_back(std::move(made));
    return std::move(result_);
  }

 private:
  static constexpr int kEach = -1;  ///< each stage takes what it needs
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  const Step& step(int s) const { return kernel_.steps[at(s)]; }
  int ready(int s) const { return kernel_.separate.ready[at(s)]; }

  /// Even ones are of rows, odd ones of elements, whose reductions the next two can use.
  int stage_of(int s) const {
    if (is_source(step(s))) return kEach;
    if (step(s).kind == StepKind::kReduce) return 2 * ready(s) - 1;
    return 2 * ready(s) + (step(s).level == Level::kElement ? 1 : 0);
  }
  int stage_of(const Store& t) const {
    if (!t.to.per_row()) return 2 * ready(t.step) + 1;
    return step(t.step).kind == StepKind::kReduce ? stage_of(t.step) : 2 * ready(t.step);
  }
  bool is_left(int s, int by) const { return stage_[at(s)] != kEach && stage_[at(s)] < by; }
  void note_use(int s, int by) {
    if (is_left(s, by)) last_use_[at(s)] = std::max(last_use_[at(s)], by);
  }

  bool is_of_row(int s) const { return step(s).level == Level::kRow; }
  std::int64_t slot_bytes(int s) const {
    const std::int64_t elements = kernel_.rows() * (is_of_row(s) ? 1 : kernel_.cols());
    return (elements * static_cast<std::int64_t>(item_bytes(compute_dtype(step(s).dtype))) + 127) & -64;
  }
  /// A slot is free again behind the stage that reads it last.
  void give_slots() {
    std::multimap<std::int64_t, int> free;  // by bytes
    for (int i = 0; i <= last_; ++i) {
      for (int s = 0; s < std::ssize(slot_); ++s) {
        if (stage_[at(s)] != i || last_use_[at(s)] < 0) continue;
        const auto found = free.find(slot_bytes(s));
        slot_[at(s)] = found == free.end() ? static_cast<int>(result_.places.size()) : found->second;
        if (found != free.end()) {
          free.erase(found);
          continue;
        }
        result_.places.push_back(result_.bytes);
        result_.bytes += slot_bytes(s);
      }
      for (int s = 0; s < std::ssize(slot_); ++s)
        if (last_use_[at(s)] == i) free.emplace(slot_bytes(s), slot_[at(s)]);
    }
  }
  Operand slot(int s, const Kernel& k) const {
    Operand o{step(s).node, compute_dtype(step(s).dtype), Extents(k.kept.size(), 0), Extents(k.reduced.size(), 0)};
    std::int64_t stride = 1;
    const auto lay = [&](const Extents& extents, Extents& strides, std::size_t first, std::size_t last) {
      for (std::size_t axis = last; axis-- > first; stride *= extents[axis]) strides[axis] = stride;
    };
    const bool columns = kernel_.kind == Pattern::kColumns, of_row = is_of_row(s);
    if (k.reduced.empty()) {  // a map of all elements has all axes, of which rows lie along some
      const std::size_t kept = kernel_.kept.size(), first = columns && of_row ? k.kept.size() - kept : 0;
      lay(k.kept, o.kept, first, of_row ? first + kept : k.kept.size());
      return o;
    }
    if (!of_row && !columns) lay(k.reduced, o.reduced, 0, k.reduced.size());
    lay(k.kept, o.kept, 0, k.kept.size());
    if (!of_row && columns) lay(k.reduced, o.reduced, 0, k.reduced.size());
    return o;
  }

  bool reduces(int stage) const {
    for (int s = 0; s < std::ssize(stage_); ++s)
      if (stage_[at(s)] == stage && step(s).kind == StepKind::kReduce) return true;
    return std::ranges::any_of(kernel_.stores, [&](const Store& t) { return t.parts > 0 && stage_of(t) == stage; });
  }

  Link make(int stage) const {
    using enum Excerpt::Over;
    Excerpt excerpt(kernel_, stage % 2 == 0 ? kRows : reduces(stage) ? kSame : kElements);
    const auto need = [&](int s) {
      if (excerpt.has(s)) return;
      is_left(s, stage) ? excerpt.find(s, slot_[at(s)], slot(s, excerpt.kernel())) : excerpt.compute(s);
    };
    for (int s = 0; s < std::ssize(stage_); ++s) {
      if (stage_[at(s)] != stage) continue;
      for (const int a : step(s).arguments) need(a);
      need(s);
    }
    for (int s = 0; s < std::ssize(stage_); ++s)
      if (stage_[at(s)] == stage && slot_[at(s)] >= 0) excerpt.leave(s, slot_[at(s)], slot(s, excerpt.kernel()));
    for (int t = 0; t < std::ssize(kernel_.stores); ++t) {
      if (stage_of(kernel_.stores[at(t)]) != stage) continue;
      need(kernel_.stores[at(t)].step);
      excerpt.store(t);
    }
    return excerpt.finish();
  }

  const Kernel& kernel_;
  Stages result_;
  std::vector<int> stage_, last_use_, slot_;  ///< by step
  int last_ = 0;
};

}  // namespace

Stages stages_of(const Kernel& k) { return StagesMaker(k).run(); }

}  // namespace kfusion::cpu::ir
