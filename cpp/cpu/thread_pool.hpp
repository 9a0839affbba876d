// A small pool of std::threads of our own: OpenMP's runtime hangs in a forked child, this one is rebuilt there.
#pragma once
#include <cstdint>

namespace kfusion::cpu {

/// Threads that a computation may use, the caller included. Starts at KFUSION_NUM_THREADS, else at the number of
/// cores that this process may run on. `set` throws ValueError for n < 1.
int num_threads();
void set_num_threads(int n);

/// Whether that many workers are awake, or jobs so brief as the caller's follow each other so closely that it pays to
/// wake them. To be asked once for each such job.
bool workers_are_near(int workers);

using Body = void (*)(void* context, std::int64_t begin, std::int64_t end);
inline constexpr std::int64_t kManyUnits = 64;
void parallel_for(std::int64_t count, int threads, Body body, void* context, std::int64_t many);

/// Calls body(begin, end) over a partition of [0, count) on up to `threads` threads (never more than num_threads())
/// and returns when all is done. The first exception thrown by a part is rethrown here. Calls from several threads
/// at once, or from inside a body, are allowed: what finds the pool busy runs on its own thread. `many`: of so many
/// units for each thread the partition is finer, so that a thread that comes late takes less.
template <class F>
void parallel_for(std::int64_t count, int threads, F&& body, std::int64_t many = kManyUnits) {
  const auto call = [](void* f, std::int64_t b, std::int64_t e) { (*static_cast<F*>(f))(b, e); };
  parallel_for(count, threads, call, &body, many);
}

}  // namespace kfusion::cpu
