#include "cpu/products/factors.hpp"

#include <algorithm>

#include "cpu/job.hpp"
#include "cpu/products/piece.hpp"
#include "cpu/strided.hpp"
#include "cpu/thread_pool.hpp"

namespace kfusion::cpu {
namespace {

bool is_aligned(const std::byte* p, std::int64_t item) {
  return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(item) == 0;
}

}  // namespace

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
