// ReLU+LayerNorm in one pass over memory. The arithmetic must not make the memory wait, nor the other way round: which
// order does that depends on the length of a row. All orders give the same bits.
#pragma once
#include "cpu/relu_layernorm/row_sums.hpp"
#include "cpu/relu_layernorm/row_sweeps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

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

/// Elements of the chunk that begins at `at` in a row.
template <class E>
KF_INLINE std::int64_t chunk_size(std::int64_t cols, std::int64_t at) {
  return cols - at < kChunk<E> ? cols - at : kChunk<E>;
}

template <class E>
KF_INLINE Affine affine_at(const Affine& a, std::int64_t column) {
  const std::int64_t offset = column * static_cast<std::int64_t>(sizeof(typename E::Compute));
  return a.weight ? Affine{a.weight + offset, a.bias + offset} : Affine{};
}

/// While a chunk of a row is written, the sum of the next row's is taken: memory is read and written at the same time.
/// The squares follow on chip, beside the fetching of what is next.
template <class E>
void rows_in_step(const FusedRows& job) {
  EdgeLine edge;
  RowScale scale = {};
  for (std::int64_t r = -1; r < job.rows; ++r) {
    const std::byte *const x = job.x + r * job.x_stride, *const next = x + job.x_stride;
    std::byte* const y = job.y + r * job.y_stride;
    Moments row = {};
    for (std::int64_t at = 0; at < job.cols; at += kChunk<E>) {
      const std::int64_t size = chunk_size<E>(job.cols, at), bytes = at * kItem<E>;
      const std::int64_t of_this = r < 0 ? 0 : size, of_next = r + 1 < job.rows ? size : 0;
      auto first = first_pass<E>(next + bytes, of_next, Fetch<kBlockLines>{address(next) + bytes + kAheadBytes});
      normalize_span<E>(
          {x + bytes, y + bytes, of_this, job.stream, &edge}, [&] { first.advance(); }, scale,
          affine_at<E>(job.affine, at));
      const auto centre = rough_mean<E>(first.finish(), size);
      const auto second =
          second_pass<E>(next + bytes, of_next, centre, Fetch<1>{address(next) + bytes + size * kItem<E> + kAheadBytes})
              .finish();
      append(row, at, moments_about<E>(centre, second, size), size);
    }
    scale = finish(row, job.cols, job.eps);
  }
  flush(edge);
}

template <class E>
KF_INLINE Moments chunk_moments(const std::byte* x, std::int64_t size) {
  return moments<E>(x, size, fetch_ahead(x), Fetch<kBlockLines>{address(x) + size * kItem<E>});
}

template <class E>
KF_INLINE void normalize(const Span& s, const RowScale& scale, const Affine& affine) {
  normalize_span<E>(s, fetching(fetch_ahead(s.x)), scale, affine);
}

/// Rows that are too long to fetch one beside another, each of which is read twice, or shorter than a block.
template <class E>
void rows_in_turn(const FusedRows& job) {
  const bool stream = job.stream && job.cols * kItem<E> >= kBlockBytes;  // of shorter rows few lines would be whole
  for (std::int64_t r = 0; r < job.rows; ++r) {
    const std::byte* const x = job.x + r * job.x_stride;
    Moments row = {};
    for (std::int64_t at = 0; at < job.cols; at += kChunk<E>) {
      const std::int64_t count = chunk_size<E>(job.cols, at);
      append(row, at, chunk_moments<E>(x + at * kItem<E>, count), count);
    }
    normalize<E>({x, job.y + r * job.y_stride, job.cols, stream}, finish(row, job.cols, job.eps), job.affine);
  }
}

template <class E>
void fused_rows(const FusedRows& job) {
  const std::int64_t bytes = job.cols * kItem<E>;
  bytes >= kBlockBytes&& bytes <= kNextRowBytes ? rows_in_step<E>(job) : rows_in_turn<E>(job);
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
