// Memory of a call: for a few values on the stack, for many on the heap.
#pragma once
#include <cstddef>
#include <memory>

namespace kfusion {

/// Room for n values of a type without constructors, uninitialised; of up to kFew it costs nothing.
template <class T, std::size_t kFew>
class Room {
 public:
  explicit Room(std::size_t n)
      : many_(n > kFew ? std::make_unique_for_overwrite<T[]>(n) : nullptr), data_(many_ ? many_.get() : few_) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  T* data() { return data_; }
  T& operator[](std::size_t i) { return data_[i]; }

 private:
  T few_[kFew];
  std::unique_ptr<T[]> many_;
  T* data_;
};

}  // namespace kfusion
