#include "cpu/codegen/columns/column_plan.hpp"

#include <algorithm>

#include "cpu/codegen/columns/column_search.hpp"
#include "cpu/codegen/form/column_finds.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu::ir {
namespace {

bool is_made(const Step& s) { return s.kind == StepKind::kMap || s.kind == StepKind::kCast; }
/// A value for each column, which rows side by side need as often as they are.
bool waits(const Form& form, const Step& s) { return form.together > 1 && s.kind == StepKind::kLoad; }

}  // namespace

ColumnPlan::ColumnPlan(const Form& form) {
  RowPlan plan(form);
  sweeps = std::move(plan.sweeps);
  take_searches(form);
  if (form.in_tiles) kept = std::move(plan.kept);
  for (Sweep& s : sweeps)
    if (!form.in_tiles) s.keeps.clear();
  std::vector<bool> is_held(form.kernel.steps.size(), false);
  const auto hold = [&](int s) {
    const Step& step = form.kernel.step(s);
    if (form.varies(s) && !form.along(s) && (is_made(step) || waits(form, step)))
      is_held[static_cast<std::size_t>(s)] = true;
  };
  for (int s = 0; s < std::ssize(form.kernel.steps); ++s) {
    const Step& step = form.kernel.step(s);
    if (step.kind == StepKind::kReduce) reductions.push_back(s);
    if (step.kind == StepKind::kReduce)
      is_held[static_cast<std::size_t>(s)] =
          std::ranges::none_of(searches, [s](const Search& of) { return of.number == s; });
    if (step.kind == StepKind::kReduce || form.along(s)) std::ranges::for_each(step.arguments, hold);
  }
  for (const Sweep& s : sweeps) std::ranges::for_each(s.wanted, hold);
  for (int s = 0; s < std::ssize(is_held); ++s)
    if (is_held[static_cast<std::size_t>(s)]) held.push_back(s);
}

std::vector<int> ColumnPlan::held_after(const Form& form, int ready) const {
  std::vector<int> found;
  for (const int s : held)
    if (this->ready(form, s) == ready) found.push_back(s);
  return found;
}

int ColumnPlan::ready(const Form& form, int step) const {
  for (const Search& s : searches)
    if (s.reduction == step) step = s.number;
  return form.schedule().ready[static_cast<std::size_t>(step)];
}

/// The sweep after that of the extreme has nothing to find any more.
void ColumnPlan::take_searches(const Form& form) {
  searches = column_searches(form.kernel);
  const auto leave = [&](int reduction) {
    Sweep& s = sweeps[static_cast<std::size_t>(form.schedule().ready[static_cast<std::size_t>(reduction)] - 1)];
    const int argument = form.kernel.step(reduction).arguments[0];
    std::vector<RowReduction> others;
    for (const RowReduction& r : s.reductions)
      if (r.step() != reduction) others.push_back(r);
    s.reductions.swap(others);
    s.wanted.erase(std::ranges::find(s.wanted, argument));
  };
  for (const Search& s : searches) {
    leave(s.number), leave(s.reduction);
    sweeps[static_cast<std::size_t>(form.schedule().ready[static_cast<std::size_t>(s.number)] - 1)].wanted.push_back(
        s.x);
  }
}

ColumnScratch::ColumnScratch(const Form& form, const ColumnPlan& plan, std::int64_t columns, std::int64_t parts,
                             std::int64_t rows) {
  const std::int64_t tile = std::int64_t{form.lanes} * form.registers;
  array_bytes = round_up(columns + tile, tile) * kLaneBytes;
  first_part = std::ssize(plan.held) * array_bytes;
  part_bytes = std::ssize(plan.reductions) * array_bytes;
  const std::int64_t rows_of_tile = std::ssize(plan.kept) + form.transposed_operands();
  bytes = form.in_tiles ? rows_of_tile * rows * tile * kLaneBytes : first_part + parts * part_bytes;
}

}  // namespace kfusion::cpu::ir
