#include "cpu/fused/emitter.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cpu/fused/searches.hpp"

namespace kfusion::cpu {
namespace {

bool is_map(const Step& s, OpFact fact) { return s.kind == StepKind::kMap && info(s.op).has(fact); }

void note(std::vector<int>& list, int i) {
  if (std::ranges::find(list, i) == list.end()) list.push_back(i);
}

}  // namespace

Emitter::Emitter(FusedProgram& program, TileProgram& to, int sweep)
    : p_(program),
      to_(to),
      sweep_(sweep),
      uses_(program.kernel.steps.size()),
      slot_(program.kernel.steps.size(), -1),
      free_(program.slots),
      keeps_(program.kernel.steps.size()),
      acted_(program.kernel.steps.size()) {}

void Emitter::emit(const Wanted& all) {
  const Wanted wanted = without_searches(all);
  wanted_ = &wanted;
  for (const auto& [s, actions] : wanted)
    for (const Action& a : actions)
      if (a.kind == Action::Kind::kKeep) keeps_[at(s)] = true;
  count_uses();
  for (const auto& [s, actions] : wanted) {
    if (acted_[at(s)]) continue;
    bring(s);
    if (!acted_[at(s)]) act(s);
  }
  add([this](Width w) { return p_.kernels->done(w); });
  fetch_unread();
  place_fetches();
  to_.joined = to_.steps[static_cast<std::size_t>(Width::kFull)];
  const auto count = static_cast<int>(to_.joined.size());
  if (is_row_sweep()) to_.loop = p_.kernels->row_loop(to_.joined.data(), count, to_.fetches.data());
  to_.takes_rows = p_.kernels->join(to_.joined.data(), count, p_.space.columns);
}

/// Reductions that are loops of their own, beside what steps do. Where there are no steps the first one prefetches.
Wanted Emitter::without_searches(Wanted wanted) {
  if (sweep_ < 0 || p_.space.columns) return wanted;
  std::erase_if(wanted, [&](const auto& w) {
    const auto& [s, actions] = w;
    if (actions.size() != 1 || actions[0].kind != Action::Kind::kReduce) return false;
    Reduction& r = p_.reductions[at(actions[0].index)];
    const std::optional<SearchLoop> search = search_of(p_, r, wanted);
    if (!search) return false;
    to_.searches.push_back(search->loop);
    note(to_.reductions, actions[0].index);
    note(to_.homes, search->number);
    return true;
  });
  for (const Source& s : p_.sources)
    if (wanted.empty() && !to_.searches.empty() && s.operand == to_.searches[0].x)
      to_.searches[0].fetch = p_.fetch_of(s, sweep_, p_.kernels->vector_bytes / lane_bytes(s.dtype));
  return wanted;
}

/// Of rows that go by in groups. Threads share one row alone and store its tiles, but reduce it as any row.
bool Emitter::is_row_sweep() const {
  return sweep_ >= 0 && !p_.space.columns && (p_.space.grouped || to_.targets.empty());
}

bool Emitter::is_home(int s) const { return p_.homes[at(s)].operand >= 0 && !keeps_[at(s)]; }

bool Emitter::is_readable(int s) const {
  if (is_home(s) || slot(s) >= 0) return true;
  if (p_.source_of(s) < 0) return false;
  const Source& source = p_.sources[at(p_.source_of(s))];
  return source.layout.reach == Reach::kDirect && source.layout.item == (to_.wide ? 8 : 4);
}

void Emitter::count_uses() {
  p_.walk_back(*wanted_, [this](int s) {
    if (!is_made(s)) return false;
    for (const int a : step(s).arguments) ++uses(a);
    return true;
  });
}

void Emitter::save() {
  if (current_ < 0 || !is_made(current_) || uses(current_) == 0 || slot(current_) >= 0) return;
  slot_[at(current_)] = p_.take_slot(free_);
  add([this](Width w) { return p_.kernels->spill(w); }, {.operand = slot(current_)});
}

void Emitter::bring(int s) {
  tasks_.push_back({Task::Kind::kBring, s});
  while (!tasks_.empty()) {
    const Task task = std::move(tasks_.back());
    tasks_.pop_back();
    work(task);
  }
}

void Emitter::work(const Task& task) {
  const int s = task.step;
  switch (task.kind) {
    case Task::Kind::kBring:
      if (current_ == s) return;
      return is_made(s) && slot(s) < 0 ? make(s) : fetch(s);
    case Task::Kind::kMakeReadable:
      if (is_readable(s)) return;
      tasks_.push_back({Task::Kind::kKeepReadable, s});
      tasks_.push_back({Task::Kind::kBring, s});
      return;
    case Task::Kind::kKeepReadable:
      return keep_readable(s);
    case Task::Kind::kFinish:
      return finish(s, task.arguments);
  }
}

void Emitter::keep_readable(int s) {
  if (slot(s) < 0) save();
  if (slot(s) >= 0) return;
  slot_[at(s)] = p_.take_slot(free_);  // a load in another type than it is computed in
  add([this](Width w) { return p_.kernels->spill(w); }, {.operand = slot(s)});
}

/// From where it is.
void Emitter::fetch(int s) {
  save();
  const int bytes = lane_bytes(step(s).dtype);
  if (const TileStep place = is_home(s) || slot(s) >= 0 ? place_of(s) : TileStep{}; place.stride != 0)
    add([this](Width w) { return p_.kernels->reload(w); }, place);
  else if (is_home(s))
    add([this, bytes](Width w) { return p_.kernels->number(bytes, w); }, place);
  else
    add([this, &from = p_.sources[at(p_.source_of(s))]](Width w) { return p_.kernels->load(from.dtype, w, to_.wide); },
        place_of_source(p_.source_of(s)));
  current_ = s;
}

/// Its arguments, the first one last, and then itself.
void Emitter::make(int s) {
  std::vector<int> arguments = step(s).arguments;
  if (is_map(step(s), kCommutes) && is_readable(arguments[0]) &&
      (current_ == arguments[1] || !is_readable(arguments[1])))
    std::swap(arguments[0], arguments[1]);
  tasks_.push_back({Task::Kind::kFinish, s, arguments});
  tasks_.push_back({Task::Kind::kBring, arguments[0]});
  for (std::size_t k = arguments.size() - 1; k > 0; --k)  // the last of these is done first
    tasks_.push_back({Task::Kind::kMakeReadable, arguments[k]});
}

void Emitter::finish(int s, const std::vector<int>& arguments) {
  for (const int a : arguments) --uses(a);
  save();  // the argument, where it is wanted again
  if (step(s).kind == StepKind::kCast) {
    if (!is_rounded_by_store(s)) cast(s);
  } else if (step(s).kind == StepKind::kTake) {
    take(s);
  } else {
    TileStep operands = arguments.size() > 1 ? place_of(arguments[1]) : TileStep{};
    if (arguments.size() > 2) {
      const TileStep last = place_of(arguments[2]);
      operands.second = last.operand, operands.second_scale = last.scale, operands.second_stride = last.stride;
    }
    if (is_long(step(s).op)) long_steps_.push_back(static_cast<int>(to_.steps[0].size()));
    add([&](Width w) { return p_.kernels->map(step(s).op, held(step(s).from), w); }, operands);
  }
  for (const int a : arguments) release(a);
  current_ = s;
  act(s);
}

/// A float that is only stored as what it is cast to: the store rounds.
bool Emitter::is_rounded_by_store(int s) {
  const auto found = wanted_->find(s);
  return is_half(step(s).dtype) && held(step(s).from) == DType::kFloat32 && uses(s) == 0 && found != wanted_->end() &&
         std::ranges::all_of(found->second, [&](const Action& a) {
           return a.kind == Action::Kind::kStore && p_.targets[at(a.index)].dtype == step(s).dtype;
         });
}

void Emitter::cast(int s) {
  const DType to = step(s).dtype, from = held(step(s).from);
  const auto convert = [&](DType f, DType t) { add([&](Width w) { return p_.kernels->cast(f, t, w); }); };
  if (!is_half(to)) {
    if (from != held(to)) convert(from, held(to));
    return;
  }
  const bool rounds_once = is_float(from) || from == DType::kInt32;  // else by way of a type that holds it
  const DType by = rounds_once ? from : from == DType::kInt64 ? DType::kFloat64 : DType::kFloat32;
  if (by != from) convert(from, by);
  convert(by, to);
}

void Emitter::take(int s) {
  const int indices = p_.take_slot(free_), elements = p_.take_slot(free_);
  const int table = step(s).index;
  add([&](Width w) { return p_.kernels->take(p_.kernel.tables[at(table)].from.dtype, w, to_.wide); },
      {.operand = indices, .second = elements, .table = table});
  free_.insert(free_.end(), {indices, elements});
}

void Emitter::release(int s) {
  if (uses(s) > 0 || slot(s) < 0) return;
  free_.push_back(std::exchange(slot_[at(s)], -1));
}

void Emitter::act(int s) {
  acted_[at(s)] = true;
  const auto found = wanted_->find(s);
  if (found == wanted_->end()) return;
  // What is accumulated is read back, which waits for stores to memory before it.
  std::vector<Action> actions = found->second;
  const auto adds = [this](const Action& a) {
    return a.kind == Action::Kind::kStore && p_.targets[at(a.index)].in_place;
  };
  std::ranges::stable_partition(actions, [&](const Action& a) { return a.kind != Action::Kind::kStore || adds(a); });
  for (const Action& a : actions) {
    if (a.kind == Action::Kind::kStore) {
      const Target& target = p_.targets[at(a.index)];
      note(to_.targets, a.index);
      const auto put = target.in_place ? p_.kernels->add : p_.kernels->store;
      add([&](Width w) { return put(target.dtype, w, to_.wide); },
          {.operand = target.operand, .scale = is_element_of_tile(target.layout) ? target.layout.item : 0});
    } else if (a.kind == Action::Kind::kReduce) {
      const Reduction& r = p_.reductions[at(a.index)];
      note(to_.reductions, a.index);
      add(
          [&](Width w) {
            return p_.kernels->reduce(step(r.step).op, held(step(r.step).from), w, to_.wide, p_.space.columns,
                                      is_map(step(s), kNonNegative));
          },
          {.operand = r.operand, .scale = r.scale});
    } else {
      const Home& home = p_.homes[at(s)];
      ++to_.keeps;
      add([&](Width w) { return p_.kernels->spill(w); }, {.operand = home.operand, .scale = home.scale});
    }
  }
}

/// Whether the tile's element i is the operand's element i; else tiles are copied to a stage. In a program for the
/// values of rows, arrays of one element a row are.
bool Emitter::is_element_of_tile(const Layout& layout) const {
  return layout.reach == Reach::kDirect || (sweep_ < 0 && layout.reach == Reach::kOuter);
}

TileStep Emitter::place_of(int s) {
  if (is_home(s)) {
    const Home& home = p_.homes[at(s)];
    note(to_.homes, s);
    if (home.of_row && sweep_ >= 0) return {.operand = home.operand};
    return {.operand = home.operand, .scale = home.scale, .stride = home.stride};
  }
  if (slot(s) >= 0) return {.operand = slot(s), .stride = p_.kernels->vector_bytes};
  return place_of_source(p_.source_of(s));
}

TileStep Emitter::place_of_source(int index) {
  const Source& source = p_.sources[at(index)];
  const bool direct = source.layout.reach == Reach::kDirect;
  const bool seen = std::ranges::find(to_.sources, index) != to_.sources.end();
  note(to_.sources, index);
  TileStep place{.operand = source.operand,
                 .scale = is_element_of_tile(source.layout) ? source.layout.item : 0,
                 .stride = p_.kernels->vector_bytes};
  if (direct && !seen && sweep_ >= 0) note_fetch(source, to_.steps[0].size());
  return place;
}

void Emitter::note_fetch(const Source& source, std::size_t step) {
  const int elements = p_.kernels->vector_bytes / (to_.wide ? 8 : 4);
  const TileFetch fetch = p_.fetch_of(source, sweep_, elements);
  if (fetch.stride != 0) fetches_.push_back({static_cast<int>(step), fetch});
}

/// A sweep that works on kept values fetches its part of the next row too.
void Emitter::fetch_unread() {
  for (int k = 0; sweep_ >= 0 && k < static_cast<int>(p_.sources.size()); ++k) {
    const Source& s = p_.sources[at(k)];
    if (s.layout.reach != Reach::kDirect || s.to_next == 0 || to_.steps[0].size() < 2) continue;
    if (std::ranges::find(to_.sources, k) == to_.sources.end()) note_fetch(s, 0);
  }
}

/// Long steps prefetch between their registers, so that memory is busy while they compute; where there are none, the
/// steps that read do.
void Emitter::place_fetches() {
  for (std::size_t k = 0; k < fetches_.size() && !long_steps_.empty(); ++k)
    fetches_[k].first = long_steps_[k % long_steps_.size()];
  std::ranges::stable_sort(fetches_, {}, &std::pair<int, TileFetch>::first);
  for (const auto& [step, fetch] : fetches_) {
    for (auto& steps : to_.steps) {
      TileStep& s = steps[at(step)];
      if (s.fetches == 0) s.fetch = static_cast<std::int32_t>(to_.fetches.size());
      s.fetches = std::min(s.fetches + 1, kMaxFetches);
    }
    to_.fetches.push_back(fetch);
  }
}

template <class F>
void Emitter::add(F function_of_width, TileStep step) {
  for (const Width w : {Width::kFull, Width::kShort}) {
    step.run = function_of_width(w);
    if (step.run == nullptr) throw std::logic_error("kfusion: the CPU has no such step");
    to_.steps[static_cast<std::size_t>(w)].push_back(step);
  }
}

}  // namespace kfusion::cpu
