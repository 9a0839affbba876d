#include "cpu/fused/fused.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "cpu/fused/row_copies.hpp"
#include "cpu/fused/rows_and_columns.hpp"
#include "cpu/fused/sums.hpp"
#include "cpu/isa.hpp"
#include "cpu/job.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/error.hpp"

namespace kfusion::cpu {
namespace {

std::unique_ptr<const FusedProgram> make_program(const Kernel& k) {
  switch (k.kind) {
    case Pattern::kPointwise:
    case Pattern::kRows:
    case Pattern::kColumns:
    case Pattern::kFullReduction:
      break;
    default:
      throw std::logic_error("kfusion: the CPU executor has no loops for " + k.name);
  }
  auto program = std::make_unique<const FusedProgram>(k);
  return program->takes_rows() ? std::make_unique<const FusedProgram>(k, true) : std::move(program);
}

/// In place the lines are in the cache already, and theirs to write.
bool is_in_place(const FusedProgram& p, const std::byte* const* loads, std::byte* const* stores) {
  for (std::size_t t = 0; t < p.targets.size(); ++t)
    for (std::size_t k = 0; k < p.kernel.loads.size(); ++k)
      if (loads[k] == stores[t]) return true;
  return false;
}

bool uses(const TileStep& s, int operand) {
  return (s.operand == operand && (s.scale != 0 || s.stride != 0)) ||
         (s.second == operand && (s.second_scale != 0 || s.second_stride != 0));
}

/// Whether each tile of source `k` is read before that of target `t` is written, by the order of the steps.
bool reads_first(const FusedProgram& p, std::size_t k, std::size_t t) {
  if (p.sweeps.size() != 1 || p.sources[k].layout.reach != Reach::kDirect) return false;
  return std::ranges::all_of(p.sweeps[0].steps, [&](const std::vector<TileStep>& steps) {
    const auto of = [](int operand) { return [operand](const TileStep& s) { return uses(s, operand); }; };
    const auto last_read = std::find_if(steps.rbegin(), steps.rend(), of(p.sources[k].operand)).base();
    return last_read <= std::ranges::find_if(steps, of(p.targets[t].operand));
  });
}

/// Whether in place some tile would be written before it is read, unless it is read as a whole before.
bool is_staged(const FusedProgram& p, const std::byte* const* loads, std::byte* const* stores) {
  if (p.targets.size() < 2) return false;
  for (std::size_t t = 0; t < p.targets.size(); ++t)
    for (std::size_t k = 0; k < p.kernel.loads.size(); ++k)
      if (loads[k] == stores[t] && !reads_first(p, k, t)) return true;
  return false;
}

}  // namespace

FusedKernel::FusedKernel(const Kernel& k) {
  if (k.parts() == 0) {
    program_ = make_program(k);
    return;
  }
  Kernel without = k;
  sums_ = std::make_unique<const Sums>(replace_sums(without));
  program_ = std::make_unique<const FusedProgram>(without);
}
FusedKernel::FusedKernel(FusedKernel&&) noexcept = default;
FusedKernel& FusedKernel::operator=(FusedKernel&&) noexcept = default;
FusedKernel::~FusedKernel() = default;

void FusedKernel::run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const {
  const FusedProgram& p = *program_;
  if (p.space.rows == 0 || p.space.cols == 0) return;
  IndexFault fault;
  const int threads = threads_for(p.work);
  if (sums_) {
    run_parts({p, loads, stores, parameters, &fault}, threads);
  } else {
    const bool in_place = is_in_place(p, loads, stores);
    const bool copied = std::ranges::any_of(p.targets, &Target::copied);  // from the cache: streaming would pass it by
    const bool stream = streams(p.stored_bytes) && !in_place && !copied;
    const FusedCall call{p, loads, stores, parameters, &fault, stream, in_place && is_staged(p, loads, stores)};
    if (p.copy)
      copy_rows(call, *p.copy, threads);
    else
      p.space.columns ? run_columns(call, threads) : run_rows(call, threads);
  }
  if (fault.table >= 0) {
    const Table& t = p.kernel.tables[at(fault.table)];
    throw IndexError(out_of_bounds(t.function, fault.index, t.axis, t.positions));
  }
}

/// Each part's sums are 0 at first, and then go from row to row.
void FusedKernel::run_parts(const FusedCall& call, int threads) const {
  const FusedProgram& p = *program_;
  const std::size_t count = sums_->stores.size(), loads = sums_->first_load, tables = p.kernel.tables.size();
  parallel_for(sums_->parts, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<const std::byte*> from(call.loads, call.loads + loads);
    std::vector<std::byte*> to(call.stores, call.stores + p.kernel.stores.size());
    from.resize(loads + count);
    from.insert(from.end(), call.loads + loads, call.loads + loads + tables);
    for (std::int64_t part = begin; part < end; ++part) {
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t store = sums_->stores[i];
        const Operand& o = p.kernel.stores[store].to;
        const std::int64_t bytes = p.space.cols * static_cast<std::int64_t>(item_bytes(o.dtype));
        to[store] = call.stores[store] + part * bytes;
        from[loads + i] = to[store];
        std::memset(to[store] + o.offset * static_cast<std::int64_t>(item_bytes(o.dtype)), 0,
                    static_cast<std::size_t>(bytes));
      }
      FusedCall own = call;
      own.loads = from.data(), own.stores = to.data(), own.staged = true;  // sums lie where they are read
      run_rows_of(own, sums_->first_row(part, p.space.rows), sums_->first_row(part + 1, p.space.rows));
    }
  });
}

void FusedKernel::run_part(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                           bool stream) const {
  const FusedProgram& p = *program_;
  if (p.space.rows == 0 || p.space.cols == 0) return;
  const bool copied = std::ranges::any_of(p.targets, &Target::copied);
  const FusedCall call{p, loads, stores, parameters, nullptr, stream && !copied};
  p.space.columns ? run_columns(call, 1) : run_rows(call, 1);
}

const TileKernels& tile_kernels() {
#if defined(KFUSION_X86_LEVELS)
  const Isa level = isa();
  if (level == Isa::kAvx512) return avx512::kTileKernels;
  if (level == Isa::kAvx2) return avx2::kTileKernels;
#endif
  return baseline::kTileKernels;
}

}  // namespace kfusion::cpu
