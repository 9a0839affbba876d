#include "python/arrays/array.hpp"
#include "python/arrays/own.hpp"
#include "python/gil.hpp"

namespace kfusion::arrays {
namespace {

std::optional<Stream> parse_stream(const Call& call, py::handle stream) {
  if (stream.is_none()) return std::nullopt;
  py::object handle = py::reinterpret_borrow<py::object>(stream);
  if (py::hasattr(stream, "__cuda_stream__"))
    handle = stream.attr("__cuda_stream__")().cast<py::tuple>()[1];  // (version, handle)
  else if (py::hasattr(stream, "cuda_stream"))
    handle = stream.attr("cuda_stream");
  else if (py::hasattr(stream, "ptr"))
    handle = stream.attr("ptr");
  if (!PyLong_Check(handle.ptr()) || PyBool_Check(handle.ptr()))
    throw TypeError(
        call.says("stream must be None, an integer handle, or a torch, CuPy or __cuda_stream__ object, got " +
                  py::repr(py::type::of(stream)).cast<std::string>()));
  const unsigned long long value = PyLong_AsUnsignedLongLong(handle.ptr());
  if (PyErr_Occurred()) {
    PyErr_Clear();
    throw ValueError(call.says("stream must be a stream handle (>= 0), got " + py::str(handle).cast<std::string>()));
  }
  return static_cast<Stream>(value);
}

/// The device of a stream of torch's or CuPy's; -1 of others. The runtime is not asked: a stream that is being captured
/// must not be.
int device_of_stream(py::handle stream) {
  for (const char* name : {"device_index", "device_id"})
    if (const py::object device = py::getattr(stream, name, py::none()); PyLong_Check(device.ptr()))
      return device.cast<int>();
  return -1;
}

}  // namespace

Call::Call(const char* function, py::handle stream, Takes takes) : function_(function), takes_(takes) {
  requested_ = parse_stream(*this, stream);
  if (requested_) device_of_requested_ = device_of_stream(stream);
}

std::string Call::says(const std::string& rest) const { return "kfusion." + std::string(function_) + ": " + rest; }

std::string Call::dtypes_taken() const {
  std::string text;
  const int n = takes_ == Takes::kFloats ? kFloatDTypes : kDTypes;
  for (int i = 0; i < n; ++i)
    text += (i == 0 ? "" : i == n - 1 ? " or " : ", ") + std::string(name(static_cast<DType>(i)));
  return text;
}

Stream Call::stream(const Framework& framework, int device) {
  // A graph that is captured on another device's stream would read memory that its device does not reach.
  if (device_of_requested_ >= 0 && device_of_requested_ != device)
    throw ValueError(says("stream must be of the arrays' device (cuda:" + std::to_string(device) +
                          "), got one of cuda:" + std::to_string(device_of_requested_)));
  if (!resolved_) resolved_ = requested_ ? *requested_ : framework.current_stream(device);
  return *resolved_;
}

Stream Framework::current_stream(int) const { return 0; }

Result Framework::empty(const Call&, const View& layout, const Array&) const { return own_empty(layout); }

void require_extents(const Call& call, const char* argument, const View& v) {
  for (int d = 0; d < v.ndim; ++d)
    if (v.shape[d] < 0)
      throw ValueError(
          call.says(std::string(argument) + " must have extents >= 0, got shape " + shape_text(v.ndim, v.shape)));
}

void require_addressable(const Call& call, const char* argument, const View& v) {
  if (v.size() == 0) return;
  std::int64_t low = reinterpret_cast<std::intptr_t>(v.data), high = low;
  bool fits = !__builtin_add_overflow(high, static_cast<std::int64_t>(item_bytes(v.dtype)), &high);
  for (int d = 0; d < v.ndim; ++d) {
    std::int64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(v.shape[d] - 1, v.strides[d], &reach);
    std::int64_t& end = reach < 0 ? low : high;
    fits = fits && !__builtin_add_overflow(end, reach, &end);
  }
  if (!fits || low < 0)
    throw ValueError(call.says(std::string(argument) + " must lie within the address space, got shape " +
                               shape_text(v.ndim, v.shape) + " with strides " + shape_text(v.ndim, v.strides) +
                               " in bytes"));
}

Result fresh(const Call& call, const View& layout, const Array& like) {
  try {
    return like.framework->empty(call, layout, like);
  } catch (...) {
    const ReleaseGil unlocked;  // it waits for the device, whose work may include a callback into Python
    if (memory_of(layout.place).give_back() == 0) throw;
  }
  return like.framework->empty(call, layout, like);
}

void require_aligned_on_device(const Call& call, const char* argument, const View& v) {
  const auto item = static_cast<std::int64_t>(item_bytes(v.dtype));
  bool aligned = reinterpret_cast<std::intptr_t>(v.data) % item == 0;
  for (int d = 0; d < v.ndim; ++d) aligned = aligned && (v.shape[d] == 1 || v.strides[d] % item == 0);
  if (!v.place.on_host() && !aligned)
    throw ValueError(call.says(std::string(argument) + " must be aligned to its elements on a GPU"));
}

TypeError wrong_dtype(const Call& call, const char* argument, const std::string& came) {
  return TypeError(call.says(std::string(argument) + " must be " + call.dtypes_taken() + ", got " + came));
}

py::tuple to_tuple(int n, const std::int64_t* values, std::int64_t unit) {
  py::tuple t(n);
  for (int d = 0; d < n; ++d) t[d] = values[d] / unit;
  return t;
}

py::object strides_of(const Array& a) {
  if (is_c_contiguous(a.view)) return py::none();
  return to_tuple(a.view.ndim, a.view.strides, static_cast<std::int64_t>(item_bytes(a.view.dtype)));
}

}  // namespace kfusion::arrays
