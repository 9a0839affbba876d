// Arrays that a trace depends on, although no kernel reads them as they are.
#pragma once
#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <vector>

namespace kfusion::fuse {

namespace py = pybind11;

/// An array as it was when a call was traced: where its memory is, and how often it was changed in place, or what is in
/// it. Assigning a tensor's `.data` leaves it the same object; views of it, or what was computed of it, are then of the
/// past.
class Watched {
 public:
  /// `by_value`: whether it was computed with, so that changes in place count as well. `elements`: an array of NumPy's
  /// of those that were looked at, which are compared themselves; None: all of an array of NumPy's, and of a tensor
  /// torch's count of changes.
  Watched(const py::handle& array, bool by_value, py::object elements);

  bool unchanged() const;

  using Digest = std::array<std::uint64_t, 4>;
  /// Digest of the shape and the elements of an array of NumPy's.
  static Digest digest(const py::handle& array);
  /// For Python's collector of cycles.
  PyObject* held() const { return array_.ptr(); }

 private:
  using State = std::array<std::uint64_t, 3>;
  State state(const py::handle& tensor) const;

  py::object array_;  ///< a weak reference
  bool is_tensor_, by_value_;
  py::object elements_;  ///< empty for all of an array of NumPy's, and where a tensor's are not compared
  State state_{};
  Digest digest_{};
};

}  // namespace kfusion::fuse
