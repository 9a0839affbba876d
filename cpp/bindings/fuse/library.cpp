#include "bindings/fuse/library.hpp"

#include <memory>
#include <optional>

#include "bindings/arrays/numpy.hpp"
#include "bindings/arrays/own.hpp"
#include "kfusion/reference/reference.hpp"

namespace kfusion::fuse {

namespace py = pybind11;

namespace {

namespace library_detail {

using Views = std::span<const View>;

/// `with context:`
class With {
 public:
  explicit With(py::object context) : context_(std::move(context)) { context_.attr("__enter__")(); }
  ~With() {
    try {
      context_.attr("__exit__")(py::none(), py::none(), py::none());
    } catch (py::error_already_set& e) {
      e.discard_as_unraisable("kfusion: the current stream");
    }
  }
  With(const With&) = delete;
  With& operator=(const With&) = delete;

 private:
  py::object context_;
};

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
  const arrays::DeviceArray borrowed{std::make_shared<arrays::Buffer>(forward.data, v.place), forward};
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
py::object torch_stream(const py::object& module, cuda::Stream stream, int device) {
  if (stream <= 1) return module.attr("default_stream")(device);  // the legacy default stream
  return module.attr("ExternalStream")(stream, py::arg("device") = device);
}

void compute_with_torch(const Node& n, Views arguments, const View& result, cuda::Stream stream) {
  const auto torch = py::module_::import("torch");
  const auto cuda = torch.attr("cuda");
  std::optional<With> current;
  if (result.place.cuda) current.emplace(cuda.attr("stream")(torch_stream(cuda, stream, result.place.index)));
  std::optional<With> as_planned;  // in the dtypes of the graph, not in those that torch.autocast would choose
  if (arrays::torch_autocast())
    as_planned.emplace(torch.attr("autocast")(result.place.cuda ? "cuda" : "cpu", py::arg("enabled") = false));
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

void compute_with_cupy(const Node& n, Views arguments, const View& result, cuda::Stream stream) {
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

void compute_with_numpy(Views arguments, const View& result) {
  const py::object x = arrays::numpy_view(arguments[0]), y = arrays::numpy_view(arguments[1]);
  py::module_::import("numpy").attr("matmul")(x, y, py::arg("out") = arrays::numpy_view(result));
}

Node input_of(const View& v) {
  Node n;
  n.dtype = v.dtype;
  n.shape.assign(v.shape, v.shape + v.ndim);
  n.attributes = InputAttributes{};
  return n;
}

}  // namespace library_detail
}  // namespace

void CallersLibrary::compute_plainly(const Node& n, std::span<const View> arguments, const View& result) const {
  Graph g;
  for (const View& v : arguments) g.nodes.push_back(library_detail::input_of(v));
  g.nodes.push_back(n);
  g.nodes.back().arguments = {0, 1};
  g.nodes.back().stage = 0;
  g.stages.push_back({std::string(name(n.op)), ""});
  g.outputs.push_back({"", 2});
  try {
    run_reference(g, {arguments.begin(), arguments.end()}, {result});
  } catch (const ValueError& e) {
    throw ValueError(call_.says(e.what()));
  }
}

void CallersLibrary::compute(const Node& n, std::span<const View> arguments, const View& result, cuda::Stream stream) {
  const bool torch = framework_.library() == arrays::ArrayLibrary::kTorch, cuda = result.place.cuda;
  const bool checks_indices = n.op == Op::take && !cuda;
  const bool numpy_can = n.op == Op::matmul && !is_half(n.dtype);
  if (!cuda && (checks_indices || (!torch && !numpy_can))) return compute_plainly(n, arguments, result);
  const py::gil_scoped_acquire locked;
  if (torch) return library_detail::compute_with_torch(n, arguments, result, stream);
  if (!cuda) return library_detail::compute_with_numpy(arguments, result);
  if (framework_.library() == arrays::ArrayLibrary::kCupy && n.op != Op::conv2d)
    return library_detail::compute_with_cupy(n, arguments, result, stream);
  throw DeviceError(call_.says(std::string(name(n.op)) + " runs through the array library, and " + framework_.name() +
                               " has none that works on memory of others: call it with torch tensors" +
                               (n.op == Op::conv2d ? "" : " or CuPy arrays")));
}

}  // namespace kfusion::fuse
