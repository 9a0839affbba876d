// Weak references of Python's.
#pragma once
#include <pybind11/pybind11.h>

#include <bit>
#include <cstdint>
#include <string_view>

namespace kfusion::fuse {

namespace py = pybind11;

/// What a weak reference refers to; empty once that is gone.
inline py::object referent(const py::object& weak) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* object = nullptr;
  if (PyWeakref_GetRef(weak.ptr(), &object) < 0) PyErr_Clear();
  return py::reinterpret_steal<py::object>(object);
#else
  PyObject* object = PyWeakref_GET_OBJECT(weak.ptr());
  return object == Py_None ? py::object() : py::reinterpret_borrow<py::object>(object);
#endif
}

/// Forgets the error of something that was asked, but throws one that is from outside, such as Ctrl-C.
inline void forget_error() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
  PyErr_Clear();
}

/// An object to compare others with. It is kept alive only where it cannot be referred to weakly.
class Remembered {
 public:
  /// nullptr: nothing, which is compared as well.
  explicit Remembered(PyObject* object) {
    if (!object) return;
    if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
      held_ = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, nullptr));
      weak_ = static_cast<bool>(held_);
      if (weak_) return;
      PyErr_Clear();
    }
    held_ = py::reinterpret_borrow<py::object>(object);
  }

  bool is(PyObject* object) const {
#if PY_VERSION_HEX < 0x030D0000
    if (weak_ && object == Py_None) return false;  // which is what a dead reference gives
    return (weak_ ? PyWeakref_GET_OBJECT(held_.ptr()) : held_.ptr()) == object;
#else
    return (weak_ ? referent(held_).ptr() : held_.ptr()) == object;
#endif
  }
  /// Whether it is that object, or a number or text of that type and value.
  bool equals(PyObject* object) const { return is(object) || (!weak_ && held_ && object && is_same_value(object)); }
  bool is_dead() const { return weak_ && !referent(held_); }
  /// The object, or its weak reference, for Python's collector of cycles.
  PyObject* held() const { return held_.ptr(); }

 private:
  /// -0.0 and 0.0 are two values, a NaN is itself.
  bool is_same_value(PyObject* object) const {
    PyObject* const own = held_.ptr();
    if (Py_TYPE(own) != Py_TYPE(object)) return false;
    if (PyFloat_Check(own))
      return std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(own)) ==
             std::bit_cast<std::uint64_t>(PyFloat_AS_DOUBLE(object));
    const bool is_device = std::string_view(Py_TYPE(own)->tp_name) == "torch.device";
    if (!PyLong_CheckExact(own) && !PyUnicode_CheckExact(own) && !PyBytes_CheckExact(own) && !is_device) return false;
    return PyObject_RichCompareBool(own, object, Py_EQ) == 1;
  }

  py::object held_;
  bool weak_ = false;
};

}  // namespace kfusion::fuse
