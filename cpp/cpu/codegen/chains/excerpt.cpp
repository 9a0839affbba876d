#include "cpu/codegen/chains/excerpt.hpp"

#include <utility>

#include "cpu/codegen/math/ops.hpp"
#include "kfusion/lower/schedule.hpp"

namespace kfusion::cpu::ir {
bool is_source(const Step& s) {
  return s.kind == StepKind::kConstant || s.kind == StepKind::kLoad || s.kind == StepKind::kIota;
}

Extents all_axes(const Kernel& k, const Extents& kept, const Extents& reduced) {
  const bool columns = k.kind == Pattern::kColumns;
  Extents all = columns ? reduced : kept;
  all.insert(all.end(), (columns ? kept : reduced).begin(), (columns ? kept : reduced).end());
  return all;
}

Excerpt::Excerpt(const Kernel& whole, Over over) : whole_(whole), over_(over), moved_(whole.steps.size(), -1) {
  Kernel& k = link_.kernel;
  k.name = whole.name, k.rough = whole.rough;
  k.kind = over == Over::kSame ? whole.kind : Pattern::kPointwise;
  k.kept = over == Over::kElements ? all_axes(whole, whole.kept, whole.reduced) : whole.kept;
  if (over == Over::kSame) k.reduced = whole.reduced;
}

Operand Excerpt::seen(Operand o) const {
  if (over_ == Over::kElements) o.kept = all_axes(whole_, o.kept, o.reduced);
  if (over_ != Over::kSame) o.reduced.clear();
  return o;
}

int Excerpt::add_load(Operand o, int array) {
  link_.kernel.loads.push_back(std::move(o)), link_.loads.push_back(array);
  return static_cast<int>(link_.kernel.loads.size()) - 1;
}

void Excerpt::compute(int step) {
  Kernel& k = link_.kernel;
  Step made = whole_.step(step);
  if (over_ != Over::kSame) made.pair = -1;
  for (int& a : made.arguments) a = moved_[at(a)];
  if (made.kind == StepKind::kLoad) {
    made.index = add_load(seen(whole_.loads[at(made.index)]), made.index);
  } else if (made.kind == StepKind::kIota) {
    k.iotas.push_back(seen(whole_.iotas[at(made.index)]));
    made.index = static_cast<int>(k.iotas.size()) - 1;
  } else if (made.kind == StepKind::kConstant) {
    k.constants.push_back(whole_.constants[at(made.index)]);
    made.index = static_cast<int>(k.constants.size()) - 1;
  } else if (made.kind == StepKind::kTake) {
    tables_.push_back(static_cast<int>(whole_.loads.size()) + made.index);
    k.tables.push_back(whole_.tables[at(made.index)]);
    k.tables.back().from = seen(k.tables.back().from);
    made.index = static_cast<int>(k.tables.size()) - 1;
  }
  moved_[at(step)] = static_cast<int>(k.steps.size());
  k.steps.push_back(std::move(made));
}

void Excerpt::find(int step, int buffer, Operand from) {
  Step made;
  made.dtype = made.from = compute_dtype(whole_.step(step).dtype);
  made.node = whole_.step(step).node;
  made.index = add_load(std::move(from), ~buffer);
  moved_[at(step)] = static_cast<int>(link_.kernel.steps.size());
  link_.kernel.steps.push_back(std::move(made));
}

void Excerpt::leave(int step, int buffer, Operand to) {
  link_.kernel.stores.push_back({moved_[at(step)], std::move(to)});
  link_.stores.push_back(~buffer);
}

void Excerpt::store(int t) {
  Store s = whole_.stores[at(t)];
  s.step = moved_[at(s.step)], s.to = seen(s.to);
  link_.kernel.stores.push_back(std::move(s));
  link_.stores.push_back(t);
}

void Excerpt::take_pairs() {
  link_.kernel.pairs = whole_.pairs;
  for (Pair& p : link_.kernel.pairs) p.first = moved_[at(p.first)], p.second = moved_[at(p.second)];
}

Link Excerpt::finish() {
  link_.loads.insert(link_.loads.end(), tables_.begin(), tables_.end());
  if (link_.kernel.pairs.empty())
    for (Step& s : link_.kernel.steps) s.pair = -1;
  set_schedule(link_.kernel);
  return std::move(link_);
}

}  // namespace kfusion::cpu::ir
