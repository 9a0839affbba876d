// Which instruction set the CPU's generated kernels use: a level of x86-64, chosen at run time.
#pragma once
#include <string>
#include <vector>

namespace kfusion::cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

/// The level in use: the best that this CPU has, or KFUSION_ISA=baseline|avx2|avx512.
Isa isa();
const char* name(Isa);

/// The levels that this CPU has, lowest first.
std::vector<Isa> available_isas();

/// Whether the CPU is Intel's.
bool is_of_intel();

/// Chooses a level for the whole process (tests run every level). Throws ValueError for one that is not available.
void set_isa(const std::string& name);

}  // namespace kfusion::cpu
