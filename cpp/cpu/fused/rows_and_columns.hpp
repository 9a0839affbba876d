// The two ways in which a fused kernel's rows lie (see Space).
#pragma once
#include "cpu/fused/worker.hpp"

namespace kfusion::cpu {

void run_rows(const FusedCall& call, int threads);
/// Rows [begin, end), one after the other, on the caller's thread.
void run_rows_of(const FusedCall& call, std::int64_t begin, std::int64_t end);
void run_columns(const FusedCall& call, int threads);

}  // namespace kfusion::cpu
