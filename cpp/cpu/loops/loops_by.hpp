// Whether loops on the CPU are compiled or interpreted: a choice for the process, beside the instruction set (isa.hpp).
#pragma once
#include <cstdint>
#include <string>

namespace kfusion::cpu {

enum class LoopsBy : std::uint8_t { kGenerated, kInterpreted };

/// KFUSION_CPU=generated|interpreted, or what was chosen since. Kernels that are ready to run stay with what
/// made them: who shares them has to compare it.
LoopsBy loops_by();
const char* name(LoopsBy);

/// Throws ValueError for a name of none.
void set_loops_by(const std::string& name);

}  // namespace kfusion::cpu
