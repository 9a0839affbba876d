// Working memory of one call, from the buffer pool.
#pragma once
#include <cstddef>
#include <new>
#include <utility>

#include "cpu/buffer_pool.hpp"

namespace kfusion::cpu {

/// Owns `bytes` bytes, 64-byte aligned, contents undefined. Throws std::bad_alloc.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes) : data_(static_cast<std::byte*>(pool_allocate(bytes))), bytes_(bytes) {
    if (data_ == nullptr) throw std::bad_alloc();
    poison_buffer(data_, bytes);
  }
  Buffer(Buffer&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
  Buffer& operator=(Buffer&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~Buffer() { pool_free(data_, bytes_); }

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace kfusion::cpu
