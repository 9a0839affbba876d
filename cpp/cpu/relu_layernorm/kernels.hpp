// What kernels.cpp exports, once per instruction set: loops over contiguous spans of one dtype.
// Strides, threads and buffers are the drivers' business.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kfusion/dtype.hpp"

namespace kfusion::cpu {

struct EdgeLine;

/// Moments are taken over chunks of this many elements, two passes each while the chunk is in the first-level cache,
/// and merged from left to right: so a row's result depends on its width alone, not on who computes it.
constexpr std::int64_t chunk_elements(DType t) { return t == DType::kFloat64 ? 2048 : 4096; }

/// Mean of relu(x) over a chunk, and the sum of the squared distances from it.
struct Moments {
  double mean, m2;
};

/// y = (relu(x) - mean) * rstd
struct RowScale {
  double mean, rstd;
};

/// Weight and bias, contiguous, of the compute type; both, or nullptr for both.
struct Affine {
  const std::byte* weight = nullptr;
  const std::byte* bias = nullptr;
};

/// Whole rows, each contiguous; strides in bytes.
struct FusedRows {
  const std::byte* x;
  std::byte* y;
  std::int64_t rows, cols, x_stride, y_stride;
  Affine affine;
  double eps;
  bool stream;  ///< store past the caches
};

/// A contiguous span of an elementwise kernel.
struct Span {
  const std::byte* x;
  std::byte* y;
  std::int64_t size;
  bool stream;               ///< store past the caches
  EdgeLine* edge = nullptr;  ///< where lines wait that the span has a part of; nullptr: its parts are stored at once
};

struct RowKernels {
  void (*fused_rows)(const FusedRows& job);

  // The same in pieces, for rows that are gathered or split over threads. Bit for bit what fused_rows computes.
  Moments (*chunk_moments)(const std::byte* x, std::int64_t size);                   ///< size <= chunk_elements
  RowScale (*row_scale)(const Moments* chunks, std::int64_t cols, double eps);       ///< all of a row's chunks
  void (*normalize)(const Span& span, const RowScale& scale, const Affine& affine);  ///< affine at the span's start

  // The unfused kernels.
  void (*relu)(const Span& span);
  double (*sum)(const std::byte* x, std::int64_t size);                       ///< size <= chunk_elements
  double (*sum_squares)(const std::byte* x, std::int64_t size, double mean);  ///< of x - mean
  void (*centre)(const Span& span, double mean);                              ///< x - mean
  void (*scale)(const Span& span, double rstd, const Affine& affine);         ///< x * rstd [* w + b]

  void (*widen)(const std::byte* from, std::int64_t size, std::byte* to);  ///< to the compute type
  void (*fence)();  ///< ends a thread's part of a job that streams
};

/// Copies with stores past the caches.
using StreamCopy = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

struct Kernels {
  RowKernels rows[kFloatDTypes];  ///< by DType
  void (*float_to_double)(const std::byte* from, std::int64_t size, std::byte* to);
  StreamCopy stream_copy;
};

/// The kernels of the level in use.
const Kernels& kernels();
inline const RowKernels& row_kernels(DType t) { return kernels().rows[static_cast<int>(t)]; }

namespace baseline {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

}  // namespace kfusion::cpu
