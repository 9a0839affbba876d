#include "python/arrays/arguments.hpp"

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

/// A caller's `out`, checked against x.
Result read_out(Call& call, py::handle object, const Array& x) {
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
  if (overlap(x.view, a.view) != Overlap::kNone) throw ValueError(call.says("out must not overlap x"));
  return {a.view, py::reinterpret_borrow<py::object>(object), std::move(a.keep)};
}

}  // namespace

Result make_result(Call& call, py::handle out, const Array& x) {
  return out.is_none() ? arrays::fresh(call, result_layout(x.view), x) : read_out(call, out, x);
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
