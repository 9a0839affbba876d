// The fused kernel: which rows go to which thread, and how rows that are not dense or not numerous are handled. Every
// path takes the same moments of the same chunks and merges them in the same order, so all give the same bits.
#include "cpu/relu_layernorm/relu_layernorm.hpp"

#include <algorithm>
#include <vector>

#include "cpu/row_job.hpp"

namespace kfusion::cpu {
namespace {

constexpr std::int64_t kSplitRowBytes = 4 << 20;     // a row that no core's own cache holds: all cores share it
constexpr std::int64_t kUnevenRowBytes = 256 << 10;  // a row worth sharing where there are few

void dense_rows(const RowJob& job, std::int64_t begin, std::int64_t end) {
  const RowProblem& p = job.p;
  const int last = p.outer_ndim - 1;
  const std::int64_t run = p.outer_shape[last];
  while (begin < end) {
    const std::int64_t rows = std::min(run - begin % run, end - begin);
    job.k.fused_rows({p.x.data + p.row_offset(p.x, begin), p.y.data + p.row_offset(p.y, begin), rows, p.cols,
                      p.x.outer_strides[last], p.y.outer_strides[last], job.affine_at(0), p.eps, job.stream});
    begin += rows;
  }
  job.k.fence();
}

/// Moments and scales of a group of rows.
struct Statistics {
  std::vector<Moments> moments;  // [row][chunk]
  std::vector<RowScale> scales;  // [row]
  explicit Statistics(const RowJob& job)
      : moments(static_cast<std::size_t>(job.group_rows * job.chunks)),
        scales(static_cast<std::size_t>(job.group_rows)) {}
};

void take_moments(const RowJob& job, const Group& g, std::int64_t c, RowJob::Scratch& scratch, Statistics& s) {
  const DenseRows x = job.read(g, c, scratch);
  for (std::int64_t r = 0; r < g.rows; ++r)
    s.moments[r * job.chunks + c] = job.k.chunk_moments(x.data + r * x.stride, job.chunk_size(c));
}

void take_scales(const RowJob& job, const Group& g, Statistics& s) {
  for (std::int64_t r = 0; r < g.rows; ++r)
    s.scales[r] = job.k.row_scale(&s.moments[r * job.chunks], job.p.cols, job.p.eps);
}

void write_tile(const RowJob& job, const Group& g, std::int64_t c, const DenseRows& x, RowJob::Scratch& scratch,
                const Statistics& s) {
  for (std::int64_t r = 0; r < g.rows; ++r)
    job.k.normalize({x.data + r * x.stride, job.target(g, c, r, scratch), job.chunk_size(c), job.stream && job.y_dense},
                    s.scales[r], job.affine_at(c));
  job.finish(g, c, scratch);
}

/// One thread, whole groups. A row of one chunk is gathered once, a longer one twice.
void strided_groups(const RowJob& job, std::int64_t begin, std::int64_t end) {
  RowJob::Scratch scratch;
  Statistics s(job);
  for (std::int64_t i = begin; i < end; ++i) {
    const Group g = job.group(i);
    for (std::int64_t c = 0; c < job.chunks; ++c) take_moments(job, g, c, scratch, s);
    take_scales(job, g, s);
    for (std::int64_t c = 0; c < job.chunks; ++c) {
      const bool kept = job.chunks == 1 && !job.x_dense;
      write_tile(job, g, c, kept ? DenseRows{scratch.rows(job), job.pitch} : job.read(g, c, scratch), scratch, s);
    }
  }
  job.k.fence();
}

/// All threads on one group at a time, each with some of its chunks.
void split_groups(const RowJob& job) {
  Statistics s(job);
  for (std::int64_t i = 0; i < job.groups; ++i) {
    const Group g = job.group(i);
    parallel_for(job.chunks, job.threads, [&](std::int64_t begin, std::int64_t end) {
      RowJob::Scratch scratch;
      for (std::int64_t c = begin; c < end; ++c) take_moments(job, g, c, scratch, s);
    });
    take_scales(job, g, s);
    parallel_for(job.chunks, job.threads, [&](std::int64_t begin, std::int64_t end) {
      RowJob::Scratch scratch;
      for (std::int64_t c = begin; c < end; ++c) write_tile(job, g, c, job.read(g, c, scratch), scratch, s);
      job.k.fence();
    });
  }
}

/// Whether a row (a group of rows, where they are gathered) is shared by the threads.
bool split(const RowJob& job, std::int64_t units, std::int64_t unit_rows) {
  if (job.threads < 2 || job.chunks < 2) return false;
  const std::int64_t bytes = unit_rows * job.p.cols * job.item;
  return units < job.threads || bytes >= kSplitRowBytes || (units < 8 * job.threads && bytes >= kUnevenRowBytes);
}

}  // namespace

void fused_relu_layernorm(const RowProblem& p) {
  if (p.rows == 0 || p.cols == 0) return;
  RowJob job(p);
  if (job.x_dense && job.y_dense) {
    if (!split(job, p.rows, 1))
      return parallel_for(p.rows, job.threads, [&](std::int64_t b, std::int64_t e) { dense_rows(job, b, e); });
    job.set_group_rows(1);
  } else if (!split(job, job.groups, job.group_rows)) {
    return parallel_for(job.groups, job.threads, [&](std::int64_t b, std::int64_t e) { strided_groups(job, b, e); });
  }
  split_groups(job);
}

}  // namespace kfusion::cpu
