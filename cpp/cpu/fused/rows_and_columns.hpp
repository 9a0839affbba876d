// The two ways in which a fused kernel's rows lie (see Space).
#pragma once
#include "cpu/fused/worker.hpp"

namespace kfusion::cpu {

void run_rows(const FusedCall& call, int threads);
void run_columns(const FusedCall& call, int threads);

}  // namespace kfusion::cpu
