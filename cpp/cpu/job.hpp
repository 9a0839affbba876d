// What a job's size decides: how many threads it is worth, and whether its results are stored past the caches.
#pragma once
#include <cstdint>

namespace kfusion::cpu {

/// Threads that a job moving `bytes` bytes is worth: two win from about 256 KB if they are awake, else from 1.5 MB. To
/// be asked once a job.
int threads_for(std::int64_t bytes);

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
