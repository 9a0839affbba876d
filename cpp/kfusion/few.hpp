// Lists of a few values, which cost no allocation: graphs and plans consist of them.
#pragma once
#include <algorithm>
#include <compare>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

namespace kfusion {

/// What std::vector has, of numbers; up to kFew of them lie in the object itself.
template <class T, std::size_t kFew>
class Few {
  static_assert(std::is_arithmetic_v<T>);

 public:
  using value_type = T;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using reference = T&;
  using const_reference = const T&;
  using iterator = T*;
  using const_iterator = const T*;
  using reverse_iterator = std::reverse_iterator<iterator>;
  using const_reverse_iterator = std::reverse_iterator<const_iterator>;

  Few() noexcept = default;
  explicit Few(std::size_t n, T value = {}) : Few() { assign(n, value); }
  template <std::input_iterator It>
  Few(It first, It last) : Few() {
    assign(first, last);
  }
  Few(std::initializer_list<T> values) : Few(values.begin(), values.end()) {}
  Few(const Few& o) : Few(o.begin(), o.end()) {}
  Few(Few&& o) noexcept { take(o); }
  ~Few() = default;

  Few& operator=(const Few& o) {
    if (this != &o) assign(o.begin(), o.end());
    return *this;
  }
  Few& operator=(Few&& o) noexcept {
    if (this != &o) take(o);
    return *this;
  }

  void assign(std::size_t n, T value) {
    grow_to(n, 0);
    std::fill_n(data(), n, value);
    size_ = n;
  }
  /// The new values must not be among these.
  template <std::input_iterator It>
  void assign(It first, It last) {
    if constexpr (std::forward_iterator<It>) {
      const auto n = static_cast<std::size_t>(std::distance(first, last));
      grow_to(n, 0);
      std::copy(first, last, data());
      size_ = n;
    } else {
      clear();
      for (; first != last; ++first) push_back(*first);
    }
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return many_ ? many_.get() : few_; }
  const T* data() const { return many_ ? many_.get() : few_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T& front() { return data()[0]; }
  const T& front() const { return data()[0]; }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }
  iterator begin() { return data(); }
  iterator end() { return data() + size_; }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + size_; }
  reverse_iterator rbegin() { return reverse_iterator(end()); }
  reverse_iterator rend() { return reverse_iterator(begin()); }
  const_reverse_iterator rbegin() const { return const_reverse_iterator(end()); }
  const_reverse_iterator rend() const { return const_reverse_iterator(begin()); }

  void clear() { size_ = 0; }
  void reserve(std::size_t n) { grow_to(n, size_); }
  void resize(std::size_t n, T value = {}) {
    grow_to(n, size_);
    if (n > size_) std::fill(end(), data() + n, value);
    size_ = n;
  }
  void push_back(T value) {
    if (size_ == capacity_) grow_to(2 * capacity_, size_);
    data()[size_++] = value;
  }
  T& emplace_back(T value = {}) {
    push_back(value);
    return back();
  }
  void pop_back() { --size_; }

  iterator insert(const_iterator at, T value) { return insert(at, std::size_t{1}, value); }
  iterator insert(const_iterator at, std::size_t n, T value) {
    T* const place = opened(at, n);
    std::fill_n(place, n, value);
    return place;
  }
  /// The new values must not be among these.
  template <std::forward_iterator It>
  iterator insert(const_iterator at, It first, It last) {
    T* const place = opened(at, static_cast<std::size_t>(std::distance(first, last)));
    std::copy(first, last, place);
    return place;
  }
  iterator insert(const_iterator at, std::initializer_list<T> values) {
    return insert(at, values.begin(), values.end());
  }
  iterator erase(const_iterator at) { return erase(at, at + 1); }
  iterator erase(const_iterator first, const_iterator last) {
    T* const place = data() + (first - data());
    std::copy(last, static_cast<const_iterator>(end()), place);
    size_ -= static_cast<std::size_t>(last - first);
    return place;
  }

  friend bool operator==(const Few& a, const Few& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }
  friend auto operator<=>(const Few& a, const Few& b) {
    return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  /// The values of another list, which is empty then.
  void take(Few& o) noexcept {
    many_ = std::move(o.many_);
    capacity_ = std::exchange(o.capacity_, kFew);
    size_ = std::exchange(o.size_, 0);
    if (!many_) std::copy_n(o.few_, kFew, few_);
  }

  /// Room for n values; the first `kept` stay.
  void grow_to(std::size_t n, std::size_t kept) {
    if (n <= capacity_) return;
    auto more = std::make_unique_for_overwrite<T[]>(n);
    std::copy_n(data(), kept, more.get());
    many_ = std::move(more);
    capacity_ = n;
  }

  /// A gap of n values before `at`.
  T* opened(const_iterator at, std::size_t n) {
    const std::ptrdiff_t index = at - data();
    if (size_ + n > capacity_) grow_to(std::max(size_ + n, 2 * capacity_), size_);
    std::copy_backward(begin() + index, end(), end() + n);
    size_ += n;
    return begin() + index;
  }

  std::unique_ptr<T[]> many_;
  std::size_t size_ = 0, capacity_ = kFew;
  T few_[kFew] = {};
};

template <class T, std::size_t kFew, class Is>
void erase_if(Few<T, kFew>& list, Is is) {
  list.erase(std::remove_if(list.begin(), list.end(), is), list.end());
}

}  // namespace kfusion
