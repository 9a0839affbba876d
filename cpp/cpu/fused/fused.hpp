// Runs a kernel of a plan on the CPU: the register-tile executor.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "kfusion/lower/kernel.hpp"

namespace kfusion::cpu {

class FusedProgram;

/// A Kernel made ready to run. The program is chosen for the instruction set in use when it is made.
class FusedKernel {
 public:
  /// Throws std::logic_error for a kernel of a kind that is no loop nest (a product).
  explicit FusedKernel(const Kernel& k);
  FusedKernel(FusedKernel&&) noexcept;
  FusedKernel& operator=(FusedKernel&&) noexcept;
  ~FusedKernel();

  /// Computes every store. `loads` and `stores`: the address of element 0 of each operand's array, in the order of
  /// Kernel::loads (then Kernel::tables) and Kernel::stores, at any alignment; `parameters`: values for
  /// Constant::parameter.
  ///
  /// A pointwise kernel's store may lie where a load does, element for element; else they must not overlap.
  /// Thread-safe. Results depend on shapes alone, not on the number of threads. Throws std::bad_alloc,
  /// and IndexError for an index out of bounds: stores then hold no results.
  void run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const;

  /// The same on the caller's thread alone, for a kernel without tables that is a part of a larger job. `stream`: its
  /// stores go past the caches.
  void run_part(const std::byte* const* loads, std::byte* const* stores, const double* parameters, bool stream) const;

  /// Of an elementwise kernel of dense arrays, the elements [begin, end) on the caller's thread alone.
  void run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters, std::int64_t begin,
                 std::int64_t end) const;
  /// What threads_for() is to be asked for one of whose axis so many elements are taken.
  std::int64_t work(std::int64_t elements) const;

 private:
  std::unique_ptr<const FusedProgram> program_;
};

}  // namespace kfusion::cpu
