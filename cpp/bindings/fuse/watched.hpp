// Arrays that a trace depends on, although no kernel reads them as they are.
#pragma once
#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <vector>

namespace kfusion::fuse {

namespace py = pybind11;

/// A torch tensor as it was when a call was traced. Assigning its `.data` leaves it the same object; views of it, or
/// what was computed of it, are then of the past. Of an array of NumPy's, which counts no changes, the elements.
class Watched {
 public:
  /// `by_value`: whether it was computed with, so that changes in place count as well.
  Watched(const py::handle& tensor, bool by_value);

  bool unchanged() const;
  /// For Python's collector of cycles.
  PyObject* held() const { return tensor_.ptr(); }

 private:
  using State = std::array<std::uint64_t, 3>;
  State state(const py::handle& tensor) const;
  /// What an array of NumPy's holds, as bytes.
  static py::object elements(const py::handle& array);

  py::object tensor_;  ///< a weak reference
  bool by_value_;
  py::object elements_;  ///< empty for a tensor
  State state_{};
};

}  // namespace kfusion::fuse
