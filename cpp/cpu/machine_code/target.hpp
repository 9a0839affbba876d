// The machine that CPU kernels are generated for. What a kernel does by CPU is chosen by these facts, when its text is
// written: one build of kfusion serves every CPU.
#pragma once
#include <string>

namespace kfusion::cpu::ir {

struct TargetFacts {
  std::string triple, cpu, features;  ///< as LLVM names them
  int vector_bytes = 16;              ///< of a register
  bool avx512 = false;                ///< F, BW, CD, DQ and VL
  bool avx2 = false;                  ///< with FMA, BMI and F16C
  bool fma = false;                   ///< x * y + z of floats and doubles, rounded once
  bool neon = false;
};

/// This machine's.
const TargetFacts& host_facts();

}  // namespace kfusion::cpu::ir
