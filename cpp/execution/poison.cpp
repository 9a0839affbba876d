#include "execution/poison.hpp"

#include <atomic>
#include <cstring>

namespace kfusion {
namespace {

constexpr int kPattern = 0xAB;  // of any float dtype a small negative number
std::atomic<bool> poisoned = false;

}  // namespace

bool poisons_memory() noexcept { return poisoned.load(std::memory_order_relaxed); }
void set_poisons_memory(bool on) noexcept { poisoned = on; }

void poison(std::byte* p, std::size_t bytes, Place place, cuda::Stream stream) {
  if (!poisons_memory() || bytes == 0) return;
  if (place.cuda)
    cuda::clear(p, bytes, place.index, stream, kPattern);
  else
    std::memset(p, kPattern, bytes);
}

}  // namespace kfusion
