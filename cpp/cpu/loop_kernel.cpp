#include "cpu/loop_kernel.hpp"

#include <mutex>

#include "cpu/codegen/machine_code.hpp"

namespace kfusion::cpu {
namespace {

struct Left {
  std::mutex mutex;
  std::map<std::string, std::int64_t> by_reason;
};
Left& left() {
  static Left& all = *new Left;
  return all;
}

std::variant<FusedKernel, GeneratedKernel, reference::InterpretedKernel> made(const Kernel& k) {
  if (loops_by() == LoopsBy::kInterpreted) return reference::InterpretedKernel(k);
  if (loops_by() == LoopsBy::kCompiled) return FusedKernel(k);
  const std::string why = can_compile() ? why_not_generated(k) : "no compiler";
  if (why.empty()) return GeneratedKernel(k);
  {
    const std::lock_guard lock(left().mutex);
    ++left().by_reason[why];
  }
  return FusedKernel(k);
}

}  // namespace

std::map<std::string, std::int64_t> left_to_compiled() {
  const std::lock_guard lock(left().mutex);
  return left().by_reason;
}

LoopKernel::LoopKernel(const Kernel& k) : kernel_(made(k)) {}

}  // namespace kfusion::cpu
