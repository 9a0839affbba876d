#include "bindings/bindings.hpp"
#include "python/arrays/dlpack.hpp"
#include "python/arrays/numpy.hpp"
#include "python/arrays/own.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

using arrays::DeviceArray;
using arrays::to_tuple;

constexpr const char* kToDeviceDoc = R"(to_device(x, device=0)
--

A contiguous copy of a NumPy array on a CUDA device, ready when this returns.

Args:
    x: numpy.ndarray of float16, bfloat16 (ml_dtypes), float32, float64, bool, int32 or int64, any shape and strides.
    device: index of the CUDA device.

Returns:
    A kfusion.DeviceArray of the same shape and dtype.

Raises:
    TypeError: x is no NumPy array of these dtypes.
    kfusion.DeviceError: no such device, or it has no memory left.
)";

constexpr const char* kDlpackDoc = R"(__dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None)
--

A DLPack capsule of this array's memory (https://dmlc.github.io/dlpack), ready on the consumer's `stream`.
)";

std::string repr(const DeviceArray& a) {
  return "kfusion.DeviceArray(shape=" + shape_text(a.view.ndim, a.view.shape) + ", dtype=" + name(a.view.dtype) +
         ", device='" + to_string(a.view.place) + "')";
}

std::int64_t length(const DeviceArray& a) {
  if (a.view.ndim == 0) throw TypeError("kfusion.DeviceArray: an array of shape () has no length");
  return a.view.shape[0];
}

}  // namespace

void bind_device_array(py::module_& m) {
  py::class_<DeviceArray> c(m, "DeviceArray", R"(A minimal dense array in the memory of a CUDA device.

Made by kfusion.to_device and by kfusion functions called on one. It has no arithmetic: `.numpy()` copies it back, and
any library takes it without a copy through DLPack (`torch.from_dlpack(a)`) or the CUDA array interface.)");
  c.attr("__module__") = "kfusion";
  c.def_property_readonly(
      "shape", [](const DeviceArray& a) { return to_tuple(a.view.ndim, a.view.shape); }, "Extents, a tuple of int.");
  c.def_property_readonly(
      "strides", [](const DeviceArray& a) { return to_tuple(a.view.ndim, a.view.strides); }, "Strides in bytes.");
  c.def_property_readonly(
      "dtype", [](const DeviceArray& a) { return arrays::numpy_dtype(a.view.dtype); }, "The numpy.dtype.");
  c.def_property_readonly("ndim", [](const DeviceArray& a) { return a.view.ndim; }, "Number of axes.");
  c.def_property_readonly("size", [](const DeviceArray& a) { return a.view.size(); }, "Number of elements.");
  c.def_property_readonly("nbytes", [](const DeviceArray& a) { return a.view.nbytes(); }, "Bytes of all elements.");
  c.def_property_readonly("device", [](const DeviceArray& a) { return to_string(a.view.place); }, "\"cuda:0\", say.");
  c.def_property_readonly("__cuda_array_interface__", &DeviceArray::cuda_array_interface,
                          "Version 3; AttributeError for bfloat16, which it does not know.");
  c.def("numpy", &DeviceArray::numpy,
        "numpy(self)\n--\n\nA copy as a numpy.ndarray; waits for the work that fills this one.\n");
  c.def("__len__", &length, "__len__(self)\n--\n\nExtent of the first axis.\n");
  c.def("__repr__", &repr, "__repr__(self)\n--\n\n");
  c.def("__dlpack__", &DeviceArray::dlpack, py::kw_only(), py::arg("stream") = py::none(),
        py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
        kDlpackDoc);
  c.def(
      "__dlpack_device__",
      [](const DeviceArray& a) {
        const dlpack::DeviceId id = arrays::device_id(a.view.place);
        return py::make_tuple(id.device_type, id.device_id);
      },
      "__dlpack_device__(self)\n--\n\n(DLPack device type, index).\n");

  m.def("to_device", &arrays::to_device, py::arg("x"), py::arg("device") = 0, kToDeviceDoc);
  m.def("array_library", &arrays::library_name, py::arg("x"), R"(array_library(x)
--

"numpy", "torch", "cupy", "jax" or "kfusion", by x's type; for others the package that defines the type.
)");
}

}  // namespace kfusion
