#include "cpu/loop_kernel.hpp"

#include <mutex>

#include "cpu/codegen/machine_code.hpp"
#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

struct Left {
  ForkSafeMutex mutex;
  std::map<std::string, std::int64_t> by_reason;
};

Left& left_kernels = *new Left;  // made when the library is loaded, before anybody can fork

std::variant<FusedKernel, GeneratedKernel, reference::InterpretedKernel> made(const Kernel& k) {
  if (loops_by() == LoopsBy::kInterpreted) return reference::InterpretedKernel(k);
  if (loops_by() == LoopsBy::kCompiled) return FusedKernel(k);
  const std::string why = can_compile() ? why_not_generated(k) : "no compiler";
  if (why.empty()) return GeneratedKernel(k);
  {
    const std::lock_guard lock(left_kernels.mutex);
    ++left_kernels.by_reason[why];
  }
  return FusedKernel(k);
}

}  // namespace

std::map<std::string, std::int64_t> left_to_compiled() {
  const std::lock_guard lock(left_kernels.mutex);
  return left_kernels.by_reason;
}

LoopKernel::LoopKernel(const Kernel& k) : kernel_(made(k)) {}

}  // namespace kfusion::cpu
