#include "python/arrays/library_functions.hpp"

#include <pybind11/gil_safe_call_once.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "kfusion/ops/names.hpp"
#include "python/arrays/numpy.hpp"
#include "python/arrays/own.hpp"

namespace kfusion::arrays {
namespace {

namespace library_functions_detail {

/// Through DLPack; axes that go backwards are turned round, which copies.
py::object foreign_view(const py::module_& library, const View& v) {
  View forward = v;
  py::list reversed;
  for (int d = 0; d < v.ndim; ++d) {
    if (v.strides[d] >= 0) continue;
    forward.data += v.strides[d] * (v.shape[d] - 1);
    forward.strides[d] = -v.strides[d];
    reversed.append(d);
  }
  const DeviceArray borrowed{std::make_shared<Buffer>(forward.data, v.place), forward};
  const py::object x = library.attr("from_dlpack")(py::cast(borrowed));
  return reversed.empty() ? x : library.attr("flip")(x, py::tuple(reversed));
}

py::tuple pair(const std::int64_t (&values)[2]) { return py::make_tuple(values[0], values[1]); }

/// The stream as an object of torch's, for which no handle means a new stream.
py::object torch_stream(py::handle module, Stream stream, int device) {
  if (stream <= 1) return module.attr("default_stream")(device);  // the legacy default stream
  return module.attr("ExternalStream")(stream, py::arg("device") = device);
}

/// torch's functions, looked up once and kept for the life of the process.
struct TorchFunctions {
  py::handle matmul, conv2d, cuda;
};

const TorchFunctions& torch_functions() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<TorchFunctions> storage;
  return storage
      .call_once_and_store_result([] {
        const auto torch = py::module_::import("torch");
        const auto held = [](py::object x) { return x.release(); };
        return TorchFunctions{held(torch.attr("matmul")), held(torch.attr("conv2d")), held(torch.attr("cuda"))};
      })
      .get_stored();
}

py::object compute_with_torch(const Node& n, const py::object& x, const py::object& y, const py::object& out) {
  const TorchFunctions& torch = torch_functions();
  if (n.op == Op::matmul) return out.is_none() ? torch.matmul(x, y) : torch.matmul(x, y, py::arg("out") = out);
  const auto& a = std::get<Conv2dAttributes>(n.attributes);
  return torch.conv2d(x, y, py::none(), pair(a.stride), pair(a.padding), pair(a.dilation), a.groups);
}

py::object compute_with_cupy(const Node&, const py::object& x, const py::object& y, const py::object& out) {
  return py::module_::import("cupy").attr("matmul")(x, y, py::arg("out") = out);
}

py::object compute_with_numpy(const Node&, const py::object& x, const py::object& y, const py::object& out) {
  return py::module_::import("numpy").attr("matmul")(x, y, py::arg("out") = out);
}

bool goes_forward(const View& v) {
  return std::all_of(v.strides, v.strides + v.ndim, [](std::int64_t s) { return s >= 0; });
}
py::object torch_view(const View& v) {
  if (goes_forward(v))
    if (py::object x = torch_tensor_over(v)) return x;
  return foreign_view(py::module_::import("torch"), v);
}
/// Bools as bytes: torch's copies make ones of the small integers that some stand for.
py::object as_bytes(const py::object& x) {
  const auto torch = py::module_::import("torch");
  return x.attr("dtype").is(torch.attr("bool")) ? x.attr("view")(torch.attr("uint8")) : x;
}

py::object torch_laid_out(const View& layout, const py::object& x) {
  py::tuple shape(layout.ndim), strides(layout.ndim);
  for (int d = 0; d < layout.ndim; ++d) {
    shape[d] = layout.shape[d];
    strides[d] = layout.strides[d] / static_cast<std::int64_t>(item_bytes(layout.dtype));
  }
  py::object made = x.attr("new_empty_strided")(shape, strides);
  as_bytes(made).attr("copy_")(as_bytes(x));
  return made;
}
py::object torch_copy(const View&, const py::object& from) {
  return as_bytes(from).attr("clone")().attr("view")(from.attr("dtype"));
}
void torch_write(const py::object& x, const View& to) { as_bytes(torch_view(to)).attr("copy_")(as_bytes(x)); }
py::object torch_on_stream(Stream stream, int device) {
  const py::handle cuda = torch_functions().cuda;
  return cuda.attr("stream")(torch_stream(cuda, stream, device));
}

py::object cupy_view(const View& v) { return foreign_view(py::module_::import("cupy"), v); }
py::object cupy_in_c_order(const View&, const py::object& x) {
  return py::module_::import("cupy").attr("ascontiguousarray")(x);
}
py::object cupy_copy(const View&, const py::object& from) { return from.attr("copy")(); }
void cupy_write(const py::object& x, const View& to) { py::module_::import("cupy").attr("copyto")(cupy_view(to), x); }
py::object cupy_on_stream(Stream stream, int device) {
  return py::module_::import("cupy").attr("cuda").attr("ExternalStream")(stream, device);
}

py::object numpy_in_c_order(const View&, const py::object& x) {
  return py::module_::import("numpy").attr("asarray")(x, py::arg("order") = "C");
}
void numpy_write(const py::object& x, const View& to) {
  py::module_::import("numpy").attr("copyto")(numpy_view(to), x);
}
py::object numpy_copy(const View& x, const py::object& from) {
  View layout = x;
  set_c_strides(layout);
  Result r = numpy_empty(layout, numpy_dtype(x.dtype));
  numpy_write(from, r.view);
  return std::move(r.object);
}

constexpr Bridge kTorchBridge = {torch_view, torch_laid_out, torch_copy, torch_write, torch_on_stream};
constexpr Bridge kCupyBridge = {cupy_view, cupy_in_c_order, cupy_copy, cupy_write, cupy_on_stream};
constexpr Bridge kNumpyBridge = {numpy_view, numpy_in_c_order, numpy_copy, numpy_write, nullptr};

}  // namespace library_functions_detail
}  // namespace

using namespace library_functions_detail;

LibraryFunction numpy_function_for(const Node& n, Place place) {
  return place.on_host() && n.op == Op::matmul && !is_half(n.dtype) ? &compute_with_numpy : nullptr;
}

LibraryFunction torch_function_for(const Node&, Place) { return &compute_with_torch; }

const Bridge* bridge_of(ArrayLibrary library, Place place) {
  if (library == ArrayLibrary::kTorch) return &kTorchBridge;
  if (place.on_host()) return &kNumpyBridge;
  return library == ArrayLibrary::kCupy ? &kCupyBridge : nullptr;
}

LibraryFunction cupy_function_for(const Node& n, Place place) {
  return place.on_host() || n.op == Op::conv2d ? nullptr : &compute_with_cupy;
}

}  // namespace kfusion::arrays
