// Runs the loops of a kernel plainly, one step after the other over all elements: what the CPU does where no code can
// be compiled for it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::reference {

/// A Kernel ready to run: as cpu::LoopKernel (cpu/loops/loop_kernel.hpp), which says what the functions do, but by the
/// caller's thread. Intermediate values of up to some 10^5 elements are in memory at once, or of one row.
class InterpretedKernel {
 public:
  explicit InterpretedKernel(const Kernel& k) : kernel_(k) {}

  void run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const;
  void run_part(const std::byte* const* loads, std::byte* const* stores, const double* parameters, bool) const {
    run(loads, stores, parameters);
  }
  void run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters, std::int64_t begin,
                 std::int64_t end) const;
  std::int64_t work(std::int64_t elements) const { return elements; }

 private:
  Kernel kernel_;
};

}  // namespace kfusion::reference
