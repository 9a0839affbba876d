#include "cpu/row_job.hpp"

#include <algorithm>
#include <cstdlib>

#include "cpu/platform.hpp"
#include "kfusion/divide_up.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kBytesPerThread = 128 * 1024;
/// Less is done sooner by one thread than a worker that sleeps is woken, which takes some 30 us.
constexpr std::int64_t kBriefBytes = 3 << 19;
constexpr std::int64_t kScratchBytes = 256 * 1024;  // a thread's share of the second-level cache

/// Rows gathered together: whole cache lines of a transposed array, four of them where the scratch has room.
std::int64_t rows_per_group(std::int64_t item, std::int64_t pitch) {
  const std::int64_t line = 64 / item;
  return std::clamp(kScratchBytes / pitch / line * line, line, 4 * line);
}

void fill(std::byte* to, std::int64_t size, double value, DType dtype) {
  if (dtype == DType::kFloat64) {
    std::fill_n(reinterpret_cast<double*>(to), size, value);
  } else {
    std::fill_n(reinterpret_cast<float*>(to), size, static_cast<float>(value));
  }
}

}  // namespace

int threads_for(std::int64_t bytes) {
  if (bytes < 2 * kBytesPerThread) return 1;
  const int threads = static_cast<int>(std::min<std::int64_t>(bytes / kBytesPerThread, num_threads()));
  return bytes < kBriefBytes && threads > 1 && !workers_are_near(threads - 1) ? 1 : threads;
}

bool streams(std::int64_t bytes) {
  // A large cache is shared: of the 480 MB that a machine of two cores reported, results of 16 MB already found no
  // room.
  constexpr std::size_t kMost = 24 << 20;
  static const auto least = static_cast<std::int64_t>(std::min(last_level_cache() / 4 * 3, kMost));
  return bytes >= least;
}

RowJob::RowJob(const RowProblem& problem)
    : p(problem),
      k(row_kernels(problem.dtype)),
      item(static_cast<std::int64_t>(item_bytes(problem.dtype))),
      chunk(chunk_elements(problem.dtype)),
      chunks(divide_up(problem.cols, chunk)),
      x_dense(problem.cols == 1 || problem.x.col_stride == item),
      y_dense(problem.cols == 1 || problem.y.col_stride == item) {
  const std::int64_t bytes = p.rows * p.cols * item;
  threads = threads_for(2 * bytes);
  // In place the lines are in the cache already, and theirs to write.
  stream = p.x.data != p.y.data && streams(bytes);
  pitch = divide_up(std::min(p.cols, chunk) * item, 64) * 64 + 64;  // off a power of two: rows fall into other sets
  run_rows_ = p.outer_shape[p.outer_ndim - 1];
  set_group_rows(rows_per_group(item, pitch));
  if (p.weight.data || p.bias.data)
    affine_ = {parameter(p.weight, 1.0, weight_buffer_), parameter(p.bias, -0.0, bias_buffer_)};
}

void RowJob::set_group_rows(std::int64_t rows) {
  group_rows = rows;
  groups_per_run_ = divide_up(run_rows_, rows);
  groups = p.rows / run_rows_ * groups_per_run_;
}

Group RowJob::group(std::int64_t index) const {
  const std::int64_t begin = index % groups_per_run_ * group_rows;
  const std::int64_t first = index / groups_per_run_ * run_rows_ + begin;
  const int last_axis = p.outer_ndim - 1;
  return {p.x.data + p.row_offset(p.x, first),     p.y.data + p.row_offset(p.y, first), first,
          std::min(group_rows, run_rows_ - begin), p.x.outer_strides[last_axis],        p.y.outer_strides[last_axis]};
}

DenseRows RowJob::read(const Group& g, std::int64_t c, Scratch& scratch) const {
  const std::byte* from = g.x + c * chunk * p.x.col_stride;
  if (x_dense) return {from, g.x_stride};
  std::byte* const rows = scratch.rows(*this);
  gather({g.rows, chunk_size(c), g.x_stride, p.x.col_stride, static_cast<int>(item)}, from, rows, pitch);
  return {rows, pitch};
}

std::byte* RowJob::target(const Group& g, std::int64_t c, std::int64_t row, Scratch& scratch) const {
  return y_dense ? g.y + row * g.y_stride + c * chunk * item : scratch.rows(*this) + row * pitch;
}

void RowJob::finish(const Group& g, std::int64_t c, Scratch& scratch) const {
  if (y_dense) return;
  scatter({g.rows, chunk_size(c), g.y_stride, p.y.col_stride, static_cast<int>(item)}, scratch.rows(*this), pitch,
          g.y + c * chunk * p.y.col_stride);
}

Affine RowJob::affine_at(std::int64_t c) const {
  if (affine_.weight == nullptr) return {};
  const std::int64_t offset = c * chunk * (p.dtype == DType::kFloat64 ? 8 : 4);
  return {affine_.weight + offset, affine_.bias + offset};
}

/// `v` as a dense array of the compute type: itself, or converted into the buffer; `absent` everywhere where there is
/// none (kernels for each combination would double the time that they take to compile).
const std::byte* RowJob::parameter(const ColOperand& v, double absent, Buffer& buffer) const {
  const DType compute = p.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const auto size = static_cast<std::int64_t>(item_bytes(v.dtype));
  const auto width = static_cast<std::int64_t>(item_bytes(compute));
  if (v.data && v.dtype == compute && v.stride == size) return v.data;
  buffer = Buffer(static_cast<std::size_t>(p.cols * width));
  if (v.data == nullptr) {
    fill(buffer.data(), p.cols, absent, compute);
    return buffer.data();
  }
  const auto convert =
      v.dtype == DType::kFloat32 && compute == DType::kFloat64 ? kernels().float_to_double : row_kernels(v.dtype).widen;
  constexpr std::int64_t kBlock = 256;
  alignas(64) std::byte dense[kBlock * 8];
  for (std::int64_t at = 0; at < p.cols; at += kBlock) {
    const std::int64_t n = std::min(kBlock, p.cols - at);
    gather({1, n, 0, v.stride, static_cast<int>(size)}, v.data + at * v.stride, dense, 0);
    convert(dense, n, buffer.data() + at * width);
  }
  return buffer.data();
}

}  // namespace kfusion::cpu
