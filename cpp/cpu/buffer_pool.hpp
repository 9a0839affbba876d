// Recycled host memory for large results and workspaces. Fresh pages cost several times the kernel that fills them
// (measured: 1.03 of the copy rate into recycled memory, 0.63 into fresh huge pages, 0.23 into fresh 4 KB pages; the
// threads fault them in parallel as they write, which no touching beforehand improved).
//
// At most a quarter of the memory that the process may use is kept for reuse. What was used last, up to an eighth, is
// simply kept; the rest is offered to the system, which takes it back when memory is short and not before. What nobody
// has used for some seconds is given back.
#pragma once
#include <chrono>
#include <cstddef>

namespace kfusion::cpu {

inline constexpr std::chrono::seconds kIdle{5};  ///< after which kept memory is given back

/// Results below this come from the array library's own allocator.
inline constexpr std::size_t kPooledBytes = 4u << 20;

/// Memory of at least `bytes`, 64-byte aligned; from 2 MB up 2 MB-aligned and advised to use huge pages.
/// Contents are undefined. Returns nullptr when there is no memory. Thread-safe, fork-safe.
void* pool_allocate(std::size_t bytes) noexcept;
void pool_free(void* p, std::size_t bytes) noexcept;  ///< `bytes` as given to pool_allocate

inline constexpr int kPoison = 0xAB;  ///< a byte: of any float dtype a small negative number

/// Fills working memory with kPoison first, so that tests see what is read before it is written.
void set_poisons_buffers(bool on) noexcept;
void poison_buffer(void* p, std::size_t bytes) noexcept;  ///< where that is on

struct PoolStats {
  std::size_t held_bytes;   ///< free memory kept for reuse
  std::size_t limit_bytes;  ///< the most it keeps
};
PoolStats pool_stats() noexcept;

/// Gives the kept memory back to the system; returns how many bytes.
std::size_t empty_cache() noexcept;

}  // namespace kfusion::cpu
