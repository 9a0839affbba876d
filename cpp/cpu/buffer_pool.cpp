#include "cpu/buffer_pool.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

using Clock = std::chrono::steady_clock;

struct Block {
  void* data;
  std::size_t bytes;
  Clock::time_point since;  // when it was last used
  bool offered = false;     // to the system, which takes it when it is short of memory
};

struct BufferPool {
  ForkSafeMutex mutex;
  std::vector<Block> free;  // oldest first
  std::size_t held = 0;
  std::size_t limit = usable_memory() / 4;
  bool is_watched = false;  // a thread waits for blocks to be idle
};

// Made when the library is loaded, before anybody can fork. Never destroyed: arrays of a Python process may outlive any
// static object.
BufferPool& pool = *[] {
  in_forked_child([] { pool.is_watched = false; });  // threads stay in the parent
  return new BufferPool;
}();

/// Sizes are rounded up to an eighth of their power of two and to whole huge pages, so that a slightly different
/// shape finds its buffer again. 0: too large.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step = std::max(std::bit_floor(bytes) / 8, kHugePage);
  return bytes > SIZE_MAX - step ? 0 : (bytes + step - 1) / step * step;
}

bool from_malloc(std::size_t bytes) { return bytes < kHugePage; }

/// Offers the oldest blocks beyond half of the limit to the system. (Offering every block costs 2 us a huge page, a
/// third of the kernel that fills a 4 MB result.)
void offer_oldest() {
  std::size_t newer = pool.held;
  for (Block& b : pool.free) {
    if (newer <= pool.limit / 2) return;
    if (!b.offered) offer_pages(b.data, b.bytes);
    b.offered = true;
    newer -= b.bytes;
  }
}

void drop_oldest() {
  unmap_pages(pool.free.front().data, pool.free.front().bytes);
  pool.held -= pool.free.front().bytes;
  pool.free.erase(pool.free.begin());
}

/// Gives back what is idle, until nothing is kept. Blocks that are used again and again are never idle.
void drop_idle() {
  std::unique_lock lock(pool.mutex);
  while (!pool.free.empty()) {
    const Clock::time_point due = pool.free.front().since + kIdle;
    if (due <= Clock::now()) {
      drop_oldest();
      continue;
    }
    lock.unlock();
    std::this_thread::sleep_until(due);
    lock.lock();
  }
  pool.is_watched = false;
}

/// By a thread that lives while there is anything to give back, and that no exit waits for.
void watch() {
  if (pool.is_watched) return;
  try {
    without_signals([] { std::thread(drop_idle).detach(); });
    pool.is_watched = true;
  } catch (...) {  // no more threads: the next block that comes tries again
  }
}

void* take(std::size_t bytes) {
  const std::lock_guard lock(pool.mutex);
  const auto found =
      std::find_if(pool.free.rbegin(), pool.free.rend(), [=](const Block& b) { return b.bytes == bytes; });
  if (found == pool.free.rend()) return nullptr;
  void* const data = found->data;
  pool.held -= bytes;
  pool.free.erase(std::next(found).base());
  return data;
}

void* allocate(std::size_t bytes) {
  if (from_malloc(bytes)) return ::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow);
  const std::size_t rounded = size_class(bytes);
  if (rounded == 0) return nullptr;
  void* const kept = take(rounded);
  return kept ? kept : map_pages(rounded);
}

std::atomic<bool> poisons = false;

}  // namespace

void set_poisons_buffers(bool on) noexcept { poisons = on; }

void poison_buffer(void* p, std::size_t bytes) noexcept {
  if (poisons.load(std::memory_order_relaxed) && bytes > 0) std::memset(p, kPoison, bytes);
}

void* pool_allocate(std::size_t bytes) noexcept {
  if (void* p = allocate(bytes)) return p;
  return empty_cache() > 0 ? allocate(bytes) : nullptr;
}

void pool_free(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  if (from_malloc(bytes)) return ::operator delete(data, std::align_val_t{kAlignment});
  const std::size_t rounded = size_class(bytes);
  {
    const std::lock_guard lock(pool.mutex);
    if (rounded <= pool.limit) {
      while (pool.held + rounded > pool.limit) drop_oldest();
      try {
        pool.free.push_back({data, rounded, Clock::now()});
        pool.held += rounded;
        offer_oldest();
        watch();
        return;
      } catch (const std::bad_alloc&) {  // no room to note it: give it back
      }
    }
  }
  unmap_pages(data, rounded);
}

PoolStats pool_stats() noexcept {
  const std::lock_guard lock(pool.mutex);
  return {pool.held, pool.limit};
}

std::size_t empty_cache() noexcept {
  std::vector<Block> blocks;
  {
    const std::lock_guard lock(pool.mutex);
    blocks.swap(pool.free);
    pool.held = 0;
  }
  std::size_t bytes = 0;
  for (const Block& b : blocks) {
    unmap_pages(b.data, b.bytes);
    bytes += b.bytes;
  }
  return bytes;
}

}  // namespace kfusion::cpu
