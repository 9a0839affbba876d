#include "cpu/fused/worker.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "cpu/strided.hpp"
#include "kfusion/divide_up.hpp"
#include "kfusion/graph/constant.hpp"

namespace kfusion::cpu {
namespace {

/// Of a constant, as a lane of its compute type; returns its bytes.
int lane_of(const Constant& c, const double* parameters, std::byte* lane) {
  const double number = c.parameter >= 0 ? parameters[c.parameter] : c.value;
  const auto put = [lane](auto value) {
    std::memcpy(lane, &value, sizeof value);
    return static_cast<int>(sizeof value);
  };
  switch (c.dtype) {
    case DType::kFloat64:
      return put(number);
    case DType::kInt64:
      return put(c.parameter >= 0 ? static_cast<std::int64_t>(number) : c.integer);
    case DType::kInt32:
      return put(static_cast<std::int32_t>(c.integer));
    case DType::kBool:
      return put(std::int32_t{number != 0});
    default:
      return put(static_cast<float>(rounded(number, precision(c.dtype, c.wide))));
  }
}

/// An array of one element for each row, along the rows of a group.
Layout along_rows(const Layout& l) {
  Layout values = l;
  values.flat = {l.outer.empty() ? 0 : l.outer.back()};
  return values;
}

}  // namespace

Worker::Worker(const FusedCall& call) : call_(call), program_(call.program) {
  attach();
  set_constants();
  copy_shared();
  go_to(0);
  if (!program_.scalars.empty()) run_row_values(program_.scalars);
}

Worker::Worker(const FusedCall& call, const Worker& from) : call_(call), program_(call.program) {
  attach();
  std::memcpy(scratch_ + program_.homes_begin, from.scratch_ + program_.homes_begin,
              static_cast<std::size_t>(program_.homes_end - program_.homes_begin));
  for (const int operand : program_.kept) at_[operand] = from.at_[operand];
  for (const Source& s : program_.sources) {
    if (s.copied && s.shared) at_[s.operand] = from.at_[s.operand];
    if (s.period > 0) copy_period(s);
  }
  go_to(0);
}

Worker::~Worker() {
  for (EdgeLine& e : edges_) KF_ISA::flush(e);
  if (context_.stream) program_.kernels->fence();
}

void Worker::attach() {
  const auto scratch_bytes = static_cast<std::size_t>(program_.scratch_bytes);
  scratch_ = local_scratch_;
  if (program_.scratch_bytes > kLocalBytes) {
    scratch_buffer_ = Buffer(scratch_bytes);
    scratch_ = scratch_buffer_.data();
  } else {
    poison_buffer(local_scratch_, scratch_bytes);
  }
  const std::size_t arrays = program_.sources.size() + program_.targets.size();
  const std::size_t addresses = at(program_.operands) + arrays;
  at_ = local_addresses_;
  if (addresses > std::size(local_addresses_)) {
    addresses_buffer_ = Buffer(addresses * sizeof(std::byte*));
    at_ = reinterpret_cast<std::byte**>(addresses_buffer_.data());
  }
  source_base_ = const_cast<const std::byte**>(at_ + program_.operands);
  target_base_ = at_ + at(program_.operands) + program_.sources.size();
  for (int k = 0; k < program_.operands; ++k)
    at_[k] = program_.places[at(k)] < 0 ? nullptr : scratch_ + program_.places[at(k)];
  for (std::size_t k = 0; k < program_.targets.size(); ++k)
    target_base_[k] = program_.targets[k].copied ? scratch_ + program_.targets[k].rows : nullptr;
  context_.at = at_;
  context_.columns = program_.space.columns;
  context_.row_steps = program_.row_steps.data();
  context_.stream = call_.stream;
  if (call_.stream) edges_.resize(program_.targets.size());
  attach_tables();
}

void Worker::attach_tables() {
  const Kernel& k = program_.kernel;
  for (const Layout& layout : program_.tables) along_rows_.push_back(along_rows(layout).flat);
  for (const Step& s : k.steps) {
    if (s.kind != StepKind::kTake) continue;
    const Layout& layout = program_.tables[at(s.index)];
    tables_.resize(program_.tables.size());
    tables_[at(s.index)] = {nullptr,
                            &program_.space.flat,
                            &layout.flat,
                            k.tables[at(s.index)].step * layout.item,
                            k.tables[at(s.index)].positions,
                            s.index,
                            layout.item,
                            lane_bytes(s.from),
                            program_.kernels->vector_bytes,
                            call_.fault};
  }
  row_tables_ = tables_;
  for (std::size_t t = 0; t < row_tables_.size(); ++t)
    row_tables_[t].extents = &group_rows_, row_tables_[t].strides = &along_rows_[t];
  context_.tables = tables_.data();
}

void Worker::set_constants() {
  for (std::size_t s = 0; s < program_.kernel.steps.size(); ++s) {
    const Step& step = program_.kernel.steps[s];
    if (step.kind != StepKind::kConstant) continue;
    lane_of(program_.kernel.constants[at(step.index)], call_.parameters, scratch_ + program_.homes[s].place);
  }
}

/// Weights that are not dense, or of a half type: once.
void Worker::copy_shared() {
  for (std::size_t k = 0; k < program_.sources.size(); ++k) {
    const Source& s = program_.sources[k];
    if (s.period > 0) copy_period(s);
    if (!s.copied || !s.shared) continue;
    const std::byte* const base = call_.loads[k] + s.from.offset;
    at_[s.operand] = scratch_ + s.rows;
    if (s.from.item == s.layout.item) {
      gather(s.from, program_.space.flat, base, 0, program_.space.cols, scratch_ + s.rows);
      continue;
    }
    const DType half = program_.kernel.loads[k].dtype;
    constexpr std::int64_t kBlock = 256;
    std::byte dense[2 * kBlock];
    for (std::int64_t i = 0, n; i < program_.space.cols; i += n) {
      n = std::min(kBlock, program_.space.cols - i);
      gather(s.from, program_.space.flat, base, i, n, dense);
      program_.kernels->widen(half, dense, n, scratch_ + s.rows + i * s.layout.item);
    }
  }
}

void Worker::copy_period(const Source& s) {
  const std::int64_t all = s.period + program_.kernels->registers * program_.kernels->vector_bytes / s.layout.item;
  const std::byte* const from = call_.loads[s.array] + s.layout.offset;
  for (std::int64_t i = 0, n; i < all; i += n) {
    n = std::min(s.period, all - i);
    std::memcpy(scratch_ + s.rows + i * s.layout.item, from, static_cast<std::size_t>(n * s.layout.item));
  }
}

void Worker::go_to(std::int64_t outer) {
  const Extents& extents = program_.space.outer;
  for (std::size_t k = 0; k < program_.sources.size(); ++k) {
    const Source& s = program_.sources[k];
    if (s.copied) source_base_[k] = at_[s.operand];
    if (s.copied || s.table >= 0) continue;  // of a table, take_rows() knows where
    const std::int64_t offset = s.layout.offset + offset_of(outer, extents, s.layout.outer);
    // The position of an iota is its number.
    source_base_[k] = s.iota ? reinterpret_cast<const std::byte*>(offset) : call_.loads[s.array] + offset;
    if (!s.iota && s.layout.reach == Reach::kDirect) at_[s.operand] = const_cast<std::byte*>(source_base_[k]);
  }
  go_to_tables(outer);
  for (std::size_t k = 0; k < program_.targets.size(); ++k) {
    const Target& t = program_.targets[k];
    if (t.in_place)
      target_base_[k] = sums_of_part(k);
    else if (!t.copied)
      target_base_[k] = call_.stores[k] + t.layout.offset + offset_of(outer, extents, t.layout.outer);
    if (t.layout.reach == Reach::kDirect) at_[t.operand] = target_base_[k];
  }
}

// ---- groups of rows ----------------------------------------------------------------------------------------------

namespace {

/// The rows of a group between an array and dense ones, in one go where its elements are a constant stride apart.
template <class Move, class MoveRow>
void for_rows(const Layout& l, const Extents& flat, std::int64_t rows, const Move& move, const MoveRow& move_row) {
  const std::int64_t to_next = l.outer.back();
  if (flat.size() == 1 && l.item > 1) return move(Tile{rows, flat[0], to_next, l.flat[0], l.item});
  for (std::int64_t r = 0; r < rows; ++r) move_row(r, r * to_next);
}

}  // namespace

void Worker::go_to_group(std::int64_t first, std::int64_t rows) {
  first_ = first, rows_ = rows;
  const Space& space = program_.space;
  for (std::size_t k = 0; k < program_.sources.size(); ++k) {
    const Source& s = program_.sources[k];
    if (!s.copied || s.shared || s.table >= 0) continue;
    std::byte* const dense = scratch_ + s.rows;
    const std::byte* const from = call_.loads[k] + s.from.offset + offset_of(first, space.outer, s.from.outer);
    for_rows(
        s.from, space.flat, rows, [&](const Tile& tile) { cpu::gather(tile, from, dense, s.pitch); },
        [&](std::int64_t r, std::int64_t offset) {
          gather(s.from, space.flat, from + offset, 0, space.cols, dense + r * s.pitch);
        });
    at_[s.operand] = dense;
  }
  for (std::size_t k = 0; k < program_.targets.size(); ++k)
    if (program_.targets[k].copied) target_base_[k] = scratch_ + program_.targets[k].rows;
  go_to(first);
}

void Worker::go_to_tables(std::int64_t outer) {
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const Layout& layout = program_.tables[t];
    tables_[t].base = call_.loads[program_.kernel.loads.size() + t] + layout.offset +
                      offset_of(outer, program_.space.outer, layout.outer);
    row_tables_[t].base = tables_[t].base;
  }
}

std::int64_t Worker::index_of(int step, std::int64_t row) const {
  const Home& home = program_.homes[at(step)];
  const std::byte* const lane = scratch_ + home.place + (home.of_row ? row * home.scale : 0);
  if (lane_bytes(program_.kernel.steps[at(step)].dtype) == 4) return *reinterpret_cast<const std::int32_t*>(lane);
  return *reinterpret_cast<const std::int64_t*>(lane);
}

void Worker::take_rows() {
  for (std::size_t k = 0; k < program_.sources.size(); ++k) {
    const Source& s = program_.sources[k];
    if (s.table < 0) continue;
    if (s.copied) {
      for (std::int64_t row = 0; row < rows_; ++row) take_row(s, row);
      if (s.indices >= 0 && s.from.reach == Reach::kDirect) fetch_next_rows(s);
      at_[s.operand] = scratch_ + s.rows;
      source_base_[k] = at_[s.operand];
      continue;
    }
    const TileTable& table = tables_[at(s.table)];
    const std::byte* const row = table.at(table.base, index_of(s.index, 0));
    source_base_[k] = row ? row : table.base;  // whose results nobody gets
    if (s.layout.reach == Reach::kDirect) at_[s.operand] = const_cast<std::byte*>(source_base_[k]);
  }
}

/// Of a group, to its place among dense rows.
void Worker::take_row(const Source& s, std::int64_t row) {
  const TileTable& table = tables_[at(s.table)];
  const std::byte* const from = table.at(table.base + row * s.from.outer.back(), index_of(s.index, row));
  std::byte* const to = scratch_ + s.rows + row * s.pitch;
  if (from)
    gather(s.from, program_.space.flat, from, 0, program_.space.cols, to);
  else
    std::memset(to, 0, static_cast<std::size_t>(program_.space.cols * s.from.item));
}

/// Those of the next group, which lie anywhere: no hardware could guess where. As far as the last outer axis goes on.
void Worker::fetch_next_rows(const Source& s) const {
  const Extents& outer = program_.space.outer;
  const Layout& indices = program_.sources[at(s.indices)].layout;
  const TileTable& table = tables_[at(s.table)];
  const std::byte* next = source_base_[s.indices] + rows_ * indices.outer.back();
  const std::int64_t rows = std::min(program_.group, outer.back() - first_ % outer.back() - rows_);
  for (std::int64_t row = 0; row < rows; ++row, next += indices.outer.back()) {
    std::int32_t narrow = 0;
    std::int64_t index = 0;
    if (table.index_bytes == 4)
      std::memcpy(&narrow, next, sizeof narrow), index = narrow;
    else
      std::memcpy(&index, next, sizeof index);
    if (!table.positions.has(index)) continue;  // its own turn will report it
    const std::byte* const from =
        table.base + (rows_ + row) * s.from.outer.back() + table.positions.position(index) * table.step;
    const std::int64_t bytes = program_.space.cols * s.from.item;
    for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(from + b);
  }
}

void Worker::leave_group() {
  const Space& space = program_.space;
  for (std::size_t k = 0; k < program_.targets.size(); ++k) {
    const Target& t = program_.targets[k];
    if (!t.copied) continue;
    if (t.summed) {
      add_to_part(k);
      continue;
    }
    const std::byte* const dense = scratch_ + t.rows;
    std::byte* const to = call_.stores[k] + t.to.offset + offset_of(first_, space.outer, t.to.outer);
    for_rows(
        t.to, space.flat, rows_, [&](const Tile& tile) { cpu::scatter(tile, dense, t.pitch, to); },
        [&](std::int64_t r, std::int64_t offset) {
          scatter(t.to, space.flat, to + offset, 0, space.cols, dense + r * t.pitch);
        });
  }
  begins_part_ = false;
}

std::byte* Worker::sums_of_part(std::size_t target) const {
  const Target& t = program_.targets[target];
  return call_.stores[target] + t.layout.offset + part_ * program_.space.cols * t.layout.item;
}

void Worker::begin_part(std::int64_t part) {
  part_ = part, begins_part_ = true;
  for (std::size_t k = 0; k < program_.targets.size(); ++k)
    if (const Target& t = program_.targets[k]; t.in_place)
      program_.kernels->add_rows(t.dtype, nullptr, 0, 0, program_.space.cols, sums_of_part(k), true);
}

/// The group's rows, in the order of the sums, which is another.
void Worker::add_to_part(std::size_t target) const {
  const Target& t = program_.targets[target];
  const Space& space = program_.space;
  const std::int64_t pitch = space.cols * t.layout.item;
  Buffer moved(static_cast<std::size_t>(rows_ * pitch));
  for (std::int64_t r = 0; r < rows_; ++r)
    scatter(t.to, space.flat, moved.data() + r * pitch, 0, space.cols, scratch_ + t.rows + r * t.pitch);
  program_.kernels->add_rows(t.dtype, moved.data(), pitch, rows_, space.cols, sums_of_part(target), begins_part_);
}

/// Of the group: sweeps see its numbers.
void Worker::go_to_row(std::int64_t row) {
  for (std::size_t k = 0; k < program_.targets.size(); ++k)
    if (const Target& t = program_.targets[k]; t.copied) target_base_[k] = scratch_ + t.rows + row * t.pitch;
  for (const Source& s : program_.sources)
    if (s.copied && !s.shared) at_[s.operand] = scratch_ + s.rows + row * s.pitch;
  go_to(first_ + row);
  const auto move = [&](int operand, std::int64_t place) {
    at_[operand] = scratch_ + place + row * program_.row_steps[at(operand)];
  };
  for (const Home& h : program_.homes)
    if (h.of_row || (h.operand >= 0 && program_.row_steps[at(h.operand)] != 0)) move(h.operand, h.place);
  for (const Reduction& r : program_.reductions) move(r.operand, r.place);
}

/// Within a group all addresses move by their steps.
void Worker::next_row() {
  for (const int operand : program_.moving) at_[operand] += program_.row_steps[at(operand)];
  const auto to_next = [](const Layout& l) { return l.outer.empty() ? 0 : l.outer.back(); };
  for (std::size_t k = 0; k < program_.sources.size(); ++k)  // an iota's is a number
    source_base_[k] = reinterpret_cast<const std::byte*>(reinterpret_cast<std::intptr_t>(source_base_[k]) +
                                                         to_next(program_.sources[k].layout));
  for (std::size_t k = 0; k < program_.targets.size(); ++k)
    if (!program_.targets[k].in_place) target_base_[k] += to_next(program_.targets[k].layout);
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    tables_[t].base += to_next(program_.tables[t]);
    row_tables_[t].base = tables_[t].base;
  }
}

void Worker::run_group(const TileProgram& p, std::int64_t begin, std::int64_t end) {
  for (const RowLoop& l : p.searches) {
    if (!edges_.empty() && l.target >= 0) context_.edge = &edges_[at(l.target)];
    l.run(l, &context_, {0, rows_, begin, end});
  }
  if (!p.has_steps()) return;
  if (p.loop.run != nullptr) {
    if (!edges_.empty() && !p.targets.empty()) context_.edge = &edges_[at(p.targets[0])];
    return p.loop.run(p.loop, &context_, {0, rows_, begin, end});
  }
  if (rows_ == 1) return run(p, begin, end);
  for (std::int64_t row = 0; row < rows_; ++row) {
    if (row > 0) next_row();
    run(p, begin, end);
  }
  go_to_row(0);
}

void Worker::run_moments(const RowMoments& m, std::int64_t begin, std::int64_t end) {
  m.run(m, &context_, {0, rows_, begin, end});
}

void Worker::run_ahead(Worker& next, std::int64_t begin, std::int64_t end) {
  context_.edge = &edges_[at(program_.sweeps[2].targets[0])];
  program_.ahead.run(program_.ahead, &context_, {0, rows_, begin, end}, &next.context_, {0, next.rows_, begin, end});
}

void Worker::shift_arrays(std::int64_t begin) {
  const auto shift = [&](int operand, std::int64_t place, int scale) {
    if (scale > 0) at_[operand] = scratch_ + place - begin * scale;
  };
  for (const Home& h : program_.homes) shift(h.operand, h.place, h.scale);
  for (const Reduction& r : program_.reductions) shift(r.operand, r.place, r.scale);
}

void Worker::move_accumulators(std::int64_t elements) {
  for (const Reduction& r : program_.reductions) at_[r.operand] += elements * r.scale;
}

// ---- tiles -------------------------------------------------------------------------------------------------------

void Worker::run(const TileProgram& p, std::int64_t begin, std::int64_t end, bool first) {
  const std::int64_t full = p.per_tile(Width::kFull), small = p.per_tile(Width::kShort);
  context_.first = first;
  context_.fetches = p.fetches.data();
  context_.end = end;
  std::int64_t i = begin;
  if (call_.staged) {
    for (; i < end; i += full) part_of_tile(p, Width::kFull, i, std::min(full, end - i));
    return;
  }
  // What streams begins at a line, and ends with one. Of others nothing is copied where a whole tile can be read.
  const bool lines = context_.stream && !p.targets.empty();
  // Columns have arrays of a block in the scratch, which such a tile would leave.
  const bool overlaps =
      lines && !program_.space.columns && !p.copies && p.reductions.empty() && program_.space.cols >= small;
  const auto part = [&](std::int64_t from, std::int64_t count) {
    overlaps ? overlapping_tile(p, Width::kShort, from, count) : part_of_tile(p, Width::kShort, from, count);
  };
  const std::int64_t aligned = begin + to_alignment(p, begin);
  if (aligned + full <= end)
    for (; i < aligned; i = std::min(aligned, i + small)) part(i, std::min(small, aligned - i));
  if (p.copies) {
    for (; i + full <= end; i += full) tile(p, Width::kFull, i);
  } else {
    run_tiles(p, Width::kFull, i, end);
  }
  if (overlaps && end - i > 2 * small && program_.space.cols >= full)
    return overlapping_tile(p, Width::kFull, i, end - i);
  if (!lines && end - i > program_.kernels->registers / 2 * small) return part_of_tile(p, Width::kFull, i, end - i);
  if (p.copies) {
    for (; i + small <= end; i += small) tile(p, Width::kShort, i);
  } else {
    run_tiles(p, Width::kShort, i, end);
  }
  if (i < end) part(i, end - i);
}

void Worker::run_rows(const TileProgram& p, std::int64_t begin, std::int64_t end, bool first, std::int64_t rows) {
  context_.first = first;
  context_.fetches = p.fetches.data();
  context_.rows = rows;
  run_tiles(p, Width::kFull, begin, end);
  context_.rows = 1;
}

/// Of the whole tiles in [i, end).
void Worker::steps(const TileProgram& p, Width w, std::int64_t i, std::int64_t end) {
  const bool joined = w == Width::kFull && !context_.partial;
  const TileStep* const steps = (joined ? p.joined : p.steps[static_cast<int>(w)]).data();
  program_.kernels->run[static_cast<int>(w)](steps, &context_, i, end, p.per_tile(w));
}

/// Whole tiles that need no stages, from i on; i moves to what is left.
void Worker::run_tiles(const TileProgram& p, Width w, std::int64_t& i, std::int64_t end) {
  const std::int64_t count = p.per_tile(w);
  if (i + count > end) return;
  steps(p, w, i, end);
  i = context_.i + count;
}

/// Elements before the first one whose store is aligned, where stores go past the caches.
std::int64_t Worker::to_alignment(const TileProgram& p, std::int64_t begin) const {
  if (!context_.stream || p.targets.empty() || !p.reductions.empty() || program_.space.columns) return 0;
  const auto stored = std::ranges::find_if(p.targets, [this](int k) { return !program_.targets[at(k)].in_place; });
  if (stored == p.targets.end()) return 0;
  const Target& t = program_.targets[at(*stored)];
  if (t.layout.reach != Reach::kDirect) return 0;
  const auto address = reinterpret_cast<std::uintptr_t>(at_[t.operand] + begin * t.layout.item);
  const std::uintptr_t bytes = (64 - address % 64) % 64;
  return bytes % static_cast<std::uintptr_t>(t.layout.item) == 0 ? static_cast<std::int64_t>(bytes) / t.layout.item : 0;
}

void Worker::tile(const TileProgram& p, Width w, std::int64_t i) {
  const std::int64_t count = p.per_tile(w);
  fetch(p, i, count, false);
  steps(p, w, i, i + count);
  put(p, i, count, false);
}

/// The steps of a whole tile, on stages that hold `count` elements: their results are those of any other tile.
void Worker::part_of_tile(const TileProgram& p, Width w, std::int64_t i, std::int64_t count) {
  fetch(p, i, count, true);
  bring_sums(p, i, i, count);
  context_.partial = true, context_.valid = count;
  staged_steps(p, w, i);
  context_.partial = false;
  put(p, i, count, true);
}

/// The same of some elements of a tile that lies in the row, and reads it where it is: loads from a stage would
/// wait until its stores are done, after all those before them that are on their way to memory.
void Worker::overlapping_tile(const TileProgram& p, Width w, std::int64_t from, std::int64_t count) {
  const std::int64_t i = std::min(from, program_.space.cols - p.per_tile(w));
  write_to_stages(p, i);
  bring_sums(p, i, from, count);
  staged_steps(p, w, i);
  for (const int k : p.targets) {
    const Target& t = program_.targets[at(k)];
    const std::int64_t item = t.layout.item;
    store_part(at(k), target_base_[k] + from * item, scratch_ + t.stage + (from - i) * item, count * item);
    at_[t.operand] = target_base_[k];
  }
}

/// A tile whose results go to stages, which are read right after.
void Worker::staged_steps(const TileProgram& p, Width w, std::int64_t i) {
  const bool stream = std::exchange(context_.stream, false);
  steps(p, w, i, i + p.per_tile(w));
  context_.stream = stream;
}

void Worker::write_to_stages(const TileProgram& p, std::int64_t i) {
  for (const int k : p.targets) {
    const Target& t = program_.targets[at(k)];
    if (t.layout.reach == Reach::kDirect) at_[t.operand] = scratch_ + t.stage - i * t.layout.item;
  }
}

/// What the steps of the tile at i add to, of the elements that count.
void Worker::bring_sums(const TileProgram& p, std::int64_t i, std::int64_t from, std::int64_t count) {
  for (const int k : p.targets) {
    const Target& t = program_.targets[at(k)];
    const std::int64_t item = t.layout.item;
    if (t.in_place)
      std::memcpy(scratch_ + t.stage + (from - i) * item, target_base_[k] + from * item,
                  static_cast<std::size_t>(count * item));
  }
}

/// Brings elements to the stages: of strided sources, or of all.
void Worker::fetch(const TileProgram& p, std::int64_t i, std::int64_t count, bool all) {
  const Extents& extents = program_.space.flat;
  for (const int k : std::span(p.sources).first(p.staged)) {
    const Source& s = program_.sources[at(k)];
    std::byte* const stage = scratch_ + s.stage;
    if (s.iota && s.layout.reach == Reach::kStrided) {
      count_off(s.layout, extents, reinterpret_cast<std::int64_t>(source_base_[k]), s.dtype, i, count, stage);
    } else if (s.period > 0) {
      at_[s.operand] = scratch_ + s.rows + i % s.period * s.layout.item;
    } else if (s.layout.reach == Reach::kStrided) {
      gather(s.layout, extents, source_base_[k], i, count, stage);
    } else if (all && s.layout.reach == Reach::kDirect) {
      const std::byte* const from = source_base_[k] + i * s.layout.item;
      std::memcpy(stage, from, static_cast<std::size_t>(count * s.layout.item));
      if (s.to_next != 0)  // the steps cannot: they read the stage
        for (std::int64_t b = 0; b < count * s.layout.item; b += 64) __builtin_prefetch(from + s.to_next + b);
      at_[s.operand] = stage - i * s.layout.item;
    }
  }
  if (all) write_to_stages(p, i);
}

/// What is no whole tile; where stores go past the caches, line by line.
void Worker::store_part(std::size_t target, std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (edges_.empty() || program_.targets[target].in_place)
    return void(std::memcpy(to, from, static_cast<std::size_t>(bytes)));
  for (std::int64_t n; bytes > 0; to += n, from += n, bytes -= n) {
    n = std::min(bytes, static_cast<std::int64_t>(64 - reinterpret_cast<std::uintptr_t>(to) % 64));
    if (n == 64)
      KF_ISA::stream_line(to, from);
    else
      std::memcpy(KF_ISA::place(edges_[target], to, n), from, static_cast<std::size_t>(n));
  }
}

void Worker::put(const TileProgram& p, std::int64_t i, std::int64_t count, bool all) {
  for (const int k : p.targets) {
    const Target& t = program_.targets[at(k)];
    const std::byte* const stage = scratch_ + t.stage;
    if (t.layout.reach == Reach::kStrided) {
      scatter(t.layout, program_.space.flat, target_base_[k], i, count, stage);
    } else if (all && t.layout.reach == Reach::kDirect) {
      store_part(at(k), target_base_[k] + i * t.layout.item, stage, count * t.layout.item);
      at_[t.operand] = target_base_[k];
    }
  }
  if (!all) return;
  for (const int k : p.sources) {
    const Source& s = program_.sources[at(k)];
    if (s.layout.reach == Reach::kDirect) at_[s.operand] = const_cast<std::byte*>(source_base_[k]);
  }
}

// ---- values of a row ---------------------------------------------------------------------------------------------

void Worker::run_row_values(const TileProgram& p) {
  const std::int64_t per_register = p.per_register(), count = divide_up(rows_, per_register) * per_register;
  for (const int k : p.sources) {
    const Source& s = program_.sources[at(k)];
    const Layout values = along_rows(s.layout);
    if (s.iota)
      count_off(values, {rows_}, reinterpret_cast<std::int64_t>(source_base_[k]), s.dtype, 0, rows_,
                scratch_ + s.stage);
    else if (s.layout.reach == Reach::kScalar)
      repeat(source_base_[k], s.layout.item, per_register, scratch_ + s.stage);
    else
      gather(values, {rows_}, source_base_[k], 0, rows_, scratch_ + s.stage);
  }
  const bool stream = std::exchange(context_.stream, false);
  group_rows_[0] = rows_, context_.end = rows_, context_.tables = row_tables_.data();
  steps(p, Width::kShort, 0, count);
  context_.stream = stream, context_.tables = tables_.data();
  for (const int k : p.targets) {
    const Target& t = program_.targets[at(k)];
    scatter(along_rows(t.layout), {rows_}, target_base_[k], 0, rows_, scratch_ + t.stage);
  }
}

}  // namespace kfusion::cpu
