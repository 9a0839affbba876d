// Peaks of a device: the rules of plan/device.cpp, for kfusion.Device and the reports.
#include "bindings/bindings.hpp"
#include "kfusion/error.hpp"
#include "python/records/device_dict.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

DType read_dtype(const std::string& function, const std::string& text) {
  if (const auto dtype = dtype_named(text)) return *dtype;
  std::string names;
  for (int i = 0; i < kDTypes; ++i) names += (i ? ", " : "") + std::string(name(static_cast<DType>(i)));
  throw ValueError("kfusion." + function + ": dtype must be one of " + names + ", got '" + text + "'");
}

}  // namespace

void bind_device(py::module_& m) {
  m.def(
      "peak_flops",
      [](const py::dict& device, const std::string& dtype, bool matrix) {
        return peak_flops(read_device(device), read_dtype("peak_flops", dtype), matrix);
      },
      py::arg("device"), py::arg("dtype"), py::arg("matrix") = false, R"(peak_flops(device, dtype, matrix=False)
--

FLOP/s of a device (`Device.to_dict()`) for work of this dtype in its vector or matrix units; where it has no such
unit, those of the next wider one.

Raises:
    ValueError: no such dtype.
)");
  m.def(
      "ridge_point",
      [](const py::dict& device, const std::string& dtype, bool matrix) {
        return ridge_point(read_device(device), read_dtype("ridge_point", dtype), matrix);
      },
      py::arg("device"), py::arg("dtype"), py::arg("matrix") = false, R"(ridge_point(device, dtype, matrix=False)
--

peak_flops / peak_bandwidth: the FLOP per byte from which on a device (`Device.to_dict()`) is bound by its units.

Raises:
    ValueError: no such dtype.
)");
}

}  // namespace kfusion
