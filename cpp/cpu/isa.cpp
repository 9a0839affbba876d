#include "cpu/isa.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "kfusion/error.hpp"

namespace kfusion::cpu {
namespace {

bool available(Isa level) {
#if defined(__x86_64__)
  // Flag by flag: older clang does not know "x86-64-v4". These checks include that the system saves the registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
  if (level == Isa::kAvx2) return avx2;
  if (level == Isa::kAvx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#endif
  return level == Isa::kBaseline;
}

Isa parse(const std::string& wanted, const char* who) {
  const auto levels = available_isas();
  const auto found = std::find_if(levels.begin(), levels.end(), [&](Isa i) { return wanted == name(i); });
  if (found != levels.end()) return *found;
  std::string choices;
  for (Isa i : levels) choices += (choices.empty() ? "" : ", ") + std::string(name(i));
  throw ValueError(std::string(who) + " must be one of " + choices + " on this CPU, got '" + wanted + "'");
}

constexpr int kUnknown = -1;
std::atomic<int> current_isa{kUnknown};  // no static variable of a function: see least_streamed in job.cpp

Isa from_environment() {
  const char* wanted = std::getenv("KFUSION_ISA");
  return wanted != nullptr && *wanted != '\0' ? parse(wanted, "KFUSION_ISA") : available_isas().back();
}

}  // namespace

Isa isa() {
  int level = current_isa.load(std::memory_order_relaxed);
  if (level != kUnknown) return static_cast<Isa>(level);
  const auto fresh = static_cast<int>(from_environment());
  return static_cast<Isa>(current_isa.compare_exchange_strong(level, fresh) ? fresh : level);
}

bool is_of_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

const char* name(Isa level) { return level == Isa::kAvx512 ? "avx512" : level == Isa::kAvx2 ? "avx2" : "baseline"; }

std::vector<Isa> available_isas() {
  std::vector<Isa> levels;
  for (Isa level : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512})
    if (available(level)) levels.push_back(level);
  return levels;
}

void set_isa(const std::string& wanted) { current_isa.store(static_cast<int>(parse(wanted, "kfusion.set_isa: name"))); }

}  // namespace kfusion::cpu
