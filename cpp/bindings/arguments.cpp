#include "bindings/arguments.hpp"

#include <cmath>

namespace py = pybind11;

namespace kfusion {

using arrays::Array;
using arrays::Call;
using arrays::Result;

namespace {

void require_same_place(const Call& call, const char* argument, const Array& a, const Array& x) {
  if (a.framework != x.framework)
    throw TypeError(call.says(std::string(argument) + " must be the same kind of array as x (" + x.framework->name() +
                              "), got " + a.framework->name()));
  if (a.view.place != x.view.place)
    throw TypeError(call.says(std::string(argument) + " must be on x's device (" + to_string(x.view.place) + "), got " +
                              to_string(a.view.place)));
}

/// A caller's `out`, checked against x; its overlap with x is one of those that kernels handle exactly.
Result read_out(Call& call, py::handle object, const Array& x, bool may_be_x) {
  Array a = arrays::borrow(call, "out", object);
  require_same_place(call, "out", a, x);
  if (a.framework->immutable())
    throw TypeError(call.says("out must be writable, and " + a.framework->name() + " arrays are not"));
  if (a.view.dtype != x.view.dtype)
    throw TypeError(call.says(std::string("out must be ") + name(x.view.dtype) + ", got " + name(a.view.dtype)));
  const std::string wanted = shape_text(x.view.ndim, x.view.shape), came = shape_text(a.view.ndim, a.view.shape);
  if (wanted != came) throw ValueError(call.says("out must have shape " + wanted + ", got " + came));
  if (a.view.read_only) throw ValueError(call.says("out must be writable, got a read-only array"));
  if (self_overlapping(a.view))
    throw ValueError(call.says("out must not overlap itself, got strides " + shape_text(a.view.ndim, a.view.strides)));
  const Overlap o = overlap(x.view, a.view);
  if (o == Overlap::kOther || (o == Overlap::kSame && !may_be_x))
    throw ValueError(call.says(std::string("out must not overlap x") + (may_be_x ? " (it may be x itself)" : "")));
  return {a.view, py::reinterpret_borrow<py::object>(object), std::move(a.keep)};
}

}  // namespace

double read_eps(const Call& call, py::handle eps) {
  const double value = PyFloat_AsDouble(eps.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
    PyErr_Clear();
    throw TypeError(call.says("eps must be a number, got " + py::repr(py::type::of(eps)).cast<std::string>()));
  }
  if (!std::isfinite(value) || value < 0)
    throw ValueError(call.says("eps must be finite and >= 0, got " + py::str(eps).cast<std::string>()));
  return value;
}

Array read_parameter(Call& call, const char* argument, py::handle object, const Array& x) {
  if (object.is_none()) return {};
  Array a = arrays::borrow(call, argument, object);
  require_same_place(call, argument, a, x);
  const std::int64_t cols = x.view.shape[x.view.ndim - 1];
  if (a.view.ndim != 1 || a.view.shape[0] != cols)
    throw ValueError(call.says(std::string(argument) + " must have shape (" + std::to_string(cols) + ",), got " +
                               shape_text(a.view.ndim, a.view.shape)));
  if (a.view.dtype != x.view.dtype && a.view.dtype != DType::kFloat32)
    throw TypeError(call.says(std::string(argument) + " must be " + name(x.view.dtype) +
                              (x.view.dtype == DType::kFloat32 ? "" : " or float32") + ", got " + name(a.view.dtype)));
  return a;
}

ColOperand column_operand(const Array& a) {
  return a.framework ? ColOperand{a.view.data, a.view.dtype, a.view.strides[0]} : ColOperand{};
}

void require_disjoint(const Call& call, const char* argument, const Array& a, const View& out) {
  if (a.framework && overlap(a.view, out) != Overlap::kNone)
    throw ValueError(call.says(std::string("out must not overlap ") + argument));
}

Result make_result(Call& call, py::handle out, const Array& x, bool may_be_x) {
  return out.is_none() ? arrays::fresh(call, result_layout(x.view), x) : read_out(call, out, x, may_be_x);
}

Array read_x(Call& call, py::handle object) {
  Array x = arrays::borrow(call, "x", object);
  const Memory& memory = memory_of(x.view.place);
  memory.require(x.view.place.index);
  if (call.has_stream_argument() && !memory.has_streams)
    throw ValueError(call.says("stream applies to CUDA arrays, and x is on the CPU"));
  return x;
}

}  // namespace kfusion
