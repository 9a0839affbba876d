// How a row problem is cut up: threads, groups of neighbouring rows, chunks of columns. Shared by the fused and the
// unfused drivers.
#pragma once
#include <cstdint>

#include "cpu/buffer.hpp"
#include "cpu/relu_layernorm/kernels.hpp"
#include "cpu/strided.hpp"
#include "cpu/thread_pool.hpp"
#include "kfusion/rows.hpp"

namespace kfusion::cpu {

/// Threads that a kernel moving `bytes` bytes is worth: two win from about 256 KB if they are awake, else from 1.5 MB.
/// To be asked once a job.
int threads_for(std::int64_t bytes);

/// Whether results of `bytes` bytes in all are stored past the caches.
bool streams(std::int64_t bytes);

/// Neighbouring rows whose offsets differ by a constant.
struct Group {
  const std::byte* x;
  std::byte* y;
  std::int64_t first, rows, x_stride, y_stride;
};

/// Rows that are dense: x as it is, or a copy in the scratch.
struct DenseRows {
  const std::byte* data;
  std::int64_t stride;
};

/// One row problem, prepared. A tile is a group of rows x one chunk of columns.
class RowJob {
 public:
  explicit RowJob(const RowProblem& problem);

  /// A thread's working memory, made when it is first needed.
  class Scratch {
   public:
    std::byte* rows(const RowJob& job) {
      if (buffer_.data() == nullptr) buffer_ = Buffer(static_cast<std::size_t>(job.pitch * job.group_rows));
      return buffer_.data();
    }

   private:
    Buffer buffer_;
  };

  /// Groups of `rows` rows (fewer at the end of a run) from here on, instead of as many as the scratch holds.
  void set_group_rows(std::int64_t rows);

  Group group(std::int64_t index) const;
  std::int64_t chunk_size(std::int64_t c) const { return c + 1 < chunks ? chunk : p.cols - c * chunk; }

  /// The tile's x, gathered into the scratch where it is not dense.
  DenseRows read(const Group& g, std::int64_t c, Scratch& scratch) const;
  /// Where a tile of y is to be written, dense; `finish` puts it in its place.
  std::byte* target(const Group& g, std::int64_t c, std::int64_t row, Scratch& scratch) const;
  void finish(const Group& g, std::int64_t c, Scratch& scratch) const;

  /// Weight and bias from column chunk `c` on.
  Affine affine_at(std::int64_t c) const;

  const RowProblem& p;
  const RowKernels& k;
  std::int64_t item, chunk, chunks;  ///< bytes an element; elements a chunk; chunks a row
  bool x_dense, y_dense, stream;
  int threads;
  std::int64_t group_rows, pitch;  ///< most rows in a group; bytes from row to row in the scratch
  std::int64_t groups;

 private:
  const std::byte* parameter(const ColOperand& v, double absent, Buffer& buffer) const;

  std::int64_t run_rows_, groups_per_run_;  // a run: rows along the last outer axis
  Buffer weight_buffer_, bias_buffer_;
  Affine affine_;
};

}  // namespace kfusion::cpu
