// What is said of arguments that no C++ function takes: pybind11 lists its types, which nobody has asked for.
#include "bindings/bindings.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

namespace messages {

using Call = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

constexpr int kFlags = METH_FASTCALL | METH_KEYWORDS;

Call dispatch = nullptr;  // pybind11's, the same for all functions

/// Puts the words of kfusion._arguments in the place of pybind11's.
void reword(PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  py::error_already_set error;
  try {
    py::tuple args(static_cast<std::size_t>(positional));
    for (Py_ssize_t i = 0; i < positional; ++i) args[static_cast<std::size_t>(i)] = py::handle(values[i]);
    py::dict kwargs;
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i)
      kwargs[PyTuple_GET_ITEM(names, i)] = py::handle(values[positional + i]);
    const auto reworded = py::module_::import("kfusion._arguments").attr("reworded");
    const py::object text = reworded(py::str(error.value()), args, kwargs);
    if (!text.is_none()) return PyErr_SetObject(PyExc_TypeError, text.ptr());
  } catch (py::error_already_set& another) {
    another.discard_as_unraisable("kfusion: what is wrong with the arguments");
  }
  error.restore();
}

PyObject* call(PyObject* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
  PyObject* const result = dispatch(self, values, positional, names);
  if (!result && PyErr_ExceptionMatches(PyExc_TypeError)) reword(values, positional, names);
  return result;
}

/// Leads calls of one of pybind11's functions through `call`; of anything else nothing.
void lead(py::handle object) {
  PyObject* const f = PyInstanceMethod_Check(object.ptr()) ? PyInstanceMethod_GET_FUNCTION(object.ptr()) : object.ptr();
  if (!PyCFunction_Check(f)) return;
  PyMethodDef* const def = reinterpret_cast<PyCFunctionObject*>(f)->m_ml;
  if (def->ml_flags != kFlags) return;  // a version that calls in another way keeps its own words
  const auto found = reinterpret_cast<Call>(reinterpret_cast<void (*)()>(def->ml_meth));
  if (!dispatch) dispatch = found;
  if (found == dispatch) def->ml_meth = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call));
}

}  // namespace messages
}  // namespace

void bind_messages(py::module_& m) {
  for (const auto& [name, value] : py::dict(m.attr("__dict__"))) {
    messages::lead(value);
    if (!PyType_Check(value.ptr())) continue;
    for (const py::handle member : py::list(value.attr("__dict__").attr("values")())) {
      const bool is_static = py::isinstance(member, py::handle(reinterpret_cast<PyObject*>(&PyStaticMethod_Type)));
      messages::lead(is_static ? py::object(member.attr("__func__")) : py::reinterpret_borrow<py::object>(member));
    }
  }
}

}  // namespace kfusion
