// A kernel of loops on the CPU: generated code, or the interpreter, which needs no compiler at run time.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "cpu/codegen/generated.hpp"
#include "cpu/loops/loops_by.hpp"
#include "kfusion/reference/interpreted_kernel.hpp"

namespace kfusion::cpu {

/// How many kernels were left to the interpreter although loops are generated, by reason.
std::map<std::string, std::int64_t> left_to_interpreter();

/// A Kernel made ready to run. Its executor and the instruction set are those in use when it is made.
class LoopKernel {
 public:
  /// Throws std::logic_error for a kernel of a kind that is no loop nest (a product).
  explicit LoopKernel(const Kernel& k);

  /// Computes every store. `loads` and `stores`: the address of element 0 of each operand's array, in the order of
  /// Kernel::loads (then Kernel::tables) and Kernel::stores, at any alignment; `parameters`: values for
  /// Constant::parameter.
  ///
  /// A pointwise kernel's store may lie where a load does, element for element; else they must not overlap.
  /// Thread-safe. Results depend on shapes alone, not on the number of threads. Throws std::bad_alloc, what compiling
  /// throws, and IndexError for an index out of bounds: stores then hold no results.
  void run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const {
    std::visit([&](const auto& k) { k.run(loads, stores, parameters); }, kernel_);
  }
  /// Does so on the caller's thread alone, for a kernel without tables that is a part of a larger job. `stream`: its
  /// stores go past the caches.
  void run_part(const std::byte* const* loads, std::byte* const* stores, const double* parameters, bool stream) const {
    std::visit([&](const auto& k) { k.run_part(loads, stores, parameters, stream); }, kernel_);
  }
  /// Takes the elements [begin, end) of an elementwise kernel of dense arrays, on the caller's thread alone.
  void run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters, std::int64_t begin,
                 std::int64_t end) const {
    std::visit([&](const auto& k) { k.run_range(loads, stores, parameters, begin, end); }, kernel_);
  }
  /// What run_part() and run_range() would compile when they first run: before threads share the job, so that none of
  /// them waits for Python. Throws what compiling throws.
  void compile(bool stream) const {
    if (const auto* generated = std::get_if<GeneratedKernel>(&kernel_)) generated->compile(stream);
  }
  /// What threads_for() is to be asked for one of whose axis so many elements are taken.
  std::int64_t work(std::int64_t elements) const {
    return std::visit([&](const auto& k) { return k.work(elements); }, kernel_);
  }

 private:
  std::variant<GeneratedKernel, reference::InterpretedKernel> kernel_;
};

}  // namespace kfusion::cpu
