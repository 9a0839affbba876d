// ReLU+LayerNorm in one pass over memory. The arithmetic must not make the memory wait, nor the other way round: which
// order does that depends on the length of a row. All orders give the same bits.
#pragma once
#include "cpu/relu_layernorm/row_sums.hpp"
#include "cpu/relu_layernorm/row_sweeps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

constexpr std::int64_t kShortRowBytes = 5 * 1024;
constexpr std::int64_t kNextRowBytes = 256 * 1024;  // a row that the second-level cache holds beside its successor

template <class E>
constexpr DType kDType = DType::kFloat32;
template <>
constexpr DType kDType<Float16> = DType::kFloat16;
template <>
constexpr DType kDType<BFloat16> = DType::kBFloat16;
template <>
constexpr DType kDType<Float64> = DType::kFloat64;

template <class E>
constexpr std::int64_t kChunk = chunk_elements(kDType<E>);

/// From a row to what is fetched meanwhile: the next row, or `bytes` beyond its beginning (whole rows, where they lie
/// apart).
template <class E>
KF_INLINE std::int64_t fetch_distance(const FusedRows& job, std::int64_t bytes) {
  const std::int64_t row_bytes = job.cols * kItem<E>;
  return job.x_stride == row_bytes ? row_bytes + bytes : (1 + bytes / row_bytes) * job.x_stride;
}

/// Row after row. The second pass and the output share the fetching of what comes next, kSecond lines of a block and
/// the others (measured: two and two for the shortest rows, one and three for rows of many chunks).
template <class E, int kSecond>
void rows_in_turn(const FusedRows& job, std::int64_t distance) {
  const std::int64_t second_bytes = job.cols * kItem<E> * kSecond / kBlockLines;
  for (std::int64_t r = 0; r < job.rows; ++r) {
    const std::byte* const x = job.x + r * job.x_stride;
    const std::uintptr_t next = address(x) + distance;
    Moments row = {};
    for (std::int64_t at = 0; at < job.cols; at += kChunk<E>) {
      const std::int64_t count = job.cols - at < kChunk<E> ? job.cols - at : kChunk<E>;
      const Fetch<kSecond> fetch = {next + at * kItem<E> * kSecond / kBlockLines};
      append(row, at, moments<E>(x + at * kItem<E>, count, FetchNothing{}, fetch), count);
    }
    const Fetch<kBlockLines - kSecond> fetch = {next + second_bytes};
    normalize_span<E>({x, job.y + r * job.y_stride, job.cols, job.stream}, fetching(fetch),
                      finish(row, job.cols, job.eps), job.affine);
  }
}

/// Rows of one chunk, three at a time: while one is written, the next one's squares and the sum of the one after it
/// are taken, so that reading never pauses for arithmetic on what is on chip.
template <class E>
void rows_in_step(const FusedRows& job) {
  constexpr std::int64_t kFetchBytes = 4096;
  const std::int64_t distance = fetch_distance<E>(job, kFetchBytes) - job.x_stride;
  const auto row = [&](std::int64_t r) { return job.x + r * job.x_stride; };
  const auto size = [&](std::int64_t r) { return r >= 0 && r < job.rows ? job.cols : 0; };
  typename E::Compute centre = 0;
  RowScale scale = {};
  for (std::int64_t r = -2; r < job.rows; ++r) {
    auto first = first_pass<E>(row(r + 2), size(r + 2), Fetch<kBlockLines>{address(row(r + 2)) + distance});
    auto second = second_pass<E>(row(r + 1), size(r + 1), centre, FetchNothing{});
    normalize_span<E>(
        {row(r), job.y + r * job.y_stride, size(r), job.stream},
        [&](std::int64_t) { first.advance(), second.advance(); }, scale, job.affine);
    scale = finish(moments_about<E>(centre, second.finish(), job.cols), job.cols, job.eps);
    centre = rough_mean<E>(first.finish(), job.cols);
  }
}

template <class E>
Moments chunk_moments(const std::byte* x, std::int64_t size) {
  return moments<E>(x, size, fetch_ahead(x), Fetch<kBlockLines>{address(x) + size * kItem<E>});
}

template <class E>
void normalize(const Span& s, const RowScale& scale, const Affine& affine) {
  normalize_span<E>(s, fetching(fetch_ahead(s.x)), scale, affine);
}

/// Rows too long to fetch one beside another: each is read twice.
template <class E>
void rows_read_twice(const FusedRows& job) {
  for (std::int64_t r = 0; r < job.rows; ++r) {
    const std::byte* const x = job.x + r * job.x_stride;
    Moments row = {};
    for (std::int64_t at = 0; at < job.cols; at += kChunk<E>) {
      const std::int64_t count = job.cols - at < kChunk<E> ? job.cols - at : kChunk<E>;
      append(row, at, chunk_moments<E>(x + at * kItem<E>, count), count);
    }
    normalize<E>({x, job.y + r * job.y_stride, job.cols, job.stream}, finish(row, job.cols, job.eps), job.affine);
  }
}

template <class E>
void fused_rows(const FusedRows& job) {
  const std::int64_t row_bytes = job.cols * kItem<E>;
  if (row_bytes <= kShortRowBytes) return rows_in_turn<E, 2>(job, fetch_distance<E>(job, 8192));
  if (job.cols <= kChunk<E>) return rows_in_step<E>(job);
  if (row_bytes <= kNextRowBytes) return rows_in_turn<E, 1>(job, fetch_distance<E>(job, 0));
  rows_read_twice<E>(job);
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
