// Host memory: from the buffer pool, which gives back what it keeps by itself.
#include <cstring>
#include <new>

#include "cpu/buffer_pool.hpp"
#include "runtime/memory.hpp"

namespace kfusion {
namespace {

void* allocate_on_host(std::size_t bytes, int, Stream) {
  void* const p = bytes > 0 ? cpu::pool_allocate(bytes) : nullptr;
  if (bytes > 0 && !p) throw std::bad_alloc();
  return p;
}

}  // namespace

constinit const Memory host_memory = {
    .has_streams = false,
    .vector_bytes = 1,
    .require = [](int) {},
    .allocate = &allocate_on_host,
    .deallocate = [](void* p, std::size_t bytes, int, Stream) { cpu::pool_free(p, bytes); },
    .deallocate_array = [](void* p, std::size_t bytes, int, bool) { cpu::pool_free(p, bytes); },
    .give_back = []() -> std::size_t { return 0; },
    .copy = [](void* to, const void* from, std::size_t bytes, int, Stream) { std::memcpy(to, from, bytes); },
    .fill = [](void* p, std::size_t bytes, int, Stream, int value) { std::memset(p, value, bytes); },
    .wait = [](Stream, Stream, int) {},
    .synchronize = [](int, Stream) {},
};

}  // namespace kfusion
