// Memory that values between kernels have while a plan runs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/library_functions.hpp"
#include "runtime/memory.hpp"
#include "runtime/poison.hpp"

namespace kfusion {

/// Memory in stream order until the object goes.
class Workspace {
 public:
  Workspace(std::size_t bytes, Place place, Stream stream) : bytes_(bytes), place_(place), stream_(stream) {
    if (bytes == 0) return;
    data_ = static_cast<std::byte*>(memory_of(place).allocate(bytes, place.index, stream));
    poison(data_, bytes, place, stream);
  }
  ~Workspace() {
    if (data_) memory_of(place_).deallocate(data_, bytes_, place_.index, stream_);
  }
  Workspace(Workspace&& o) noexcept
      : bytes_(o.bytes_), place_(o.place_), stream_(o.stream_), data_(std::exchange(o.data_, nullptr)) {}
  Workspace& operator=(Workspace&& o) noexcept {
    std::swap(bytes_, o.bytes_), std::swap(data_, o.data_);
    std::swap(place_, o.place_), std::swap(stream_, o.stream_);
    return *this;
  }

  std::byte* data() const { return data_; }  ///< nullptr for no bytes

 private:
  std::size_t bytes_;
  Place place_;
  Stream stream_;
  std::byte* data_ = nullptr;
};

/// Whether executables that are made from now on lend memory to all values between kernels, on hosts too, and make
/// results there. For tests; off at the start.
bool lends_everywhere() noexcept;
void set_lends_everywhere(bool on) noexcept;

/// Memory for one value each, of the library's where that lends some, so that the library has it before and after.
class Lent {
 public:
  Lent(LibraryFunctions* library, Place place, Stream stream) : library_(library), place_(place), stream_(stream) {}

  std::byte* lend(int slot, std::int64_t bytes) {
    if (std::byte* const p = library_ ? library_->lend(slot, bytes, place_, stream_) : nullptr) {
      poison(p, static_cast<std::size_t>(bytes), place_, stream_);
      return p;
    }
    own_.push_back({slot, Workspace(static_cast<std::size_t>(bytes), place_, stream_)});
    return own_.back().memory.data();
  }

  /// What the slot was lent, or what the library keeps in it.
  void release(int slot) {
    if (std::erase_if(own_, [&](const Own& o) { return o.slot == slot; }) == 0 && library_) library_->release(slot);
  }

 private:
  struct Own {
    int slot;
    Workspace memory;
  };
  LibraryFunctions* library_;
  Place place_;
  Stream stream_;
  std::vector<Own> own_;
};

}  // namespace kfusion
