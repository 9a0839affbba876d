#include "cpu/openmp.hpp"

#include <atomic>

#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

thread_local ParallelRegion current_region = nullptr;

/// Registered when this library is loaded, before anybody can fork.
std::atomic<bool> is_forked{false};
const bool watched [[maybe_unused]] = [] {
  in_forked_child([] { is_forked.store(true); });
  return true;
}();

/// Finds it by the name that GCC's, LLVM's and Intel's runtimes have for it, in whatever torch was linked with.
ParallelRegion find_in_torch() {
  void* const torch = loaded_library("libtorch_cpu.so");
  return torch ? reinterpret_cast<ParallelRegion>(find_symbol(torch, "GOMP_parallel")) : nullptr;
}

/// Looked up once torch is there, by no static variable (see vector_libm.cpp).
ParallelRegion of_torch() {
  static std::atomic<ParallelRegion> known{nullptr};
  if (is_forked.load(std::memory_order_relaxed)) return nullptr;
  ParallelRegion region = known.load(std::memory_order_acquire);
  if (region) return region;
  const NoFork whole;
  region = find_in_torch();
  known.store(region, std::memory_order_release);
  return region;
}

}  // namespace

OnTorchThreads::OnTorchThreads(bool on) : before_(current_region) { current_region = on ? of_torch() : nullptr; }
OnTorchThreads::~OnTorchThreads() { current_region = before_; }

ParallelRegion parallel_region() { return current_region; }

}  // namespace kfusion::cpu
