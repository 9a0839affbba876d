#include "cpu/job.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/platform.hpp"
#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kBytesPerThread = 128 * 1024;
/// Less is done sooner by one thread than a worker that sleeps is woken, which takes some 30 us.
constexpr std::int64_t kBriefBytes = 3 << 19;

/// Negative: not known yet. No static variable of the function: a child of fork() would wait for ever for one that
/// another thread was about to make.
std::atomic<std::int64_t> least_streamed{-1};

thread_local bool in_passes = false;

}  // namespace

int threads_for(std::int64_t bytes) {
  if (bytes < 2 * kBytesPerThread) return 1;
  const int threads = static_cast<int>(std::min<std::int64_t>(bytes / kBytesPerThread, num_threads()));
  return bytes < kBriefBytes && threads > 1 && !workers_are_near(threads - 1) ? 1 : threads;
}

InPasses::InPasses(bool on) : before_(in_passes) { in_passes = on; }
InPasses::~InPasses() { in_passes = before_; }

bool streams(std::int64_t bytes, std::int64_t moved) {
  // A large cache is shared: of the 480 MB that a machine of two cores reported, results of 16 MB already found no
  // room.
  constexpr std::size_t kMost = 24 << 20;
  std::int64_t least = least_streamed.load(std::memory_order_relaxed);
  if (least < 0) {
    least = static_cast<std::int64_t>(std::min(last_level_cache() / 4 * 3, kMost));
    least_streamed.store(least, std::memory_order_relaxed);
  }
  // What is read besides leaves a result no room either: 16 MB of a gradient, made of 32 MB. Two passes count together:
  // softmax of 8192 x 256 floats and its gradient move 16 and 24 MB, and took one core 2.3 ms instead of 1.4.
  const std::int64_t most_moved = in_passes ? least / 3 * 2 : least / 3 * 5;
  return bytes >= least || (moved >= most_moved && bytes >= least / 3);
}

}  // namespace kfusion::cpu
