// Runs a kernel of a plan on the CPU by code that is generated for it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu {

/// Why a kernel is not generated, in a few words; empty where it is.
std::string why_not_generated(const Kernel& k);

/// A Kernel made ready to run, for the instruction set in use: as cpu::LoopKernel (cpu/loops/loop_kernel.hpp), which
/// says what the functions do. Its code is compiled, or read from the disk, when it is first run.
class GeneratedKernel {
 public:
  /// Takes a kernel for which why_not_generated() is empty.
  explicit GeneratedKernel(const Kernel& k);
  GeneratedKernel(GeneratedKernel&&) noexcept;
  GeneratedKernel& operator=(GeneratedKernel&&) noexcept;
  ~GeneratedKernel();

  void run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const;
  void run_part(const std::byte* const* loads, std::byte* const* stores, const double* parameters, bool stream) const;
  void run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters, std::int64_t begin,
                 std::int64_t end) const;
  void compile(bool stream) const;
  std::int64_t work(std::int64_t elements) const;

  /// The text in LLVM's language; that of stores past the caches for large arrays.
  std::string source() const;

 private:
  class Program;
  class Links;
  class WholeLinks;
  std::unique_ptr<const Program> program_;         ///< or
  std::unique_ptr<const Links> links_;             ///< of a long chain, or
  std::unique_ptr<const WholeLinks> whole_links_;  ///< of one that is long behind reductions
};

}  // namespace kfusion::cpu
