#include "cpu/products/factors.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/job.hpp"
#include "cpu/products/piece.hpp"
#include "cpu/strided.hpp"
#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {
namespace {

bool is_aligned(const std::byte* p, std::int64_t item) {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(item) == 0;
}

/// Whether none of `count` floats, `step` bytes apart, has all bits of the exponent.
template <class Bits>
bool are_finite(const std::byte* from, std::int64_t count, std::int64_t step, Bits exponent) {
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, from + i * step, sizeof bits);
    finite &= (bits & exponent) != exponent;
  }
  return finite;
}

bool are_finite(DType dtype, const std::byte* from, std::int64_t count, std::int64_t step) {
  if (dtype == DType::kFloat64) return are_finite<std::uint64_t>(from, count, step, 0x7ff0000000000000);
  if (dtype == DType::kFloat32) return are_finite<std::uint32_t>(from, count, step, 0x7f800000);
  return are_finite<std::uint16_t>(from, count, step, dtype == DType::kFloat16 ? 0x7c00 : 0x7f80);
}

}  // namespace

bool Factors::Placed::is_finite(DType dtype, std::int64_t extent, std::int64_t depth) const {
  Extents each = batch_axes;
  for (std::size_t i = 0; i < each.size(); ++i)
    if (batches[i] == 0) each[i] = 1;
  const std::int64_t rows = product(each) * depth;
  std::atomic<bool> finite = true;
  parallel_for(rows, threads_for(rows * extent * item), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end && finite; ++row) {
      const std::int64_t first = batch_offset(row / depth, each, batches) + row % depth * matrix.depth;
      if (!are_finite(dtype, matrix.data + first * item, extent, matrix.outer * item)) finite = false;
    }
  });
  return finite;
}

Matrix Factors::Placed::at(std::int64_t batch, std::int64_t outer) const {
  Matrix m = matrix;
  m.data += (batch_offset(batch, batch_axes, batches) + outer * matrix.outer) * item;
  return m;
}

Factors::Placed Factors::place(const Factor& f, const std::byte* base, const Extents& batch_axes, std::int64_t extent,
                               std::int64_t depth, bool merged) {
  const auto item = static_cast<std::int64_t>(item_bytes(f.dtype));
  const Matrix m{base + f.offset * item, f.outer, f.depth};
  if (is_half(f.dtype)) return {m, batch_axes, f.batch_strides, item};
  const Matrix all{m.data, merged && extent == 1 ? f.batch : f.outer, f.depth};
  if (blas_.reads(all, merged ? product(batch_axes) * extent : extent, depth) && is_aligned(m.data, item))
    return {m, batch_axes, f.batch_strides, item};
  // Dense, what is summed over innermost, each batch that there is once.
  Placed dense{{nullptr, depth, 1}, batch_axes, f.batch_strides, item};
  Extents copied = batch_axes;
  std::int64_t batches = 1;
  for (std::size_t i = copied.size(); i-- > 0;) {
    if (f.batch_strides[i] == 0) copied[i] = 1;
    dense.batches[i] = copied[i] == 1 ? 0 : batches * extent * depth;
    batches *= copied[i];
  }
  const std::int64_t row_bytes = depth * item;
  std::byte* const to = copies_.emplace_back(kfusion::at(batches * extent * row_bytes)).data();
  dense.matrix.data = to;
  const int threads = threads_for(2 * batches * extent * row_bytes);
  parallel_for(batches * extent, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin, n; row < end; row += n) {
      const std::int64_t batch = row / extent, first = row % extent;
      n = std::min(end - row, extent - first);
      gather({n, depth, m.outer * item, m.depth * item, static_cast<int>(item)},
             m.data + (batch_offset(batch, copied, f.batch_strides) + first * m.outer) * item, to + row * row_bytes,
             row_bytes);
    }
  });
  return dense;
}

}  // namespace kfusion::cpu
