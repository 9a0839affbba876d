// ReLU+LayerNorm over contiguous rows, fused and unfused: one source for every dtype and instruction set (KF_ISA names
// the namespace). In order: row_sums.hpp, row_sweeps.hpp, rows.hpp.
#include "cpu/relu_layernorm/kernels.hpp"

#include "cpu/relu_layernorm/rows.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

template <class E>
RowScale row_scale(const Moments* chunks, std::int64_t cols, double eps) {
  Moments row = {};
  for (std::int64_t at = 0; at < cols; at += kChunk<E>)
    append(row, at, chunks[at / kChunk<E>], chunk_size<E>(cols, at));
  return finish(row, cols, eps);
}

// ---- unfused --------------------------------------------------------------------------------------------------

template <class E>
void relu_kernel(const Span& s) {
  sweep_with<E, false>(s, fetching(fetch_ahead(s.x)), {}, [](const ValueOf<E>& v) { return relu(v); });
}

template <class E>
double sum(const std::byte* x, std::int64_t size) {
  using Sum = OneSum<ValueOf<E>>;
  const auto step = [](Sum& s, const ValueOf<E>& v, int) { s.sum += v; };
  return sum_lanes(accumulation<E, Sum>(x, size, fetch_ahead(x), step).finish().sum);
}

template <class E>
double sum_squares(const std::byte* x, std::int64_t size, double mean) {
  using V = ValueOf<E>;
  const auto centre = static_cast<typename E::Compute>(mean);
  const auto step = [=](OneSum<V>& s, const V& v, int count) {
    V d = v - centre;
    if (count) d = first_lanes(d, count);
    s.sum += d * d;
  };
  return sum_lanes(accumulation<E, OneSum<V>>(x, size, fetch_ahead(x), step).finish().sum);
}

template <class E>
void centre(const Span& s, double mean) {
  const auto m = static_cast<typename E::Compute>(mean);
  sweep_with<E, false>(s, fetching(fetch_ahead(s.x)), {}, [=](const ValueOf<E>& v) { return v - m; });
}

template <class E>
void scale(const Span& s, double rstd, const Affine& affine) {
  const auto factor = static_cast<typename E::Compute>(rstd);
  sweep_affine<E>(s, fetching(fetch_ahead(s.x)), affine, [=](const ValueOf<E>& v) { return v * factor; });
}

void fence() { stream_fence(); }

// ---- conversions and copies -----------------------------------------------------------------------------------

template <class E>
void widen(const std::byte* from, std::int64_t size, std::byte* to) {
  using V = ValueOf<E>;
  using C = typename E::Compute;
  std::int64_t i = 0;
  for (; i + kLanes<E> <= size; i += kLanes<E>) store<V>(to + i * sizeof(C), load_values<E>(from + i * kItem<E>));
  const int rest = static_cast<int>(size - i);
  if (rest) store_first<V>(to + i * sizeof(C), load_values<E>(from + i * kItem<E>, rest), rest * sizeof(C));
}

void float_to_double(const std::byte* from, std::int64_t size, std::byte* to) {
  for (std::int64_t i = 0; i < size; ++i) store<double>(to + i * 8, load<float>(from + i * 4));
}

/// At and after the first line of `to`; the edges by plain stores.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  using V = VectorOf<std::uint8_t, kVectorBytes>::Type;
  const std::size_t phase = -address(to) & (kLineBytes - 1), head = phase < bytes ? phase : bytes;
  __builtin_memcpy(to, from, head);
  std::size_t i = head;
  for (; i + 4 * kLineBytes <= bytes; i += 4 * kLineBytes) {
    for (int b = 0; b < 4 * kLineBytes; b += kLineBytes) prefetch(address(from) + i + b + kAheadBytes);
    for (int b = 0; b < 4 * kLineBytes; b += kVectorBytes) stream(to + i + b, load<V>(from + i + b));
  }
  __builtin_memcpy(to + i, from + i, bytes - i);
  stream_fence();
}

template <class E>
constexpr RowKernels kRowKernels = {fused_rows<E>,  chunk_moments<E>, row_scale<E>,   normalize<E>,
                                    relu_kernel<E>, sum<E>,           sum_squares<E>, centre<E>,
                                    scale<E>,       widen<E>,         fence};

}  // namespace

extern const Kernels kKernels;
const Kernels kKernels = {{kRowKernels<Float16>, kRowKernels<BFloat16>, kRowKernels<Float32>, kRowKernels<Float64>},
                          float_to_double,
                          stream_copy};

}  // namespace KF_ISA
}  // namespace kfusion::cpu
