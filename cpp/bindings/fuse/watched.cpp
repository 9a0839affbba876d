#include "bindings/fuse/watched.hpp"

#include "bindings/fuse/weak.hpp"

namespace kfusion::fuse {
namespace {

namespace watched_detail {

/// 0 where there is an error: tensors without memory have no address, those of inference mode no version.
std::uint64_t integer(PyObject* object) {
  const auto number = py::reinterpret_steal<py::object>(object);
  const std::uint64_t value = number ? PyLong_AsUnsignedLongLongMask(number.ptr()) : 0;
  PyErr_Clear();
  return value;
}

PyObject* name(const char* text) { return PyUnicode_InternFromString(text); }

}  // namespace watched_detail
}  // namespace

using namespace watched_detail;

Watched::Watched(const py::handle& tensor, bool by_value) : by_value_(by_value), elements_(elements(tensor)) {
  if (!elements_) state_ = state(tensor);
  tensor_ = py::reinterpret_steal<py::object>(PyWeakref_NewRef(tensor.ptr(), nullptr));
  if (!tensor_) throw py::error_already_set();
}

bool Watched::unchanged() const {
  const py::object tensor = referent(tensor_);
  if (!tensor) return false;
  return elements_ ? elements(tensor).equal(elements_) : state(tensor) == state_;
}

py::object Watched::elements(const py::handle& array) {
  static PyObject* const tobytes = name("tobytes");
  if (!PyObject_HasAttr(array.ptr(), tobytes)) return {};
  auto bytes = py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(array.ptr(), tobytes));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

/// The dtype, which lives for ever, the address and the number of changes in place.
Watched::State Watched::state(const py::handle& tensor) const {
  static PyObject *const dtype = name("dtype"), *const data_ptr = name("data_ptr"), *const version = name("_version");
  const auto type = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor.ptr(), dtype));
  if (!type) throw py::error_already_set();
  return {reinterpret_cast<std::uintptr_t>(type.ptr()), integer(PyObject_CallMethodNoArgs(tensor.ptr(), data_ptr)),
          by_value_ ? integer(PyObject_GetAttr(tensor.ptr(), version)) : 0};
}

}  // namespace kfusion::fuse
