// What a job's size decides: how many threads it is worth, and whether its results are stored past the caches.
#pragma once
#include <cstdint>

namespace kfusion::cpu {

/// Threads that a job moving `bytes` bytes is worth: two win from about 256 KB if they are awake, else from 1.5 MB. To
/// be asked once a job.
int threads_for(std::int64_t bytes);

/// Whether results of `bytes` bytes in all are stored past the caches, by a job that moves `moved` bytes.
bool streams(std::int64_t bytes, std::int64_t moved = 0);

}  // namespace kfusion::cpu
