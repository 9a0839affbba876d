#include "cpu/loops/loops_by.hpp"

#include <atomic>
#include <cstdlib>

#include "kfusion/error.hpp"

namespace kfusion::cpu {
namespace {

constexpr LoopsBy kDefaultLoops = LoopsBy::kGenerated;
constexpr int kNotChosen = -1;
std::atomic<int> chosen_loops{kNotChosen};  // no static variable of a function: see least_streamed in job.cpp

LoopsBy parse_loops(const std::string& wanted, const char* who) {
  for (const LoopsBy by : {LoopsBy::kGenerated, LoopsBy::kInterpreted})
    if (wanted == name(by)) return by;
  throw ValueError(std::string(who) + " must be generated or interpreted, got '" + wanted + "'");
}

LoopsBy loops_of_environment() {
  const char* wanted = std::getenv("KFUSION_CPU");
  return wanted != nullptr && *wanted != '\0' ? parse_loops(wanted, "KFUSION_CPU") : kDefaultLoops;
}

}  // namespace

LoopsBy loops_by() {
  int now = chosen_loops.load(std::memory_order_relaxed);
  if (now != kNotChosen) return static_cast<LoopsBy>(now);
  const auto fresh = static_cast<int>(loops_of_environment());
  return static_cast<LoopsBy>(chosen_loops.compare_exchange_strong(now, fresh) ? fresh : now);
}

const char* name(LoopsBy by) { return by == LoopsBy::kGenerated ? "generated" : "interpreted"; }

void set_loops_by(const std::string& wanted) {
  chosen_loops.store(static_cast<int>(parse_loops(wanted, "kfusion.set_loops_by: name")));
}

}  // namespace kfusion::cpu
