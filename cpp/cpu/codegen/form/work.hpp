// What a kernel takes one core.
#pragma once
#include <cstdint>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu::ir {

/// A kernel's work as a job's bytes (job.hpp): those that it moves, as many again for every few steps, and what its
/// costly functions take.
std::int64_t work_of(const Kernel& k);

}  // namespace kfusion::cpu::ir
