// Groups of rows: their arrays as dense rows, rows of tables, sums of parts, and programs that go through all of them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/fused/worker.hpp"
#include "cpu/strided.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu {
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

std::int64_t Worker::index_of(int step, std::int64_t row) const {
  const Home& home = program_.homes[at(step)];
  const std::byte* const lane = scratch_ + home.place + (home.of_row ? row * home.scale : 0);
  if (lane_bytes(program_.kernel.steps[at(step)].dtype) == 4) return *reinterpret_cast<const std::int32_t*>(lane);
  return *reinterpret_cast<const std::int64_t*>(lane);
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

void Worker::begin_part(std::int64_t part) {
  part_ = part, begins_part_ = true;
  for (std::size_t k = 0; k < program_.targets.size(); ++k)
    if (const Target& t = program_.targets[k]; t.in_place)
      program_.kernels->add_rows(t.dtype, nullptr, 0, 0, program_.space.cols, sums_of_part(k), true);
}

std::byte* Worker::sums_of_part(std::size_t target) const {
  const Target& t = program_.targets[target];
  return call_.stores[target] + t.layout.offset + part_ * program_.space.cols * t.layout.item;
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

void Worker::run_row_values(const TileProgram& p) {
  const std::int64_t per_register = p.per_register(), count = round_up(rows_, per_register);
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
