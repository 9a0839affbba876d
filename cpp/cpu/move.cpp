#include "cpu/move.hpp"

#include <cstdint>
#include <cstring>

namespace kfusion::cpu {

void* move_bytes(void* to, const void* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t kPiece = 2048;
  constexpr std::uintptr_t kPage = 4096, kNear = 32;
  const std::uintptr_t ahead = reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from);
  // Only where they do not overlap; `ahead` wraps around for a target before the source. From the last piece to the
  // first: a load right behind a store to the same place of another page waits for it.
  if (bytes > kPiece && ahead % kPage - 1 < kNear - 1 && ahead >= bytes && 0 - ahead >= bytes) {
    for (std::size_t end = bytes; end > 0;) {
      const std::size_t begin = (end - 1) / kPiece * kPiece;
      std::memcpy(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin, end - begin);
      end = begin;
    }
    return to;
  }
#endif
  return std::memmove(to, from, bytes);
}

}  // namespace kfusion::cpu
