// What is computed when: the program of each sweep, as loops and steps, and sweeps that are taken chunk by chunk.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "cpu/fused/emitter.hpp"
#include "cpu/fused/expressions.hpp"
#include "cpu/fused/program.hpp"

namespace kfusion::cpu {
namespace {

void add_all(std::vector<int>& to, const std::vector<int>& list) {
  for (const int i : list)
    if (std::ranges::find(to, i) == to.end()) to.push_back(i);
}

}  // namespace

void FusedProgram::emit_programs() {
  Wanted once;
  std::vector<Wanted> in_sweep(at(kernel.separate.sweeps)), between(in_sweep.size() + 1);
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (!has_home(s) || is_empty_cast(step(s))) continue;
    const int source = source_of(s);
    if (is_row_map(s)) between[at(ready(s))][s].push_back({Action::Kind::kKeep});
    if (source < 0) continue;
    const bool scalar = sources[at(source)].layout.reach == Reach::kScalar;
    (scalar ? once : between[0])[s].push_back({Action::Kind::kKeep});
  }
  for (int t = 0; t < static_cast<int>(targets.size()); ++t) {
    const int s = targets[at(t)].step;
    (targets[at(t)].per_row ? between : in_sweep)[at(ready(s))][s].push_back({Action::Kind::kStore, t});
  }
  for (int r = 0; r < static_cast<int>(reductions.size()); ++r)
    in_sweep[at(reductions[at(r)].sweep)][step(reductions[at(r)].step).arguments[0]].push_back(
        {Action::Kind::kReduce, r});

  keep_values(in_sweep);
  scalars = program_of(once, -1);
  for (const Wanted& wanted : between) rows.push_back(program_of(wanted, -1));
  for (int sweep = 0; sweep < std::ssize(in_sweep); ++sweep) {
    in_this_sweep_ = in_sweep[at(sweep)], kept_by_loops_.clear();
    sweeps.push_back(program_of(in_this_sweep_, sweep));
  }
}

/// `sweep`: of elements, -1 for other values.
TileProgram FusedProgram::program_of(Wanted wanted, int sweep) {
  const std::vector<TileProgram> loops = take_loops(wanted, sweep);
  TileProgram program;
  program.wide = space.columns ? wide_ : is_wide(wanted);
  size_tiles(program);
  Emitter(*this, program, sweep).emit(wanted);
  if (loops.empty()) take_expression(program, wanted, sweep);
  program.staged = program.sources.size();
  for (const int r : program.reductions) {
    const std::int64_t lanes = kernels->vector_bytes / reductions[at(r)].scalar.lane_bytes;
    const bool folds =
        program.loop.folds || std::ranges::count(program.searches, reductions[at(r)].operand, &RowLoop::to);
    reductions[at(r)].lanes = folds ? 1 : static_cast<int>(std::min(lanes, program.per_register()));
  }
  for (const TileProgram& l : loops) {
    program.searches.push_back(l.loop);
    program.loops_store = program.loops_store || l.loop.target >= 0;
    program.keeps += l.keeps;
    add_all(program.sources, l.sources), add_all(program.homes, l.homes), add_all(program.reductions, l.reductions);
  }
  const auto strided = [](const auto& list, int k) { return list[at(k)].layout.reach != Reach::kDirect; };
  program.copies = std::ranges::any_of(program.sources, [&](int k) { return strided(sources, k); }) ||
                   std::ranges::any_of(program.targets, [&](int k) { return strided(targets, k); });
  program.takes_rows = program.takes_rows && !program.copies;
  if (!loops.empty() && !program.has_steps()) {
    std::vector<RowLoop*> all;
    for (RowLoop& l : program.searches) all.push_back(&l);
    fetch_unread(all, sweep);
  } else if (program.loop.run != nullptr && sweep >= 0) {
    fetch_unread({&program.loop}, sweep);
  }
  return program;
}

/// Whether a program that makes these values needs 8 bytes an element.
bool FusedProgram::is_wide(const Wanted& wanted) const {
  bool wide = false;
  walk_back(wanted, [&](int s) {
    const bool made = source_of(s) < 0 && (homes[at(s)].operand < 0 || wanted.contains(s));
    wide = wide || lane_bytes(step(s).dtype) == 8 || (made && lane_bytes(step(s).from) == 8);
    return !wide && made;
  });
  return wide;
}

void FusedProgram::size_tiles(TileProgram& program) const {
  const int per_register = kernels->vector_bytes / (program.wide ? 8 : 4);
  program.elements[static_cast<int>(Width::kShort)] = per_register;
  program.elements[static_cast<int>(Width::kFull)] = per_register * kernels->registers;
}

/// What a sweep makes as a loop for each result, where all of it is none: steps take a row at a time, and short rows
/// for much longer (the sum and the largest element of 65536 rows of 64 on one core 11 ms by steps, 0.6 by loops).
std::vector<TileProgram> FusedProgram::take_loops(Wanted& wanted, int sweep) {
  std::size_t count = 0;
  for (const auto& [s, actions] : wanted) count += actions.size();
  std::vector<TileProgram> loops;
  if (sweep < 0 || space.columns || count < 2 || kernel.kind == Pattern::kPointwise) return loops;
  const bool keeps = std::ranges::any_of(
      wanted, [](const auto& w) { return std::ranges::count(w.second, Action::Kind::kKeep, &Action::kind) > 0; });
  const auto take = [&](int s, const Action& a) {
    TileProgram alone = program_of({{s, {a}}}, sweep);
    // A loop over what this sweep is to keep would come too early, but one of an expression makes it again.
    if (alone.loop.run == nullptr || (keeps && alone.loop.arrays[0] < 0)) return false;
    if (a.kind == Action::Kind::kStore) alone.loop.target = a.index;
    if (a.kind == Action::Kind::kKeep) kept_by_loops_.push_back(s);
    loops.push_back(std::move(alone));
    return true;
  };
  for (const bool first : {true, false})  // what is kept, which the others read
    for (auto& [s, actions] : wanted)
      std::erase_if(actions, [&, step = s](const Action& a) {
        if ((a.kind == Action::Kind::kKeep) != first) return false;
        if (take(step, a)) return true;
        const std::vector<int> before = std::exchange(kept_by_loops_, {});
        const bool taken = !before.empty() && take(step, a);
        kept_by_loops_ = before;
        return taken;
      });
  std::erase_if(wanted, [](const auto& w) { return w.second.empty(); });
  // Stores to memory wait in the processor, and loads of other addresses that look alike with them: sums come first.
  std::ranges::stable_partition(
      loops, [this](const TileProgram& l) { return l.loop.target < 0 || targets[at(l.loop.target)].summed; });
  share_fetches(loops);
  return loops;
}

/// Of a sweep that makes one value, which is no loop of the grammar, or is to be added up.
void FusedProgram::take_expression(TileProgram& program, const Wanted& wanted, int sweep) {
  if (sweep < 0 || !space.grouped || wanted.size() != 1 || wanted.begin()->second.size() != 1) return;
  const auto& [s, actions] = *wanted.begin();
  const bool is_summed = actions[0].kind == Action::Kind::kStore && targets[at(actions[0].index)].summed;
  if (!program.searches.empty() || (program.loop.run != nullptr && !is_summed)) return;
  const ExpressionLoop found = expression_loop(*this, s, actions[0], in_this_sweep_);
  if (found.loop.run == nullptr) return;
  program.loop = found.loop;
  for (const int k : found.sources) {
    const TileFetch fetch = fetch_of(sources[at(k)], sweep, kernels->vector_bytes / lane_bytes(sources[at(k)].dtype));
    if (fetch.stride != 0 && program.loop.fetched < kFormFetches) program.loop.fetches[program.loop.fetched++] = fetch;
  }
}

/// Loops that make sums of parts of the rows add to them.
void FusedProgram::find_sums() {
  const auto mark = [this](RowLoop& l) { l.adds = l.target >= 0 && targets[at(l.target)].in_place; };
  for (TileProgram& p : sweeps) {
    mark(p.loop);
    for (RowLoop& l : p.searches) mark(l);
  }
}

bool FusedProgram::takes_rows() const {
  return space.columns && space.outer.back() >= kRowsAtOnce && sweeps.size() == 1 && sweeps[0].takes_rows;
}

void FusedProgram::find_phases() {
  if (space.columns) return;
  for (int sweep = 0; sweep < std::ssize(sweeps); ++sweep) {
    Phase phase{sweep, sweep};
    if (takes_pairs(sweep, phase)) {
      phase.last = ++sweep;
      phase.moments = moments_of(phase);
    } else {
      phase.pairs.clear();
    }
    phases.push_back(std::move(phase));
  }
}

/// Chunks can be taken two sweeps at a time where every reduction of the second belongs to one of the first, and the
/// second needs nothing else of the first.
bool FusedProgram::takes_pairs(int sweep, Phase& phase) const {
  if (sweep + 1 >= std::ssize(sweeps)) return false;
  const TileProgram& next = sweeps[at(sweep) + 1];
  if (next.reductions.empty() || next.stores()) return false;
  if (next.keeps > 0 && space.cols > kChunk) return false;  // of the row's own first reduction, not of a chunk's
  const auto reduction_of = [this](int s) {
    return static_cast<int>(std::ranges::find(reductions, s, &Reduction::step) - reductions.begin());
  };
  for (const int r : next.reductions) {
    const auto pair = std::ranges::find(kernel.pairs, reductions[at(r)].step, &Pair::second);
    if (pair == kernel.pairs.end()) return false;
    phase.pairs.push_back({pair->kind, reduction_of(pair->first), r});
  }
  return std::ranges::all_of(next.homes, [&](int s) {
    return ready(s) <= sweep ||
           std::ranges::any_of(phase.pairs, [&](const Phase::Pair& p) { return reductions[at(p.first)].step == s; });
  });
}

RowMoments FusedProgram::moments_of(const Phase& phase) const {
  const Phase::Pair& pair = phase.pairs[0];
  const TileProgram &first = sweeps[at(phase.first)], &last = sweeps[at(phase.last)];
  const bool only = phase.pairs.size() == 1 && first.reductions.size() == 1;  // that the sweeps make
  const bool of_mean = pair.kind == Pair::Kind::kCentred && step(reductions[at(pair.first)].step).op == Op::mean;
  return only && of_mean ? kernels->row_moments(first.loop, last.loop) : RowMoments{};
}

}  // namespace kfusion::cpu
