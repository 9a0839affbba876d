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

/// What runs a kernel that is not generated, since nothing can be compiled here or since its loops are not written yet.
constexpr LoopsBy kWithoutCompiler = LoopsBy::kInterpreted, kNotGenerated = LoopsBy::kCompiled;

Left& left_kernels = *new Left;  // made when the library is loaded, before anybody can fork

void note_left(const std::string& why) {
  const std::lock_guard lock(left_kernels.mutex);
  ++left_kernels.by_reason[why];
}

LoopsBy executor_of(const Kernel& k) {
  if (loops_by() != LoopsBy::kGenerated) return loops_by();
  if (!can_compile()) return kWithoutCompiler;
  const std::string why = why_not_generated(k);
  if (why.empty()) return LoopsBy::kGenerated;
  note_left(why);
  return kNotGenerated;
}

std::variant<FusedKernel, GeneratedKernel, reference::InterpretedKernel> made(const Kernel& k) {
  switch (executor_of(k)) {
    case LoopsBy::kGenerated:
      return GeneratedKernel(k);
    case LoopsBy::kInterpreted:
      return reference::InterpretedKernel(k);
    case LoopsBy::kCompiled:
      break;
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
