// The set of containers that a walk through Python's objects has visited.
#pragma once
#include <pybind11/pybind11.h>

#include <bit>
#include <cstdint>
#include <vector>

namespace kfusion::fuse {

namespace py = pybind11;

/// Numbers containers in the order in which they are met, and keeps them alive, so that none takes the place of
/// another.
class Met {
 public:
  Met() = default;
  ~Met() {
    for (std::size_t i = 0; i < count_; ++i) Py_DECREF(at(i));
  }
  Met(const Met&) = delete;
  Met& operator=(const Met&) = delete;

  /// The number of one that was met before; else -1, and from now on it is one.
  Py_ssize_t number(PyObject* container) {
    if (count_ < kFew) {
      for (std::size_t i = 0; i < count_; ++i)
        if (few_[i] == container) return static_cast<Py_ssize_t>(i);
      few_[count_] = container;
    } else {
      if (count_ * 2 >= places_.size()) grow();
      std::size_t& place = place_of(container);
      if (place != 0) return static_cast<Py_ssize_t>(place - 1);
      more_.push_back(container);
      place = count_ + 1;
    }
    ++count_;
    Py_INCREF(container);
    return -1;
  }

  /// One that lies too deep to be looked into now.
  void leave(PyObject* container) { left_.push_back(py::reinterpret_borrow<py::object>(container)); }

  /// The first one that was left; empty where there is none.
  py::object take() {
    if (taken_ == left_.size()) return {};
    return std::move(left_[taken_++]);
  }

 private:
  static constexpr std::size_t kFew = 16;  // that are looked for one by one

  PyObject* at(std::size_t i) const { return i < kFew ? few_[i] : more_[i - kFew]; }

  std::size_t& place_of(PyObject* container) {
    std::size_t i = (reinterpret_cast<std::uintptr_t>(container) * 0x9E3779B97F4A7C15ULL) >> shift_;
    while (places_[i] != 0 && at(places_[i] - 1) != container) i = (i + 1) & (places_.size() - 1);
    return places_[i];
  }

  void grow() {
    places_.assign(std::bit_ceil(count_ * 8), 0);
    shift_ = 64 - std::countr_zero(places_.size());
    for (std::size_t i = 0; i < count_; ++i) place_of(at(i)) = i + 1;
  }

  PyObject* few_[kFew];  ///< the first ones, then:
  std::vector<PyObject*> more_;
  std::size_t count_ = 0;
  std::vector<std::size_t> places_;  ///< a table of numbers from 1 on, by address; empty while there are few
  int shift_ = 0;
  std::vector<py::object> left_;
  std::size_t taken_ = 0;  ///< of these
};

}  // namespace kfusion::fuse
