// Copies, and what empties the caches before one is timed.
#pragma once
#include <cstddef>

namespace kfusion::cpu {

/// The yardstick of a kernel that reads and writes a matrix once: a threaded, prefetching copy with non-temporal
/// stores where they pay.
void copy(void* to, const void* from, std::size_t bytes);

/// Reads and writes more than the last-level cache holds, so that what follows starts cold.
void flush_cache();

}  // namespace kfusion::cpu
