#include "cpu/fused/fused.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "cpu/fused/rows_and_columns.hpp"
#include "cpu/isa.hpp"
#include "cpu/job.hpp"
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

}  // namespace

FusedKernel::FusedKernel(const Kernel& k) : program_(make_program(k)) {}
FusedKernel::FusedKernel(FusedKernel&&) noexcept = default;
FusedKernel& FusedKernel::operator=(FusedKernel&&) noexcept = default;
FusedKernel::~FusedKernel() = default;

void FusedKernel::run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const {
  const FusedProgram& p = *program_;
  if (p.space.rows == 0 || p.space.cols == 0) return;
  const bool in_place = is_in_place(p, loads, stores);
  const bool copied = std::ranges::any_of(p.targets, &Target::copied);  // from the cache, which streaming would pass by
  IndexFault fault;
  const FusedCall call{p,
                       loads,
                       stores,
                       parameters,
                       &fault,
                       streams(p.stored_bytes) && !in_place && !copied,
                       in_place && p.targets.size() > 1};
  const int threads = threads_for(p.work);
  p.space.columns ? run_columns(call, threads) : run_rows(call, threads);
  if (fault.table >= 0) {
    const Table& t = p.kernel.tables[at(fault.table)];
    throw IndexError(out_of_bounds(t.function, fault.index, t.axis, t.positions));
  }
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
