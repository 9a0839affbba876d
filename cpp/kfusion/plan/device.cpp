#include "kfusion/plan/device.hpp"

namespace kfusion {
namespace {

/// Vector units by compute type. Half types are computed in float32. 32-bit integers, and the bytes of bool, go through
/// lanes as wide as float32's; a 64-bit integer is taken as two of them, since no GPU has 64-bit integer units.
double vector_peak(const Peaks& p, DType dtype) {
  if (dtype == DType::kFloat64) return p.vector_float64;
  const double peak = p.vector_float32 > 0 ? p.vector_float32 : p.vector_float64;
  return dtype == DType::kInt64 ? peak / 2 : peak;
}

/// Matrix units by stored type; 0 where the device has none.
double matrix_peak(const Peaks& p, DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return p.matrix_float16;
    case DType::kBFloat16:
      return p.matrix_bfloat16;
    case DType::kFloat32:
      return p.matrix_float32;
    case DType::kFloat64:
      return p.matrix_float64;
    default:
      return 0;
  }
}

}  // namespace

double peak_flops(const Device& d, DType dtype, bool matrix) {
  if (!matrix) return vector_peak(d.peaks, dtype);
  if (const double peak = matrix_peak(d.peaks, dtype); peak > 0) return peak;
  return is_half(dtype) ? peak_flops(d, DType::kFloat32, true) : vector_peak(d.peaks, dtype);
}

double ridge_point(const Device& d, DType dtype, bool matrix) {
  return peak_flops(d, dtype, matrix) / d.peak_bandwidth;
}

}  // namespace kfusion
