// A kernel of loops on the CPU, by the executor that is chosen for it: generated code, steps that were compiled when
// kfusion was built (fused/fused.hpp), or the interpreter, which needs neither.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <variant>

#include "cpu/codegen/generated.hpp"
#include "cpu/fused/fused.hpp"
#include "cpu/loops_by.hpp"
#include "kfusion/reference/interpreted_kernel.hpp"

namespace kfusion::cpu {

/// How many kernels were left to compiled steps since loops are generated, by reason.
std::map<std::string, std::int64_t> left_to_compiled();

class LoopKernel {
 public:
  explicit LoopKernel(const Kernel& k);

  void run(const std::byte* const* loads, std::byte* const* stores, const double* parameters) const {
    std::visit([&](const auto& k) { k.run(loads, stores, parameters); }, kernel_);
  }
  void run_range(const std::byte* const* loads, std::byte* const* stores, const double* parameters, std::int64_t begin,
                 std::int64_t end) const {
    std::visit([&](const auto& k) { k.run_range(loads, stores, parameters, begin, end); }, kernel_);
  }
  std::int64_t work(std::int64_t elements) const {
    return std::visit([&](const auto& k) { return k.work(elements); }, kernel_);
  }

 private:
  std::variant<FusedKernel, GeneratedKernel, reference::InterpretedKernel> kernel_;
};

}  // namespace kfusion::cpu
