#include "cpu/fused/program.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "cpu/fused/emitter.hpp"
#include "cpu/fused/expressions.hpp"
#include "cpu/fused/row_copies.hpp"
#include "cpu/fused/searches.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kAheadBytes = 2048;          // in a pass through memory: about its latency
constexpr std::int64_t kFetchedBytes = 3 << 20;     // fewer stay in the cache, where prefetches only take time
constexpr std::int64_t kNextRowBytes = 256 * 1024;  // a row that the second-level cache holds beside its successor
constexpr std::int64_t kGroupBytes =
    8 * 1024;                              // of a group of rows, whose successor the first-level cache holds beside it
constexpr std::int64_t kBlock = 4096;      // elements of a block of columns
constexpr std::int64_t kWideBlock = 4096;  // of one whose rows are taken several at once
constexpr std::int64_t kLeastBlock = 256;  // of one that is swept again
constexpr std::int64_t kBlockBytes = 512 * 1024;  // of a block that is swept again

bool all_zero(const Extents& strides) {
  return std::ranges::all_of(strides, [](std::int64_t s) { return s == 0; });
}

/// Half types are computed as float32: a cast from one to the other does nothing.
bool is_empty_cast(const Step& s) { return s.kind == StepKind::kCast && !is_half(s.dtype) && held(s.from) == s.dtype; }

/// Nobody takes the value of an empty cast.
Kernel without_empty_casts(const Kernel& k) {
  Kernel without = k;
  const auto skip = [&without](int& s) {
    const Step& step = without.steps[static_cast<std::size_t>(s)];
    if (is_empty_cast(step)) s = step.arguments[0];
  };
  for (Step& step : without.steps)
    for (int& argument : step.arguments) skip(argument);  // arguments come first: theirs are skipped already
  for (Store& store : without.stores) skip(store.step);
  return without;
}

void add_all(std::vector<int>& to, const std::vector<int>& list) {
  for (const int i : list)
    if (std::ranges::find(to, i) == to.end()) to.push_back(i);
}

bool is_one_element(Reach r) { return r == Reach::kScalar || r == Reach::kOuter; }

}  // namespace

FusedProgram::FusedProgram(const Kernel& k, bool wide_blocks, std::int64_t rows_together)
    : kernel(without_empty_casts(k)),
      space(k),
      together(rows_together),
      kernels(&tile_kernels()),
      wide_blocks_(wide_blocks) {
  choose_group();
  add_sources(kernel.loads, false);
  add_sources(kernel.iotas, true);
  add_tables();
  if (kernel.kind == Pattern::kPointwise) find_row_values();
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s)
    if (takes_rows_of(s)) add_row_source(s);
  add_targets();
  if (space.columns) choose_block();
  homes_begin = scratch_bytes;
  give_homes();
  homes_end = scratch_bytes;
  give_accumulators();
  count_bytes();
  emit_programs();
  give_row_steps();
  find_sums();
  weigh();
  find_phases();
  find_ahead();
  may_stream = std::ranges::none_of(targets, &Target::copied);
  search = column_search_of(*this);
  copy = row_copy_of(*this);
}

int FusedProgram::add_operand(std::int64_t place) {
  places.push_back(place);
  return operands++;
}

std::int64_t FusedProgram::add_scratch(std::int64_t size) {
  const std::int64_t place = scratch_bytes;
  scratch_bytes += (size + 63) / 64 * 64;
  return place;
}

/// What is computed once a row is computed for all rows of a group at once. Rows of several chunks are a group each.
void FusedProgram::choose_group() {
  if (!copies_rows()) return;
  bool has[9] = {};  // by bytes of a lane
  int widest = 4;
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    const int lane = lane_bytes(step(s).dtype), from = lane_bytes(step(s).from);
    if (varies_along_row(s)) widest = std::max(widest, lane);
    if (step(s).level == Level::kRow || source_of(s) >= 0) has[lane] = true;
    if (step(s).kind == StepKind::kCast && step(s).level == Level::kRow) has[from] = true;
  }
  // Lanes of both sizes lie side by side in one register only.
  const std::int64_t most = has[4] && has[8] ? kernels->vector_bytes / 8 : tile_bytes() / (has[8] ? 8 : 4);
  group = std::clamp(kGroupBytes / (space.cols * widest), std::int64_t{1}, std::min(most, space.outer.back()));
}

/// Whether a row has several of it.
bool FusedProgram::varies_along_row(int s) const {
  if (step(s).kind != StepKind::kLoad) return step(s).level == Level::kElement;
  return !all_zero(space.layout(kernel.loads[at(step(s).index)], 1).flat);
}

/// Elements of rows whose operands are made dense before the row's sweeps: an element for each of its channels, say.
/// Tile by tile that takes as long as all else.
constexpr std::int64_t kLongestCopiedRow = 65536;

bool FusedProgram::copies_rows() const { return space.grouped && space.cols <= kChunk; }

/// Room for the dense rows of a group, off a power of two: rows fall into other sets.
void FusedProgram::copy_rows(const Layout& layout, std::int64_t count, std::int64_t& place, std::int64_t& pitch) {
  pitch = (space.cols * layout.item + tile_bytes() + 63) / 64 * 64 + 64;
  place = add_scratch(count * pitch);
}

void FusedProgram::add_sources(const std::vector<Operand>& from, bool iota) {
  for (const Operand& o : from) {
    Source s;
    s.array = static_cast<int>(sources.size());
    s.dtype = iota ? held(o.dtype) : o.dtype;
    s.iota = iota;
    s.layout = space.layout(o, iota ? 1 : static_cast<int>(item_bytes(o.dtype)));
    if (iota) s.layout.item = lane_bytes(s.dtype);  // counted off to a stage; strides are numbers
    if (iota && s.layout.reach == Reach::kDirect) s.layout.reach = Reach::kStrided;
    s.shared = all_zero(s.layout.outer);
    const bool is_dense = s.layout.reach == Reach::kDirect, is_widened = s.shared && is_half(s.dtype);
    const bool is_of_few = space.grouped ? space.cols <= kLongestCopiedRow : together > 1 && s.shared;
    const bool is_strided = s.layout.reach == Reach::kStrided && is_of_few;
    const bool is_of_rows = space.grouped && space.cols <= kLongestCopiedRow;
    if (!iota && (is_strided || (is_of_rows && is_dense && is_widened))) {
      s.copied = true, s.from = s.layout;
      s.layout.reach = Reach::kDirect;
      if (is_widened) s.dtype = DType::kFloat32, s.layout.item = 4;
      copy_rows(s.layout, s.shared ? 1 : group, s.rows, s.pitch);
      if (!s.shared) s.layout.outer.back() = s.pitch;
    }
    if (!iota && !s.copied && repeats(s)) {
      s.period = space.flat.back();
      s.rows = add_scratch(s.period * s.layout.item + tile_bytes());
    }
    const bool fits = space.cols * s.layout.item <= kNextRowBytes;
    if (!space.columns && fits && !s.layout.outer.empty() && !s.copied) s.to_next = s.layout.outer.back() * group;
    s.stage = add_scratch(tile_bytes());
    s.operand = add_operand(s.layout.reach == Reach::kDirect ? -1 : s.stage);
    sources.push_back(std::move(s));
  }
}

/// One value for each position along the last axis, as a bias has: a tile begins anywhere among them.
bool FusedProgram::repeats(const Source& s) const {
  constexpr std::int64_t kMostBytes = 64 * 1024;
  const Extents& strides = s.layout.flat;
  return s.layout.reach == Reach::kStrided && s.shared && !space.columns && strides.back() == s.layout.item &&
         std::all_of(strides.begin(), strides.end() - 1, [](std::int64_t n) { return n == 0; }) &&
         space.flat.back() * s.layout.item <= kMostBytes;
}

void FusedProgram::add_tables() {
  for (const Table& t : kernel.tables)
    tables.push_back(space.layout(t.from, static_cast<int>(item_bytes(t.from.dtype))));
  row_source_.assign(tables.size(), -1);
}

/// Whether all elements of a row are at one position, which is known before its first sweep.
bool FusedProgram::takes_rows_of(int s) const {
  if (step(s).kind != StepKind::kTake || space.columns || all_zero(tables[at(step(s).index)].flat)) return false;
  const int index = step(s).arguments[0];
  return ready(index) == 0 && (has_home(index) || step(index).kind == StepKind::kConstant);
}

/// Rows of a group are copied, so that they lie as those of arrays do.
void FusedProgram::add_row_source(int take) {
  Source s;
  s.table = step(take).index, s.index = step(take).arguments[0];
  s.array = static_cast<int>(kernel.loads.size()) + s.table;
  const bool is_array = step(s.index).kind == StepKind::kLoad;
  if (is_array && sources[at(step(s.index).index)].layout.reach == Reach::kOuter) s.indices = step(s.index).index;
  s.dtype = kernel.tables[at(s.table)].from.dtype;
  s.layout = tables[at(s.table)];
  if (s.layout.reach != Reach::kDirect) s.layout.reach = Reach::kStrided;
  if (copies_rows()) {
    s.copied = true, s.from = s.layout;
    s.layout.reach = Reach::kDirect;
    copy_rows(s.layout, group, s.rows, s.pitch);
    s.layout.outer.back() = s.pitch;
  }
  s.stage = add_scratch(tile_bytes());
  s.operand = add_operand(s.layout.reach == Reach::kDirect ? -1 : s.stage);
  row_source_[at(s.table)] = static_cast<int>(sources.size());
  sources.push_back(std::move(s));
}

void FusedProgram::add_targets() {
  for (const Store& store : kernel.stores) {
    Target t;
    t.step = store.step;
    t.dtype = store.to.dtype;
    t.layout = space.layout(store.to, static_cast<int>(item_bytes(store.to.dtype)));
    t.per_row = has_home(t.step) && (space.columns ? all_zero(t.layout.outer) : is_one_element(t.layout.reach));
    if (kernel.kind == Pattern::kPointwise) t.per_row = false;
    if (!t.per_row && is_one_element(t.layout.reach)) t.layout.reach = Reach::kDirect;  // rows of one element
    t.summed = store.parts > 0;
    if (t.summed) t.per_row = false;
    t.in_place = t.summed && t.layout.reach == Reach::kDirect;
    if ((t.summed && !t.in_place) || (copies_rows() && t.layout.reach == Reach::kStrided)) {
      t.copied = true, t.to = t.layout;
      t.layout.reach = Reach::kDirect;
      copy_rows(t.layout, group, t.rows, t.pitch);
      t.layout.outer.back() = t.pitch;
    }
    t.stage = add_scratch(tile_bytes());
    t.operand = add_operand(t.layout.reach == Reach::kDirect ? -1 : t.stage);
    targets.push_back(std::move(t));
  }
}

int FusedProgram::source_of(int s) const {
  if (step(s).kind == StepKind::kLoad) return step(s).index;
  if (step(s).kind == StepKind::kIota) return static_cast<int>(kernel.loads.size()) + step(s).index;
  if (step(s).kind == StepKind::kTake && !row_source_.empty()) return row_source_[at(step(s).index)];
  return -1;
}

bool FusedProgram::has_home(int s) const {
  const int source = source_of(s);
  return source < 0 ? step(s).level == Level::kRow : is_one_element(sources[at(source)].layout.reach);
}

bool FusedProgram::is_row_map(int s) const {
  const StepKind kind = step(s).kind;
  return step(s).level == Level::kRow && (kind == StepKind::kMap || kind == StepKind::kCast || kind == StepKind::kTake);
}

/// Of an elementwise kernel: what is made of numbers of a row alone is one, too.
void FusedProgram::find_row_values() {
  if (!space.grouped) return;
  const auto is_number = [this](int s) { return has_home(s) || step(s).kind == StepKind::kConstant; };
  const auto varies = [this](const Step& s) {
    return s.kind == StepKind::kTake && !all_zero(tables[at(s.index)].flat);
  };
  for (Step& s : kernel.steps)
    if (!s.arguments.empty() && !varies(s) && std::ranges::all_of(s.arguments, is_number)) s.level = Level::kRow;
}

int FusedProgram::take_slot(std::vector<int>& free) {
  if (free.empty()) {
    slots.push_back(add_operand(add_scratch(tile_bytes())));
    return slots.back();
  }
  const int slot = free.back();
  free.pop_back();
  return slot;
}

/// Rows that the cache holds: sweeps fetch the next group meanwhile, so that memory is never idle. Of a small group the
/// sweep before the last does: prefetches and stores would wait for each other; or of two the last, where the first
/// only adds up, and would wait for what it prefetches (gradient of softmax of 2048 x 2048: 1.25 ms instead of 1.45).
/// Of a larger one every sweep fetches its part. Sweeps of exponentials or the like, which take the longest, have three
/// quarters (softmax of 4096 columns: 0.63 of a copy's rate instead of 0.53); where there is none the last one, which
/// stores and has the least to compute, has the largest (layernorm by loops written for the purpose: 0.83 with equal
/// parts, 0.91 with a quarter, a quarter and a half).
FusedProgram::Share FusedProgram::share_of_next_group(int sweep, std::int64_t item) const {
  const int all_sweeps = kernel.separate.sweeps;
  std::vector<char> computes(at(all_sweeps));
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s)
    if (!has_home(s) && step(s).kind == StepKind::kMap && info(step(s).op).signature == Signature::F_F)
      computes[at(ready(s))] = true;
  if (group * space.cols * item <= kGroupBytes) {
    const int chosen = all_sweeps == 2 && !computes[0] ? 1 : std::max(0, all_sweeps - 2);
    return {0, sweep == chosen ? 1 : 0, 1};
  }
  const int count = static_cast<int>(std::ranges::count(computes, true)), others = all_sweeps - count;
  if (count == 0 || others == 0) {
    const int all = std::max(4, all_sweeps);
    return {sweep, sweep == all_sweeps - 1 ? all - sweep : 1, all};
  }
  Share share{0, 0, 4 * others * count};
  for (int k = 0; k <= sweep; ++k) share.before += share.mine, share.mine = computes[at(k)] ? 3 * others : count;
  return share;
}

TileFetch FusedProgram::fetch_of(const Source& source, int sweep, int elements) const {
  const std::int64_t to_next = source.layout.outer.empty() ? 0 : source.layout.outer.back();
  const std::int64_t item = source.layout.item;
  TileFetch fetch{source.operand, static_cast<std::int32_t>(elements * item),
                  std::countr_zero(static_cast<unsigned>(elements)), 0};
  if (source.copied || bytes < kFetchedBytes) return {};
  if (space.columns) {
    const std::int64_t rows_ahead = 1 + kAheadBytes / (std::min(block, space.cols) * item);
    fetch.ahead = sweep == 0 ? rows_ahead * to_next : 0;
  } else if (space.rows == 1 || (to_next != 0 && source.to_next == 0)) {
    fetch.ahead = kAheadBytes;
  } else if (source.to_next != 0) {
    const Share share = share_of_next_group(sweep, item);
    if (share.mine == 0) {
      fetch.stride = 0;
      return fetch;
    }
    fetch.stride = (fetch.stride * share.mine + share.all - 1) / share.all;
    fetch.ahead = source.to_next + share.before * (space.cols * item / share.all);
    fetch.far = group * space.cols * item > kGroupBytes;
  }
  if (fetch.ahead == 0) fetch.stride = 0;
  return fetch;
}

// ---- what stands where -------------------------------------------------------------------------------------------

void FusedProgram::choose_block() {
  wide_ = std::ranges::any_of(kernel.steps, [](const Step& s) { return lane_bytes(s.dtype) == 8; });
  const std::int64_t tile = tile_bytes() / (wide_ ? 8 : 4);
  // Columns that the cache holds until they are swept again, unless that leaves too little of each row to read.
  block = kBlockBytes / (4 * std::max<std::int64_t>(space.rows, 1));
  if (kernel.separate.sweeps == 1 || block < kLeastBlock || block > kBlock) block = wide_blocks_ ? kWideBlock : kBlock;
  if (together > 1) block = space.cols;
  block = std::max<std::int64_t>(1, divide_up(std::min(block, space.cols), tile)) * tile;
}

bool FusedProgram::takes_rows() const {
  return space.columns && space.outer.back() >= kRowsAtOnce && sweeps.size() == 1 && sweeps[0].takes_rows;
}

void FusedProgram::give_home(int s) {
  Home& home = homes[at(s)];
  const int vector = kernels->vector_bytes;
  const bool is_of_row = step(s).kind == StepKind::kReduce || is_row_map(s);
  const bool is_array = space.columns && is_of_row;
  const int source = source_of(s);
  home.of_row = !space.columns && (is_of_row || (source >= 0 && sources[at(source)].layout.reach == Reach::kOuter));
  if (is_array) home.scale = wide_ ? 8 : 4, home.stride = vector;
  if (home.of_row) home.scale = lane_bytes(step(s).dtype), home.stride = vector;
  home.place = add_scratch(is_array ? block * home.scale : divide_up(group * home.scale, vector) * vector + vector);
  home.operand = add_operand(home.place);
}

void FusedProgram::give_homes() {
  homes.resize(kernel.steps.size());
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (has_home(s)) give_home(s);
  }
}

void FusedProgram::give_accumulators() {
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (step(s).kind != StepKind::kReduce) continue;
    Reduction r;
    r.step = s, r.sweep = ready(s) - 1;
    r.scalar = scalar_reduction(step(s).op, held(step(s).from));
    if (space.columns) r.scale = std::max(r.scalar.lane_bytes, wide_ ? 8 : 4);
    const std::int64_t tile = tile_bytes() / (wide_ ? 8 : 4);  // that overlaps the last of a block
    r.place = add_scratch(space.columns ? (block + tile) * r.scale : group * kernels->vector_bytes);
    r.operand = add_operand(r.place);
    reductions.push_back(r);
  }
}

void FusedProgram::give_row_steps() {
  row_steps.resize(at(operands));
  const auto of_array = [this](const auto& array) {
    if (array.layout.reach == Reach::kDirect && !array.layout.outer.empty())
      row_steps[at(array.operand)] = array.layout.outer.back();
  };
  for (const Source& s : sources) of_array(s);
  if (space.columns) return;
  for (const Target& t : targets) of_array(t);
  for (const Home& h : homes)
    if (h.of_row) row_steps[at(h.operand)] = h.scale;
  for (const Reduction& r : reductions) row_steps[at(r.operand)] = kernels->vector_bytes;
  for (const int operand : kept) row_steps[at(operand)] = kept_pitch();
  for (int operand = 0; operand < operands; ++operand)
    if (row_steps[at(operand)] != 0) moving.push_back(operand);
}

// ---- programs ----------------------------------------------------------------------------------------------------

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

/// Loops of expressions fetch their part of the next rows of arrays that no loop of the sweep reads, and the last
/// sweep's what the others could not.
void FusedProgram::fetch_unread(std::vector<RowLoop*> loops, int sweep) {
  const auto fetches = [](const RowLoop& l, int operand) {
    return (l.fetch.stride != 0 && l.fetch.operand == operand) ||
           std::any_of(l.fetches, l.fetches + l.fetched, [=](const TileFetch& f) { return f.operand == operand; });
  };
  const auto room =
      std::ranges::find_if(loops, [](const RowLoop* l) { return l->arrays[0] >= 0 && l->fetched < kFormFetches; });
  const bool is_last = sweep == kernel.separate.sweeps - 1;
  for (int k = 0; k < static_cast<int>(sources.size()); ++k) {
    const Source& s = sources[at(k)];
    const int elements = kernels->vector_bytes / lane_bytes(s.dtype);
    TileFetch fetch = s.to_next == 0 ? TileFetch{} : fetch_of(s, sweep, elements);
    if (is_last && std::ranges::count(owed_, k) > 0)
      fetch = {s.operand, elements * s.layout.item, std::countr_zero(static_cast<unsigned>(elements)), s.to_next};
    if (fetch.stride == 0 || std::ranges::any_of(loops, [&](const RowLoop* l) { return fetches(*l, s.operand); }))
      continue;
    if (room != loops.end() && (*room)->fetched < kFormFetches)
      (*room)->fetches[(*room)->fetched++] = fetch;
    else if (group * space.cols * s.layout.item <= kGroupBytes)
      owed_.push_back(k);
  }
}

/// Each array is prefetched by one of the loops that read it.
void FusedProgram::share_fetches(std::vector<TileProgram>& loops) const {
  std::vector<int> seen;
  const auto is_first = [&seen](const TileFetch& f) {
    if (f.stride == 0 || std::ranges::count(seen, f.operand) > 0) return false;
    seen.push_back(f.operand);
    return true;
  };
  for (TileProgram& l : loops) {
    if (!is_first(l.loop.fetch)) l.loop.fetch = {};
    const int count = std::exchange(l.loop.fetched, 0);
    for (int k = 0; k < count; ++k)
      if (is_first(l.loop.fetches[k])) l.loop.fetches[l.loop.fetched++] = l.loop.fetches[k];
  }
}

void FusedProgram::size_tiles(TileProgram& program) const {
  const int per_register = kernels->vector_bytes / (program.wide ? 8 : 4);
  program.elements[static_cast<int>(Width::kShort)] = per_register;
  program.elements[static_cast<int>(Width::kFull)] = per_register * kernels->registers;
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

/// What several sweeps make of long functions, and values that one searches, is taken once, where the cache holds a row
/// of it.
void FusedProgram::keep_values(std::vector<Wanted>& in_sweep) {
  bool narrow = true;
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s)
    narrow = narrow && (has_home(s) || lane_bytes(step(s).dtype) == 4);
  for (const Wanted& wanted : in_sweep) narrow = narrow && !is_wide(wanted);  // a number of 8 bytes for each row
  if (space.columns || !narrow || space.cols * 4 > kNextRowBytes) return;
  std::vector<int> first(kernel.steps.size(), -1);
  std::vector<char> takes_long = of_long_functions();
  for (int sweep = 0; sweep < std::ssize(in_sweep); ++sweep) {
    walk_back(in_sweep[at(sweep)], [&](int s) {
      if (has_home(s) || source_of(s) >= 0) return false;
      const bool again = first[at(s)] >= 0;
      if (!again) first[at(s)] = sweep;
      if (!again || step(s).kind != StepKind::kMap || (!takes_long[at(s)] && !is_searched(in_sweep[at(sweep)], s)))
        return true;
      keep(s, in_sweep[at(first[at(s)])]);
      takes_long = of_long_functions();
      return false;
    });
  }
}

/// By step, whether it would have to be made of long functions.
std::vector<char> FusedProgram::of_long_functions() const {
  std::vector<char> takes_long(kernel.steps.size());
  for (int s = 0; s < static_cast<int>(kernel.steps.size()); ++s) {
    if (has_home(s) || source_of(s) >= 0 || homes[at(s)].operand >= 0) continue;
    takes_long[at(s)] = (step(s).kind == StepKind::kMap && is_long(step(s).op)) ||
                        std::ranges::any_of(step(s).arguments, [&](int a) { return takes_long[at(a)]; });
  }
  return takes_long;
}

/// A loop searches what lies in memory.
bool FusedProgram::is_searched(const Wanted& in_sweep, int s) const {
  return std::ranges::any_of(in_sweep, [&](const auto& wanted) {
    const Action& a = wanted.second[0];
    return a.kind == Action::Kind::kReduce && searched_by(*this, wanted.first, reductions[at(a.index)]) == s;
  });
}

void FusedProgram::keep(int s, Wanted& in_sweep) {
  Home& home = homes[at(s)];
  if (home.operand >= 0) return;
  home.scale = 4, home.stride = kernels->vector_bytes;
  home.place = add_scratch(group * kept_pitch());
  home.operand = add_operand(home.place);
  kept.push_back(home.operand);
  in_sweep[s].push_back({Action::Kind::kKeep});
}

void FusedProgram::count_bytes() {
  const auto bytes_of = [this](const Layout& l) {
    const std::int64_t flat = all_zero(l.flat) ? 1 : space.cols, outer = all_zero(l.outer) ? 1 : space.rows;
    return flat * outer * l.item;
  };
  for (const Source& s : sources)
    if (!s.iota && s.table < 0) bytes += bytes_of(s.layout);
  for (const Step& s : kernel.steps)
    if (s.kind == StepKind::kTake)
      bytes +=
          tables[at(s.index)].item * (s.level == Level::kRow && !space.columns ? space.rows : space.rows * space.cols);
  for (const Target& t : targets) stored_bytes += bytes_of(t.layout);
  bytes += stored_bytes;
}

void FusedProgram::weigh() {
  constexpr std::int64_t kStepsPerPass = 16;  // that take about as long as memory does
  std::int64_t steps = 0;
  for (const TileProgram& p : sweeps) steps += static_cast<std::int64_t>(p.steps[0].size());
  work = bytes + std::max(bytes, 4 * space.rows * space.cols) * steps / kStepsPerPass;
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

/// Where the sweeps are moments and a store of dense rows, the next group's moments are taken while a group is stored.
void FusedProgram::find_ahead() {
  const auto copied = [](const auto& array) { return array.copied; };
  if (phases.size() != 2 || sweeps.size() != 3 || phases[0].moments.run == nullptr || bytes < kFetchedBytes) return;
  if (!sweeps[2].reductions.empty()) return;
  if (std::ranges::any_of(sources, copied) || std::ranges::any_of(targets, copied) || kernel.parts() > 0) return;
  ahead = kernels->row_ahead(phases[0].moments, sweeps[2].loop, kAheadBytes);
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

}  // namespace kfusion::cpu
