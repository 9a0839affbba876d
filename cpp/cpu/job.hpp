// What a job's size decides: how many threads it is worth, and whether its results are stored past the caches.
#pragma once
#include <cstdint>

namespace kfusion::cpu {

/// Threads that a job is worth that takes as long as moving `bytes` bytes within the caches: several where they save
/// more than it takes until workers begin. To be asked once a job.
int threads_for(std::int64_t bytes);

/// What threads_for() says where at most so many threads may be used and workers begin after `delay_us`.
int threads_worth(std::int64_t bytes, int most, double delay_us);

/// Bytes that a job moves within the caches in the time of so many operations at the peak of a core (op_cost.cpp).
std::int64_t bytes_for_flops(double flops);

/// While it lives, this thread's results are those of a forward or backward pass: before anybody reads them, the other
/// arrays of both passes go through the cache.
class InPasses {
 public:
  explicit InPasses(bool on);
  ~InPasses();
  InPasses(const InPasses&) = delete;
  InPasses& operator=(const InPasses&) = delete;

 private:
  bool before_;
};

/// Whether results of `bytes` bytes in all are stored past the caches, by a job that moves `moved` bytes.
bool streams(std::int64_t bytes, std::int64_t moved = 0);

}  // namespace kfusion::cpu
