#include "bindings/arrays/library_functions.hpp"

#include <memory>
#include <optional>

#include "bindings/arrays/numpy.hpp"
#include "bindings/arrays/own.hpp"

namespace kfusion::arrays {
namespace {

namespace library_functions_detail {

using Views = std::span<const View>;

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

py::object torch_convolution(const py::module_& torch, const Conv2dAttributes& a, const py::object& x,
                             const py::object& w) {
  return torch.attr("nn")
      .attr("functional")
      .attr("conv2d")(x, w, py::none(), pair(a.stride), pair(a.padding), pair(a.dilation), a.groups);
}

/// As an object of torch's, for which no handle means a new stream.
py::object torch_stream(const py::object& module, Stream stream, int device) {
  if (stream <= 1) return module.attr("default_stream")(device);  // the legacy default stream
  return module.attr("ExternalStream")(stream, py::arg("device") = device);
}

void compute_with_torch(const Node& n, Views arguments, const View& result, Stream stream) {
  const auto torch = py::module_::import("torch");
  const auto cuda = torch.attr("cuda");
  std::optional<With> current;
  if (!result.place.on_host()) current.emplace(cuda.attr("stream")(torch_stream(cuda, stream, result.place.index)));
  std::optional<With> as_planned;  // in the dtypes of the graph, not in those that torch.autocast would choose
  if (torch_autocast())
    as_planned.emplace(torch.attr("autocast")(result.place.on_host() ? "cpu" : "cuda", py::arg("enabled") = false));
  const py::object x = foreign_view(torch, arguments[0]), y = foreign_view(torch, arguments[1]);
  const py::object out = foreign_view(torch, result);
  if (n.op == Op::matmul) {
    torch.attr("matmul")(x, y, py::arg("out") = out);
  } else if (n.op == Op::conv2d) {
    out.attr("copy_")(torch_convolution(torch, std::get<Conv2dAttributes>(n.attributes), x, y));
  } else {
    py::list index;  // x[:, :, y]
    for (int d = 0; d < std::get<TakeAttributes>(n.attributes).axis; ++d)
      index.append(py::slice(std::nullopt, std::nullopt, std::nullopt));
    index.append(y);
    out.attr("copy_")(x[py::tuple(index)]);
  }
}

void compute_with_cupy(const Node& n, Views arguments, const View& result, Stream stream) {
  const auto cupy = py::module_::import("cupy");
  const With device(cupy.attr("cuda").attr("Device")(result.place.index));
  const With current(cupy.attr("cuda").attr("ExternalStream")(stream, result.place.index));
  const py::object x = foreign_view(cupy, arguments[0]), y = foreign_view(cupy, arguments[1]);
  const py::object out = foreign_view(cupy, result);
  if (n.op == Op::matmul)
    cupy.attr("matmul")(x, y, py::arg("out") = out);
  else
    cupy.attr("take")(x, y, py::arg("axis") = std::get<TakeAttributes>(n.attributes).axis, py::arg("out") = out);
}

void compute_with_numpy(const Node&, Views arguments, const View& result, Stream) {
  const py::object x = numpy_view(arguments[0]), y = numpy_view(arguments[1]);
  py::module_::import("numpy").attr("matmul")(x, y, py::arg("out") = numpy_view(result));
}

py::object torch_view(const View& v) { return foreign_view(py::module_::import("torch"), v); }
py::object torch_in_c_order(const py::object& x) { return x.attr("contiguous")(); }
py::object torch_copy(const View&, const py::object& from) { return from.attr("clone")(); }
void torch_write(const py::object& x, const View& to) { torch_view(to).attr("copy_")(x); }
py::object torch_on_stream(Stream stream, int device) {
  const auto cuda = py::module_::import("torch").attr("cuda");
  return cuda.attr("stream")(torch_stream(cuda, stream, device));
}

py::object cupy_view(const View& v) { return foreign_view(py::module_::import("cupy"), v); }
py::object cupy_in_c_order(const py::object& x) { return py::module_::import("cupy").attr("ascontiguousarray")(x); }
py::object cupy_copy(const View&, const py::object& from) { return from.attr("copy")(); }
void cupy_write(const py::object& x, const View& to) { py::module_::import("cupy").attr("copyto")(cupy_view(to), x); }
py::object cupy_on_stream(Stream stream, int device) {
  return py::module_::import("cupy").attr("cuda").attr("ExternalStream")(stream, device);
}

py::object numpy_in_c_order(const py::object& x) {
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

constexpr Bridge kTorchBridge = {torch_view, torch_in_c_order, torch_copy, torch_write, torch_on_stream};
constexpr Bridge kCupyBridge = {cupy_view, cupy_in_c_order, cupy_copy, cupy_write, cupy_on_stream};
constexpr Bridge kNumpyBridge = {numpy_view, numpy_in_c_order, numpy_copy, numpy_write, nullptr};

}  // namespace library_functions_detail
}  // namespace

using namespace library_functions_detail;

LibraryFunction numpy_function_for(const Node& n, Place place) {
  return place.on_host() && n.op == Op::matmul && !is_half(n.dtype) ? &compute_with_numpy : nullptr;
}

/// Not what reads outside of an array instead of refusing the index.
LibraryFunction torch_function_for(const Node& n, Place place) {
  return place.on_host() && n.op == Op::take ? nullptr : &compute_with_torch;
}

const Bridge* bridge_of(ArrayLibrary library, Place place) {
  if (library == ArrayLibrary::kTorch) return &kTorchBridge;
  if (place.on_host()) return &kNumpyBridge;
  return library == ArrayLibrary::kCupy ? &kCupyBridge : nullptr;
}

LibraryFunction cupy_function_for(const Node& n, Place place) {
  return place.on_host() || n.op == Op::conv2d ? nullptr : &compute_with_cupy;
}

}  // namespace kfusion::arrays
