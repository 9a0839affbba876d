#include "cpu/fused/row_copies.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {
namespace {

/// The arrays of a call.
class CopiedRows {
 public:
  CopiedRows(const FusedCall& call, const RowCopy& copy)
      : call_(call),
        outer_(call.program.space.outer),
        table_layout_(call.program.tables[at(copy.table)]),
        index_layout_(call.program.sources[at(copy.index)].layout),
        target_layout_(call.program.targets[0].layout),
        table_(call.program.kernel.tables[at(copy.table)]),
        number_(copy.table),
        step_(table_.step * table_layout_.item),
        bytes_(call.program.space.cols * table_layout_.item),
        is_narrow_(index_layout_.item == 4),
        rows_(call.loads[call.program.kernel.loads.size() + at(copy.table)] + table_layout_.offset),
        indices_(call.loads[copy.index] + index_layout_.offset),
        results_(call.stores[0] + target_layout_.offset) {}

  /// A row that is read soon is fetched: rows lie anywhere, which no hardware could guess.
  void copy(std::int64_t first, std::int64_t last) const {
    for (std::int64_t row = first; row < last; ++row) {
      if (row + kAhead < last) fetch(row + kAhead);
      const std::int64_t index = this->index(row);
      if (!table_.positions.has(index)) {
        call_.fault->report(number_, index);
        continue;
      }
      std::memcpy(results_ + offset_of(row, outer_, target_layout_.outer), place(row, index), at(bytes_));
    }
  }

 private:
  static constexpr std::int64_t kAhead = 2, kFetched = 1024;  ///< rows; bytes of one, then hardware goes on

  std::int64_t index(std::int64_t row) const {
    const std::byte* const from = indices_ + offset_of(row, outer_, index_layout_.outer);
    std::int32_t narrow;
    std::int64_t wide;
    if (is_narrow_) return std::memcpy(&narrow, from, sizeof narrow), narrow;
    return std::memcpy(&wide, from, sizeof wide), wide;
  }
  const std::byte* place(std::int64_t row, std::int64_t index) const {
    return rows_ + offset_of(row, outer_, table_layout_.outer) + table_.positions.position(index) * step_;
  }
  void fetch(std::int64_t row) const {
    const std::int64_t index = this->index(row);
    if (!table_.positions.has(index)) return;  // its own turn will report it
    const std::byte* const from = place(row, index);
    for (std::int64_t b = 0; b < std::min(bytes_, kFetched); b += 64) __builtin_prefetch(from + b);
  }

  const FusedCall& call_;
  const Extents& outer_;
  const Layout &table_layout_, &index_layout_, &target_layout_;
  const Table& table_;
  int number_;
  std::int64_t step_, bytes_;
  bool is_narrow_;
  const std::byte *rows_, *indices_;
  std::byte* results_;
};

}  // namespace

std::optional<RowCopy> row_copy_of(const FusedProgram& p) {
  const std::vector<Step>& steps = p.kernel.steps;
  if (p.kernel.kind != Pattern::kPointwise || steps.size() != 2 || p.targets.size() != 1) return {};
  const Target& target = p.targets[0];
  const Step &load = steps[0], &take = steps[at(target.step)];
  if (load.kind != StepKind::kLoad || take.kind != StepKind::kTake || p.source_of(target.step) < 0) return {};
  const DType dtype = p.kernel.tables[at(take.index)].from.dtype;
  const bool is_dense = p.tables[at(take.index)].reach == Reach::kDirect && target.layout.reach == Reach::kDirect;
  const bool by_row = p.sources[at(load.index)].layout.reach == Reach::kOuter;
  if (!is_dense || !by_row || target.copied || target.dtype != dtype || dtype == DType::kBool) return {};  // odd bools
  return RowCopy{take.index, load.index};
}

void copy_rows(const FusedCall& call, const RowCopy& copy, int threads) {
  const CopiedRows rows(call, copy);
  parallel_for(call.program.space.rows, threads,
               [&](std::int64_t first, std::int64_t last) { rows.copy(first, last); });
}

}  // namespace kfusion::cpu
