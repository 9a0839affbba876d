#include "python/records/device_dict.hpp"

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

}  // namespace kfusion
