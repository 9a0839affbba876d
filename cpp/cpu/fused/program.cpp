// What a program reads and writes: its kernel, its arrays, and how much that is to move.
#include "cpu/fused/program.hpp"

#include <algorithm>
#include <utility>

#include "cpu/fused/row_copies.hpp"
#include "cpu/fused/searches.hpp"
#include "kfusion/lower/idioms.hpp"

namespace kfusion::cpu {
namespace {

/// Elements of rows whose operands are made dense before the row's sweeps: an element for each of its channels, say.
/// Tile by tile that takes as long as all else.
constexpr std::int64_t kLongestCopiedRow = 65536;

bool is_one_element(Reach r) { return r == Reach::kScalar || r == Reach::kOuter; }

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
  annotate(without);
  return without;
}

}  // namespace

bool is_empty_cast(const Step& s) { return s.kind == StepKind::kCast && !is_half(s.dtype) && held(s.from) == s.dtype; }

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

bool FusedProgram::copies_rows() const { return space.grouped && space.cols <= kChunk; }

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
    if (!iota && !s.shared) s.layout = space.by_runs(std::move(s.layout));
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
    if (!space.columns && space.run_length == 0 && fits && !s.layout.outer.empty() && !s.copied)
      s.to_next = s.layout.outer.back() * group;
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
    t.layout = space.by_runs(space.layout(store.to, static_cast<int>(item_bytes(store.to.dtype))));
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

}  // namespace kfusion::cpu
