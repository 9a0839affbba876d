// Copies, reads, and what empties the caches before one is timed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kfusion::cpu {

/// The yardstick of a kernel that reads and writes a matrix once: a threaded, prefetching copy with non-temporal
/// stores where they pay.
void copy(void* to, const void* from, std::size_t bytes);

/// The yardstick of a kernel that reads much and writes little: the exclusive or of all whole words, threaded. Eight
/// pages are read in turn, from which memory brings some 15 % more than from one.
std::uint64_t read(const void* from, std::size_t bytes);

/// Reads and writes more than the last-level cache holds, so that what follows starts cold.
void flush_cache();

}  // namespace kfusion::cpu
