// A program over elements of the flat index, tile by tile: whole tiles where they lie, others by way of stages.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "cpu/fused/worker.hpp"

namespace kfusion::cpu {

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

/// Whole tiles that need no stages, from i on; i moves to what is left.
void Worker::run_tiles(const TileProgram& p, Width w, std::int64_t& i, std::int64_t end) {
  const std::int64_t count = p.per_tile(w);
  if (i + count > end) return;
  steps(p, w, i, end);
  i = context_.i + count;
}

/// Of the whole tiles in [i, end).
void Worker::steps(const TileProgram& p, Width w, std::int64_t i, std::int64_t end) {
  const bool joined = w == Width::kFull && !context_.partial;
  const TileStep* const steps = (joined ? p.joined : p.steps[static_cast<int>(w)]).data();
  program_.kernels->run[static_cast<int>(w)](steps, &context_, i, end, p.per_tile(w));
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
  const std::int64_t i = std::min(from, run_end() - p.per_tile(w));
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

}  // namespace kfusion::cpu
