#include "cpu/codegen/columns/column_jobs.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/buffer.hpp"
#include "cpu/codegen/columns/column_plan.hpp"
#include "cpu/codegen/form/policy.hpp"
#include "cpu/stream.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu::ir {
namespace {

bool rows_lie_alike(const Form& form) {
  return std::ranges::all_of(form.stores, [&](const Layout& p) {
    if (p.transposed) return false;
    if (!p.by_runs || p.reach != Reach::kDense) return true;
    return std::ranges::all_of(p.operand->reduced,
                               [&](std::int64_t s) { return s * form.together * p.item % kLine == 0; });
  });
}

/// Columns whose rows the cache holds until they are swept again, unless that leaves too little of each row to read.
std::int64_t block_of(const Form& form, int sweeps) {
  if (form.together > 1 || (sweeps == 1 && form.cols() <= kManyColumns)) return form.cols();
  const std::int64_t rows = std::max<std::int64_t>(form.kernel.cols(), 1);
  const std::int64_t held = kBlockBytes / (4 * rows);
  return sweeps == 1 || held < kLeastBlockColumns ? kBlockColumns : std::min(held, kBlockColumns);
}

Buffer scratch_of(std::int64_t bytes) { return bytes > 0 ? Buffer(static_cast<std::size_t>(bytes)) : Buffer(); }

}  // namespace

ColumnJobs::ColumnJobs(const Form& form)
    : rows_(form.kernel.cols() / form.together),
      columns_(form.cols()),
      in_tiles_(form.in_tiles),
      may_stream_(rows_lie_alike(form)),
      unit_(form.lanes),
      together_(form.together),
      rest_(form.kernel.cols() % form.together) {
  const ColumnPlan plan(form);
  groups_ = form.rows();
  phases_ = plan.phases();
  const std::int64_t tile = std::int64_t{form.lanes} * form.registers;
  const std::int64_t blocks = divide_up(columns_, block_of(form, static_cast<int>(plan.sweeps.size())));
  block_ = in_tiles_ ? tile : round_up(divide_up(columns_, blocks), tile);
  const std::int64_t bytes = 4 * std::min(columns_, block_);
  rows_at_once_ = form.chains > 1 ? kRowsOfChains : std::max(kLeastRowsAtOnce, kLeastBytesAtOnce / bytes);
  const std::int64_t elements = rows_ * std::min(columns_, block_);
  parts_ =
      in_tiles_ || columns_ >= kManyColumns ? 1 : std::clamp<std::int64_t>(elements / kElementsOfPart, 1, kMostParts);
  const ColumnScratch scratch(form, plan, block_, parts_, rows_);
  array_bytes_ = scratch.array_bytes, first_part_ = scratch.first_part, part_bytes_ = scratch.part_bytes;
  scratch_bytes_ = scratch.bytes;
  for (std::int64_t k = 0; together_ > 1 && k < std::ssize(plan.held); ++k) {
    const int step = plan.held[static_cast<std::size_t>(k)];
    const DType type = compute_dtype(form.kernel.step(step).dtype);
    held_.push_back({2 * plan.ready(form, step), k * array_bytes_, static_cast<std::int64_t>(item_bytes(type))});
  }
}

void ColumnJobs::Task::take(std::byte* scratch, const ColumnCall& told, std::int64_t group, std::int64_t last_group,
                            std::int64_t begin, std::int64_t end) const {
  Call mine = call;
  mine.scratch = scratch, mine.columns = &told.first_phase;
  function(&mine, group, last_group, begin, end);
  if (streams) stream_fence();
}

void ColumnJobs::run(Function function, const Call& call, int threads, bool streams) const {
  const Task task{function, call, streams};
  if (in_tiles_) return run_tiles(task, threads);
  parts_ == 1 && together_ == 1 ? run_blocks(task, threads) : run_parts(task, threads);
}

/// Groups, or where there are few of them columns.
void ColumnJobs::run_tiles(const Task& task, int threads) const {
  const auto take = [&](std::int64_t group, std::int64_t last, std::int64_t begin, std::int64_t end) {
    const Buffer scratch = scratch_of(scratch_bytes_);
    task.take(scratch.data(), {}, group, last, begin, end);
  };
  if (threads == 1) return take(0, groups_, 0, columns_);
  if (groups_ >= 8 * threads)
    return parallel_for(groups_, threads,
                        [&](std::int64_t first, std::int64_t last) { take(first, last, 0, columns_); });
  const std::int64_t blocks = divide_up(columns_, block_);
  parallel_for(blocks, threads, [&](std::int64_t first, std::int64_t last) {
    take(0, groups_, first * block_, std::min(columns_, last * block_));
  });
}

void ColumnJobs::run_blocks(const Task& task, int threads) const {
  const std::int64_t share = groups_ > 1 ? block_ : std::min(block_, round_up(divide_up(columns_, threads), unit_));
  const std::int64_t blocks = divide_up(columns_, share);
  parallel_for(groups_ * blocks, threads, [&](std::int64_t first, std::int64_t last) {
    const Buffer scratch = scratch_of(scratch_bytes_);
    for (std::int64_t k = first; k < last; ++k) {
      const std::int64_t group = k / blocks, begin = k % blocks * share;
      task.take(scratch.data(), told(0, phases_), group, group + 1, begin, std::min(columns_, begin + share));
    }
  });
}

/// Phase by phase: rows in parts, and their values by one thread.
void ColumnJobs::run_parts(const Task& task, int threads) const {
  const Buffer scratch = scratch_of(scratch_bytes_);
  const auto take = [&](std::int64_t group, std::int64_t begin, const ColumnCall& call) {
    const std::int64_t last = call.first_phase % 2 == 0 ? columns_ / together_ : columns_;
    task.take(scratch.data(), call, group, group + 1, begin, std::min(last, begin + block_));
  };
  for (std::int64_t group = 0; group < groups_; ++group)
    for (std::int64_t begin = 0; begin < columns_; begin += block_)
      for (std::int64_t phase = 0; phase < phases_; ++phase) {
        const ColumnCall all = told(phase, phase + 1);
        if (phase % 2 == 0) {
          take(group, begin, all);
          repeat(scratch.data(), phase);
          continue;
        }
        parallel_for(parts_, threads, [&](std::int64_t first, std::int64_t last) {
          for (std::int64_t part = first; part < last; ++part) {
            ColumnCall mine = all;
            mine.part += part * part_bytes_;
            mine.first_row = mine.begun_row = rows_ * part / parts_, mine.last_row = rows_ * (part + 1) / parts_;
            take(group, begin, mine);
            if (part + 1 < parts_ || rest_ == 0) continue;
            mine.first_row = rows_, mine.last_row = rows_ + 1, mine.begun_row = -1;
            task.take(scratch.data(), mine, group, group + 1, 0, rest_ * (columns_ / together_));
          }
        });
      }
}

/// Rows that are one have what a phase leaves for each column side by side, too.
void ColumnJobs::repeat(std::byte* scratch, std::int64_t phase) const {
  const std::int64_t columns = columns_ / together_;
  for (const Held& h : held_)
    for (std::int64_t row = 1; h.phase == phase && row < together_; ++row)
      std::memcpy(scratch + h.place + row * columns * h.item, scratch + h.place,
                  static_cast<std::size_t>(columns * h.item));
}

/// One call takes all rows.
ColumnCall ColumnJobs::told(std::int64_t first_phase, std::int64_t last_phase) const {
  return {.first_phase = first_phase,
          .last_phase = last_phase,
          .first_row = 0,
          .last_row = rows_,
          .rows_at_once = rows_at_once_,
          .part = first_part_,
          .parts = parts_,
          .first_part = first_part_,
          .part_bytes = part_bytes_,
          .array_bytes = array_bytes_,
          .begun_row = 0,
          .together = together_,
          .columns = columns_ / together_,
          .count = rows_ * together_ + rest_};
}

}  // namespace kfusion::cpu::ir
