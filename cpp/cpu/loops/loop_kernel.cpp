#include "cpu/loops/loop_kernel.hpp"

#include <mutex>

#include "cpu/machine_code/machine_code.hpp"
#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

struct Left {
  ForkSafeMutex mutex;
  std::map<std::string, std::int64_t> by_reason;
};

Left& left_kernels = *new Left;  // made when the library is loaded, before anybody can fork

void note_left(const std::string& why) {
  const std::lock_guard lock(left_kernels.mutex);
  ++left_kernels.by_reason[why];
}

bool is_generated(const Kernel& k) {
  if (loops_by() != LoopsBy::kGenerated || !can_compile()) return false;
  const std::string why = why_not_generated(k);
  if (!why.empty()) note_left(why);
  return why.empty();
}

std::variant<GeneratedKernel, reference::InterpretedKernel> made(const Kernel& k) {
  if (is_generated(k)) return GeneratedKernel(k);
  return reference::InterpretedKernel(k);
}

}  // namespace

std::map<std::string, std::int64_t> left_to_interpreter() {
  const std::lock_guard lock(left_kernels.mutex);
  return left_kernels.by_reason;
}

LoopKernel::LoopKernel(const Kernel& k) : kernel_(made(k)) {}

}  // namespace kfusion::cpu
