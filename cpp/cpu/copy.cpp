#include "cpu/copy.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "cpu/buffer.hpp"
#include "cpu/job.hpp"
#include "cpu/move.hpp"
#include "cpu/platform.hpp"
#include "cpu/stream.hpp"
#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {
namespace {

using Line = std::array<std::uint64_t, 8>;

void combine(Line& all, const std::byte* from) {
  Line line;
  std::memcpy(line.data(), from, sizeof line);
  for (std::size_t i = 0; i < line.size(); ++i) all[i] ^= line[i];
}

}  // namespace

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
      move_bytes(target, source, n);
    }
  });
}

std::uint64_t read(const void* from, std::size_t bytes) {
  constexpr std::size_t kPage = 4096, kBlock = 8 * kPage;
  const auto* const source = static_cast<const std::byte*>(from);
  const std::size_t blocks = bytes / kBlock;
  std::atomic<std::uint64_t> result = 0;
  parallel_for(static_cast<std::int64_t>(blocks), threads_for(static_cast<std::int64_t>(bytes)),
               [&](std::int64_t begin, std::int64_t end) {
                 Line all{};
                 for (std::int64_t b = begin; b < end; ++b)
                   for (std::size_t line = 0; line < kPage; line += sizeof all)
                     for (std::size_t page = 0; page < kBlock; page += kPage)
                       combine(all, source + static_cast<std::size_t>(b) * kBlock + page + line);
                 std::uint64_t word = 0;
                 for (const std::uint64_t w : all) word ^= w;
                 result ^= word;
               });
  std::uint64_t word = result;
  for (std::size_t i = blocks * kBlock; i + sizeof word <= bytes; i += sizeof word) {
    std::uint64_t next;
    std::memcpy(&next, source + i, sizeof next);
    word ^= next;
  }
  return word;
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
