#include "runtime/poison.hpp"

#include <atomic>

namespace kfusion {
namespace {

constexpr int kByte = 0xAB;  // of any float dtype a small negative number
std::atomic<bool> poisoned = false;

}  // namespace

bool poisons_memory() noexcept { return poisoned.load(std::memory_order_relaxed); }
void set_poisons_memory(bool on) noexcept { poisoned = on; }

void poison(std::byte* p, std::size_t bytes, Place place, Stream stream) {
  if (poisons_memory() && bytes > 0) memory_of(place).fill(p, bytes, place.index, stream, kByte);
}

}  // namespace kfusion
