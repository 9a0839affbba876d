#include "cpu/machine_code/vector_libm.hpp"

#include <atomic>
#include <string>

#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

/// Names by the vector function ABI for x86-64: the instruction set's letter, lanes, a v for each argument.
VectorLibm look_up([[maybe_unused]] const std::string& isa_and_lanes) {
#if defined(__x86_64__)
  const auto find = [&, library = open_library("libmvec.so.1")](const char* arguments, const char* name) {
    if (library == nullptr) return static_cast<void (*)()>(nullptr);
    const std::string symbol = "_ZGV" + isa_and_lanes + arguments + "_" + name;
    return reinterpret_cast<void (*)()>(find_symbol(library, symbol.c_str()));
  };
  return {find("v", "acos"),  find("v", "acosh"), find("v", "asin"),   find("v", "asinh"),  find("v", "atan"),
          find("v", "atanh"), find("v", "cos"),   find("v", "cosh"),   find("v", "erf"),    find("v", "sin"),
          find("v", "sinh"),  find("v", "tan"),   find("vv", "atan2"), find("vv", "hypot"), find("vv", "pow")};
#else
  return {};
#endif
}

std::atomic<bool> in_use{true};
constexpr VectorLibm kNone = {};

/// Looked up when it is first needed, by no static variable: a child of fork() would wait for ever for one that another
/// thread was about to make.
const VectorLibm& found(std::atomic<const VectorLibm*>& table, const char* isa_and_lanes) {
  const VectorLibm* there = table.load(std::memory_order_acquire);
  if (there != nullptr) return *there;
  const NoFork whole;
  const auto* const mine = new VectorLibm(look_up(isa_and_lanes));
  if (table.compare_exchange_strong(there, mine, std::memory_order_acq_rel)) return *mine;
  delete mine;  // another thread was first
  return *there;
}

std::atomic<const VectorLibm*> wide, medium, narrow;  // kept until the process ends

}  // namespace

void use_vector_libm(bool on) { in_use.store(on, std::memory_order_relaxed); }

const VectorLibm& vector_libm(int vector_bytes) {
  return in_use.load(std::memory_order_relaxed) ? vector_libm_of_system(vector_bytes) : kNone;
}

const VectorLibm& vector_libm_of_system(int vector_bytes) {
  return vector_bytes == 64 ? found(wide, "eN8") : vector_bytes == 32 ? found(medium, "dN4") : found(narrow, "bN2");
}

}  // namespace kfusion::cpu
