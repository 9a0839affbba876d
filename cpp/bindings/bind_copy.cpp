#include "bindings/bindings.hpp"
#include "cpu/copy.hpp"
#include "host/cuda.hpp"
#include "python/arrays/arguments.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

using arrays::Array;
using arrays::Call;
using arrays::Result;

constexpr const char* kCopyDoc = R"(copy(x, *, out=None, stream=None)
--

y = x by a plain copy at full speed: the yardstick of every kernel that reads and writes its array once.

Args:
    x: a C-contiguous array of floats: NumPy or a DLPack tensor, on the CPU or a CUDA device.
    out: None or a C-contiguous array of x's kind, shape, dtype and device, disjoint from x.
    stream: CUDA only: an integer handle or a stream object; None is the array's library's current stream.

Returns:
    `out`, or a new array.

Raises:
    TypeError, ValueError: an argument is not as above.
    kfusion.DeviceError: what the CUDA driver refuses.
)";

py::object copy(py::handle x_object, py::handle out, py::handle stream) {
  Call call("copy", stream);
  const Array x = read_x(call, x_object);
  Result r = make_result(call, out, x);
  if (!is_c_contiguous(x.view) || !is_c_contiguous(r.view))
    throw ValueError(call.says("x and out must be C-contiguous"));
  const auto bytes = static_cast<std::size_t>(x.view.nbytes());
  return run(
      call, x, r, out.is_none(), [&] { cpu::copy(r.view.data, x.view.data, bytes); },
      [&](Stream s) { cuda::copy(r.view.data, x.view.data, bytes, x.view.place.index, s); });
}

constexpr const char* kReadDoc = R"(read(x)
--

The exclusive or of x's words of 8 bytes, at full speed: the yardstick of kernels that read an array and leave little.

Args:
    x: a C-contiguous array of floats on the CPU; what is left of the last word is not counted.

Returns:
    An int.

Raises:
    TypeError, ValueError: x is not as above.
)";

std::uint64_t read(py::handle x_object) {
  Call call("read", py::none());
  const Array x = read_x(call, x_object);
  if (!x.view.place.on_host() || !is_c_contiguous(x.view))
    throw ValueError(call.says("x must be C-contiguous, on the CPU"));
  const py::gil_scoped_release release;
  return cpu::read(x.view.data, static_cast<std::size_t>(x.view.nbytes()));
}

}  // namespace

void bind_copy(py::module_& m) {
  m.def("copy", &copy, py::arg("x"), py::kw_only(), py::arg("out") = py::none(), py::arg("stream") = py::none(),
        kCopyDoc);
  m.def("read", &read, py::arg("x"), kReadDoc);
}

}  // namespace kfusion
