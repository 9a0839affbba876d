#include "cpu/job.hpp"

#include <algorithm>
#include <atomic>

#include "cpu/platform.hpp"
#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kBytesPerThread = 128 * 1024;
/// Of one core with AVX2, within its caches.
constexpr double kBytesPerUs = 64e3, kFlopsPerByte = 1.25;

/// Negative: not known yet. No static variable of the function: a child of fork() would wait for ever for one that
/// another thread was about to make.
std::atomic<std::int64_t> least_streamed{-1};

thread_local bool in_passes = false;

}  // namespace

int threads_worth(std::int64_t bytes, int most, double delay_us) {
  const auto threads = static_cast<int>(std::min<std::int64_t>(bytes / kBytesPerThread, most));
  if (threads < 2) return 1;
  const double alone_us = static_cast<double>(bytes) / kBytesPerUs;
  return alone_us - alone_us / threads > delay_us ? threads : 1;
}

int threads_for(std::int64_t bytes) {
  const int most = num_threads();
  if (const int threads = threads_worth(bytes, most, kMostWakeUs); threads > 1) return threads;
  const int threads = threads_worth(bytes, most, kHandOverUs);
  if (threads == 1) return 1;
  return threads_worth(bytes, most, worker_delay_us(threads - 1, static_cast<double>(bytes) / kBytesPerUs));
}

std::int64_t bytes_for_flops(double flops) { return static_cast<std::int64_t>(std::min(flops / kFlopsPerByte, 1e15)); }

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
