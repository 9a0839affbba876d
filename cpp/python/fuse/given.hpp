// What one call is given, by Python's vectorcall protocol: nothing is packed into a tuple or a dict.
#pragma once
#include <pybind11/pybind11.h>

#include <cstddef>

namespace kfusion::fuse {

namespace py = pybind11;

/// The arguments of a call; out= and stream= apart, where the function has these keywords. Borrowed.
class Given {
 public:
  /// `values`: `positional` of them, then one for each of `names` (a tuple or nullptr).
  Given(PyObject* const* values, std::size_t positional, PyObject* names, bool takes_out)
      : values_(values), positional_(positional), names_(names), takes_out_(takes_out) {
    if (!takes_out) return;
    each_name([this](PyObject* name, PyObject* value) {
      if (PyObject** const own = own_keyword(name); own && value != Py_None) *own = value;
    });
  }

  std::size_t positional() const { return positional_; }
  PyObject* operator[](std::size_t i) const { return values_[i]; }

  /// Calls f(name, value) for each keyword of the function itself.
  template <class F>
  void each_keyword(const F& f) const {
    each_name([&](PyObject* name, PyObject* value) {
      if (!is_own(name)) f(name, value);
    });
  }

  PyObject* out() const { return out_; }        ///< nullptr where it is None or absent
  PyObject* stream() const { return stream_; }  ///< likewise

  /// The function's own arguments, for Python.
  py::tuple args() const;
  py::dict kwargs() const;

 private:
  template <class F>
  void each_name(const F& f) const {
    const Py_ssize_t n = names_ ? PyTuple_GET_SIZE(names_) : 0;
    for (Py_ssize_t i = 0; i < n; ++i)
      f(PyTuple_GET_ITEM(names_, i), values_[positional_ + static_cast<std::size_t>(i)]);
  }
  static bool is(PyObject* name, const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; }
  PyObject** own_keyword(PyObject* name) { return is(name, "out") ? &out_ : is(name, "stream") ? &stream_ : nullptr; }
  bool is_own(PyObject* name) const { return takes_out_ && (is(name, "out") || is(name, "stream")); }

  PyObject* const* values_;
  std::size_t positional_;
  PyObject* names_;
  bool takes_out_;
  PyObject *out_ = nullptr, *stream_ = nullptr;
};

inline py::tuple Given::args() const {
  py::tuple t(positional_);
  for (std::size_t i = 0; i < positional_; ++i) t[i] = py::handle(values_[i]);
  return t;
}

inline py::dict Given::kwargs() const {
  py::dict d;
  each_keyword([&](PyObject* name, PyObject* value) { d[py::handle(name)] = py::handle(value); });
  return d;
}

}  // namespace kfusion::fuse
