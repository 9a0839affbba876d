#include "cpu/buffer_pool.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "cpu/platform.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

struct Block {
  void* data;
  std::size_t bytes;
  bool offered = false;  // to the system, which takes it when it is short of memory
};

// Never destroyed: arrays of a Python process may outlive any static object.
struct Pool {
  ForkSafeMutex mutex;
  std::vector<Block> free;  // oldest first
  std::size_t held = 0;
  std::size_t limit = std::max(std::size_t{1} << 30, usable_memory() / 4);
};

Pool& pool() {
  static Pool* const instance = new Pool;
  return *instance;
}

/// Sizes are rounded up to an eighth of their power of two and to whole huge pages, so that a slightly different
/// shape finds its buffer again. 0: too large.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step = std::max(std::bit_floor(bytes) / 8, kHugePage);
  return bytes > SIZE_MAX - step ? 0 : (bytes + step - 1) / step * step;
}

bool from_malloc(std::size_t bytes) { return bytes < kHugePage; }

/// Offers the oldest blocks beyond half of the limit to the system. (Offering every block costs 2 us a huge page, a
/// third of the kernel that fills a 4 MB result.)
void offer_oldest(Pool& p) {
  std::size_t newer = p.held;
  for (Block& b : p.free) {
    if (newer <= p.limit / 2) return;
    if (!b.offered) offer_pages(b.data, b.bytes);
    b.offered = true;
    newer -= b.bytes;
  }
}

void* take(std::size_t bytes) {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  const auto found = std::find_if(p.free.rbegin(), p.free.rend(), [=](const Block& b) { return b.bytes == bytes; });
  if (found == p.free.rend()) return nullptr;
  void* const data = found->data;
  p.held -= bytes;
  p.free.erase(std::next(found).base());
  return data;
}

}  // namespace

void* pool_allocate(std::size_t bytes) noexcept {
  if (from_malloc(bytes)) return ::operator new(bytes, std::align_val_t{kAlignment}, std::nothrow);
  const std::size_t rounded = size_class(bytes);
  if (rounded == 0) return nullptr;
  if (void* kept = take(rounded)) return kept;
  if (void* fresh = map_pages(rounded)) return fresh;
  empty_cache();
  return map_pages(rounded);
}

void pool_free(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  if (from_malloc(bytes)) return ::operator delete(data, std::align_val_t{kAlignment});
  const std::size_t rounded = size_class(bytes);
  Pool& p = pool();
  {
    const std::lock_guard lock(p.mutex);
    if (rounded <= p.limit) {
      while (p.held + rounded > p.limit) {
        unmap_pages(p.free.front().data, p.free.front().bytes);
        p.held -= p.free.front().bytes;
        p.free.erase(p.free.begin());
      }
      try {
        p.free.push_back({data, rounded});
        p.held += rounded;
        offer_oldest(p);
        return;
      } catch (const std::bad_alloc&) {  // no room to note it: give it back
      }
    }
  }
  unmap_pages(data, rounded);
}

PoolStats pool_stats() noexcept {
  Pool& p = pool();
  const std::lock_guard lock(p.mutex);
  return {p.held, p.limit};
}

std::size_t empty_cache() noexcept {
  Pool& p = pool();
  std::vector<Block> blocks;
  {
    const std::lock_guard lock(p.mutex);
    blocks.swap(p.free);
    p.held = 0;
  }
  std::size_t bytes = 0;
  for (const Block& b : blocks) {
    unmap_pages(b.data, b.bytes);
    bytes += b.bytes;
  }
  return bytes;
}

}  // namespace kfusion::cpu
