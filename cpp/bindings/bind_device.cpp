// Peaks of a device: the rules of plan/device.cpp, for kfusion.Device and the reports.
#include "bindings/bindings.hpp"
#include "bindings/device_dict.hpp"
#include "kfusion/error.hpp"

namespace py = pybind11;

namespace kfusion {
namespace {

Peaks read_peaks(const py::dict& fields) {
  Peaks p;
  p.vector_float32 = fields["vector_float32"].cast<double>();
  p.vector_float64 = fields["vector_float64"].cast<double>();
  p.matrix_float16 = fields["matrix_float16"].cast<double>();
  p.matrix_bfloat16 = fields["matrix_bfloat16"].cast<double>();
  p.matrix_float32 = fields["matrix_float32"].cast<double>();
  p.matrix_float64 = fields["matrix_float64"].cast<double>();
  return p;
}

DType read_dtype(const std::string& function, const std::string& text) {
  if (const auto dtype = dtype_named(text)) return *dtype;
  std::string names;
  for (int i = 0; i < kDTypes; ++i) names += (i ? ", " : "") + std::string(name(static_cast<DType>(i)));
  throw ValueError("kfusion." + function + ": dtype must be one of " + names + ", got '" + text + "'");
}

/// "9.0" as 90; 0 where there is none.
int capability_of(const std::string& text) {
  const auto dot = text.find('.');
  return dot == std::string::npos ? 0 : 10 * std::stoi(text) + std::stoi(text.substr(dot + 1));
}

}  // namespace

Device read_device(const py::dict& fields) {
  Device d;
  d.name = fields["name"].cast<std::string>();
  d.is_cpu = fields["is_cpu"].cast<bool>();
  d.compute_capability = capability_of(fields["compute_capability"].cast<std::string>());
  d.bandwidth = fields["bandwidth"].cast<double>();
  d.peak_bandwidth = fields["peak_bandwidth"].cast<double>();
  d.cache_bandwidth = fields["cache_bandwidth"].cast<double>();
  d.cache_bytes = fields["cache_bytes"].cast<std::int64_t>();
  d.on_chip_bytes = fields["on_chip_bytes"].cast<std::int64_t>();
  d.tile_bytes = fields["tile_bytes"].cast<std::int64_t>();
  d.units = fields["units"].cast<int>();
  d.launch_us = fields["launch_us"].cast<double>();
  d.write_allocate = fields["write_allocate"].cast<bool>();
  d.peaks = read_peaks(fields["peaks"]);
  return d;
}

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
