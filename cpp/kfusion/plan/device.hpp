// What a plan needs to know of a device: its limits and its prices.
#pragma once
#include <cstdint>
#include <string>

#include "kfusion/dtype.hpp"

namespace kfusion {

/// FLOP/s by unit: `vector` for maps and reductions by compute type, `matrix` for contractions by stored type (dense,
/// never with structured sparsity). 0: the device has no such unit; the next wider one is used.
struct Peaks {
  double vector_float32 = 0, vector_float64 = 0;
  double matrix_float16 = 0, matrix_bfloat16 = 0, matrix_float32 = 0, matrix_float64 = 0;
};

/// Bytes. Rows of factors and results of half types that begin at multiples of so many have quick products on a GPU.
inline constexpr std::int64_t kRowAlignment = 16;
inline bool has_aligned_rows(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(item_bytes(dtype)) % kRowAlignment == 0;
}

struct Device {
  std::string name;
  bool is_cpu = false;
  int compute_capability = 0;      ///< of an NVIDIA GPU, 10 x major + minor: 90 for Hopper; else 0
  double bandwidth = 0;            ///< bytes/s that a copy reaches (read plus write)
  double peak_bandwidth = 0;       ///< bytes/s of the data sheet
  double cache_bandwidth = 0;      ///< bytes/s out of the last-level cache
  std::int64_t cache_bytes = 0;    ///< last-level cache: L2 of a GPU, L3 of a CPU
  std::int64_t on_chip_bytes = 0;  ///< what one row can occupy: a thread-block cluster's (else a block's) shared
                                   ///< memory; a core's L2 on a CPU
  std::int64_t tile_bytes = 0;     ///< what one block has: shared memory of a block; a core's L2 on a CPU
  int units = 0;                   ///< SMs, compute units or cores
  double launch_us = 0;            ///< intercept of the time of a copy kernel over its bytes
  bool write_allocate = false;     ///< an ordinary store reads the line first (a CPU's)
  Peaks peaks;
};

/// FLOP/s for work of this dtype in that unit.
double peak_flops(const Device& d, DType dtype, bool matrix);

/// FLOP per byte at which the two roofs meet: peak_flops / peak_bandwidth.
double ridge_point(const Device& d, DType dtype, bool matrix);

}  // namespace kfusion
