#include <algorithm>
#include <cstring>

#include "cpu/platform.hpp"
#include "cpu/relu_layernorm/relu_layernorm.hpp"
#include "cpu/row_job.hpp"

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
      kernels().stream_copy(target, source, n);
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
    std::byte* const p = buffer.data() + begin * kBlock;
    row_kernels(DType::kFloat32).relu({p, p, (end - begin) * kBlock / 4, false});  // in place: reads and dirties
  });
}

}  // namespace kfusion::cpu
