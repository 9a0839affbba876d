#include "cpu/machine_code/target.hpp"

#include <array>
#include <cstddef>

#include "cpu/isa.hpp"
#include "cpu/machine_code/platform.hpp"

namespace kfusion::cpu::ir {
namespace {

#if defined(__aarch64__)

/// Objects are ELF on macOS, too: the loader is ours, and functions of pointers are called alike.
TargetFacts facts_of_level(Isa) {
  return {"aarch64-unknown-linux-gnu", "generic", processor_features(), 16, false, false, /*fma=*/true, /*neon=*/true};
}

#else

/// Levels, not the CPU's own name: code is the same to 1 % in speed, and one cache on disk serves several machines.
TargetFacts facts_of_level(Isa level) {
  constexpr const char* kTriple = "x86_64-unknown-linux-gnu";
  switch (level) {
    case Isa::kAvx512:
      return {kTriple, "x86-64-v4", "", 64, true, true, true, false};
    case Isa::kAvx2:
      return {kTriple, "x86-64-v3", "", 32, false, true, true, false};
    case Isa::kBaseline:
      break;
  }
  return {kTriple, "x86-64", "", 16, false, false, false, false};
}

#endif

/// Never destroyed: kernels may run and be compiled until the process ends.
const auto& facts_of_levels = *new const std::array<TargetFacts, 3>{
    facts_of_level(Isa::kBaseline), facts_of_level(Isa::kAvx2), facts_of_level(Isa::kAvx512)};

}  // namespace

const TargetFacts& host_facts() { return facts_of_levels[static_cast<std::size_t>(isa())]; }

}  // namespace kfusion::cpu::ir
