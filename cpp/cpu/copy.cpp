#include "cpu/copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/buffer.hpp"
#include "cpu/job.hpp"
#include "cpu/platform.hpp"
#include "cpu/stream.hpp"
#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {

void copy(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kBlock = 64 * 1024;
  const auto size = static_cast<std::int64_t>(bytes);
  const bool stream = to != from && streams(size);
  parallel_for((size + kBlock - 1) / kBlock, threads_for(2 * size), [&](std::int64_t begin, std::int64_t end) {
    const std::size_t first = begin * kBlock, n = std::min(end * kBlock, bytes) - first;
    std::byte* const target = static_cast<std::byte*>(to) + first;
    const std::byte* const source = static_cast<const std::byte*>(from) + first;
    if (stream) {
      stream_copy(target, source, n);
    } else {
      std::memmove(target, source, n);
    }
  });
}

void flush_cache() {
  const std::size_t bytes = 2 * last_level_cache();
  const Buffer buffer(bytes);
  constexpr std::int64_t kBlock = 64 * 1024;
  parallel_for(static_cast<std::int64_t>(bytes) / kBlock, num_threads(), [&](std::int64_t begin, std::int64_t end) {
    auto* const p = reinterpret_cast<volatile unsigned char*>(buffer.data());
    for (std::int64_t i = begin * kBlock; i < end * kBlock; i += 64) p[i] = static_cast<unsigned char>(p[i] + 1);
  });
}

}  // namespace kfusion::cpu
