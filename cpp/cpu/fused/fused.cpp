#include "cpu/fused/fused.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cpu/fused/row_copies.hpp"
#include "cpu/fused/rows_and_columns.hpp"
#include "cpu/fused/side_by_side.hpp"
#include "cpu/fused/worker.hpp"
#include "cpu/isa.hpp"
#include "cpu/job.hpp"

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
  const std::int64_t together = rows_side_by_side(k);
  const Kernel made = together > 1 ? side_by_side(k, together) : k;
  auto program = std::make_unique<const FusedProgram>(made, false, together);
  return program->takes_rows() ? std::make_unique<const FusedProgram>(made, true, together) : std::move(program);
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

FusedKernel::FusedKernel(const Kernel& k) : program_(make_program(k)) {}
FusedKernel::FusedKernel(FusedKernel&&) noexcept = default;
FusedKernel& FusedKernel::operator=(FusedKernel&&) noexcept = default;
FusedKernel::~FusedKernel() = default;

void FusedKernel::run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const {
  const FusedProgram& p = *program_;
  if (p.space.rows == 0 || p.space.cols == 0) return;
  const bool in_place = is_in_place(p, loads, stores);
  IndexFault fault;
  const FusedCall call{p,
                       loads,
                       stores,
                       parameters,
                       &fault,
                       streams(p.stored_bytes, p.bytes) && !in_place && p.may_stream,
                       in_place && is_staged(p, loads, stores)};
  const int threads = threads_for(p.work);
  if (p.copy)
    copy_rows(call, *p.copy, threads);
  else
    p.space.columns ? run_columns(call, threads) : run_rows(call, threads);
  fault.check(p.kernel.tables);
}

void FusedKernel::run_part(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                           bool stream) const {
  const FusedProgram& p = *program_;
  if (p.space.rows == 0 || p.space.cols == 0) return;
  const FusedCall call{p, loads, stores, parameters, nullptr, stream && p.may_stream};
  p.space.columns ? run_columns(call, 1) : run_rows(call, 1);
}

void FusedKernel::run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters,
                            std::int64_t begin, std::int64_t end) const {
  const FusedProgram& p = *program_;
  const bool staged = is_in_place(p, loads, stores) && is_staged(p, loads, stores);
  const FusedCall call{p, loads, stores, parameters, nullptr, false, staged};
  Worker w(call);
  w.take_rows();
  w.run(p.sweeps[0], begin, end);
}

std::int64_t FusedKernel::work(std::int64_t elements) const {
  const auto part = static_cast<double>(elements) / static_cast<double>(program_->space.cols);
  return static_cast<std::int64_t>(static_cast<double>(program_->work) * part);
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
