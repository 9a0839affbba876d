// Stores past the caches, and their end.
#pragma once
#include <cstddef>

namespace kfusion::cpu {

/// Copies as memcpy does, by stores past the caches but for parts of lines at the ends.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes);

/// Ends a thread's part of a job that stores past the caches: what it stored is visible before what follows.
void stream_fence();

}  // namespace kfusion::cpu
