// ReLU+LayerNorm over contiguous rows: one source for every dtype and instruction set (KF_ISA names the namespace).
#include "cpu/relu_layernorm_kernels.hpp"

#include "cpu/simd.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

constexpr std::uintptr_t kAheadBytes = 2048;        // in a long sweep: about the latency of memory
constexpr std::int64_t kNextRowBytes = 256 * 1024;  // a row that the second-level cache holds beside its successor
constexpr int kUnroll = 4;                          // independent sums, to hide the latency of an addition

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

template <class E>
constexpr DType kDType = DType::kFloat32;
template <>
constexpr DType kDType<Float16> = DType::kFloat16;
template <>
constexpr DType kDType<BFloat16> = DType::kBFloat16;
template <>
constexpr DType kDType<Float64> = DType::kFloat64;

template <class E>
KF_INLINE ValueOf<E> load_values(const std::byte* p) {
  return E::widen(load<typename E::Raw>(p));
}
template <class E>
KF_INLINE ValueOf<E> load_values(const std::byte* p, int count) {
  return E::widen(load_first<typename E::Raw>(p, count * kItem<E>));
}

// ---- sums over a chunk ----------------------------------------------------------------------------------------

/// What a pass fetches meanwhile: from `address` on, 2^-shift of the bytes that it reads.
struct Fetch {
  std::uintptr_t address;
  int shift;
};

/// Adds up step(v, i) over the vectors of a chunk: `Sums` is a small struct with +=. The last, partial vector comes
/// with its count of lanes (0: all).
template <class E, class Sums, class Step>
KF_INLINE Sums accumulate(const std::byte* x, int size, Fetch fetch, Step step) {
  constexpr int kLane = kLanes<E>, kBlock = kUnroll * kLane;
  Sums sums[kUnroll] = {};
  int i = 0;
  for (; i + kBlock <= size; i += kBlock) {
    for (int b = 0; b < kBlock * kItem<E> >> fetch.shift; b += kLineBytes)
      prefetch(fetch.address + (i * kItem<E> >> fetch.shift) + b);
    for (int u = 0; u < kUnroll; ++u) step(sums[u], load_values<E>(x + (i + u * kLane) * kItem<E>), 0);
  }
  for (; i + kLane <= size; i += kLane) step(sums[0], load_values<E>(x + i * kItem<E>), 0);
  if (i < size) step(sums[1], load_values<E>(x + i * kItem<E>, size - i), size - i);
  sums[0] += sums[1], sums[2] += sums[3], sums[0] += sums[2];
  return sums[0];
}

template <class V>
struct OneSum {
  V sum = {};
  KF_INLINE void operator+=(const OneSum& o) { sum += o.sum; }
};
template <class V>
struct TwoSums {
  V sum = {}, squares = {};
  KF_INLINE void operator+=(const TwoSums& o) { sum += o.sum, squares += o.squares; }
};

/// Two passes. The second also sums the distances from the mean, which cancels the rounding of that mean: exact
/// enough for a row whose mean is many times its deviation. It prefetches from `ahead`, the chunk that comes next.
template <class E>
KF_INLINE Moments moments(const std::byte* x, int size, Fetch in_first, Fetch in_second) {
  using V = ValueOf<E>;
  using C = typename E::Compute;
  const auto first =
      accumulate<E, OneSum<V>>(x, size, in_first, [](OneSum<V>& s, const V& v, int) { s.sum += relu(v); });
  const C centre = static_cast<C>(sum_lanes(first.sum) / size);
  const auto second = accumulate<E, TwoSums<V>>(x, size, in_second, [=](TwoSums<V>& s, const V& v, int count) {
    V d = relu(v) - centre;
    if (count) d = first_lanes(d, count);
    s.sum += d;
    s.squares += d * d;
  });
  const double shift = sum_lanes(second.sum) / size;
  return {centre + shift, sum_lanes(second.squares) - shift * shift * size};
}

template <class E>
Moments chunk_moments(const std::byte* x, std::int64_t size) {
  return moments<E>(x, static_cast<int>(size), {address(x) + kAheadBytes, 0}, {address(x) + size * kItem<E>, 0});
}

/// Chan's formula: appends a chunk of `count` elements to the moments of the `before` elements on its left.
KF_INLINE void merge(Moments& into, std::int64_t before, const Moments& chunk, std::int64_t count) {
  const double delta = chunk.mean - into.mean, share = static_cast<double>(count) / (before + count);
  into.mean += delta * share;
  into.m2 += chunk.m2 + delta * delta * share * before;
}

KF_INLINE RowScale finish(const Moments& row, std::int64_t cols, double eps) {
  const double variance = row.m2 > 0 || row.m2 != row.m2 ? row.m2 / cols : 0;
  return {row.mean, 1 / __builtin_sqrt(variance + eps)};
}

template <class E>
RowScale row_scale(const Moments* chunks, std::int64_t cols, double eps) {
  constexpr std::int64_t kChunk = chunk_elements(kDType<E>);
  Moments row = chunks[0];
  for (std::int64_t at = kChunk; at < cols; at += kChunk)
    merge(row, at, chunks[at / kChunk], cols - at < kChunk ? cols - at : kChunk);
  return finish(row, cols, eps);
}

// ---- elementwise sweeps ---------------------------------------------------------------------------------------

template <class E, class Op>
KF_INLINE void sweep_part(const std::byte* x, std::byte* y, std::int64_t i, int count, const Op& op) {
  const auto v = op.part(load_values<E>(x + i * kItem<E>, count), i, count);
  store_first(y + i * kItem<E>, E::narrow(v), count * kItem<E>);
}

/// Fewer than a line's elements, from i to end.
template <class E, class Op>
KF_INLINE void sweep_edge(const std::byte* x, std::byte* y, std::int64_t i, std::int64_t end, const Op& op) {
  for (; i + kLanes<E> <= end; i += kLanes<E>)
    store(y + i * kItem<E>, E::narrow(op.all(load_values<E>(x + i * kItem<E>), i)));
  if (i < end) sweep_part<E>(x, y, i, static_cast<int>(end - i), op);
}

/// y[i] = op(x[i]), a line of y at a time; for each, the line at `ahead` plus the same offset is prefetched. A vector
/// is read before it is written, so y may be x. Streaming starts at a line of y and leaves the edges to plain stores
/// (a neighbouring row completes their lines).
template <class E, class Op>
KF_INLINE void sweep(const Span& s, Fetch fetch, const Op& op) {
  constexpr int kLine = kLineBytes / kItem<E>;
  const std::int64_t phase = static_cast<std::int64_t>(-address(s.y) & (kLineBytes - 1));
  const bool streams = s.stream && phase % kItem<E> == 0;
  std::int64_t i = 0;
  if (streams) {
    const std::int64_t head = phase / kItem<E>;
    i = head < s.size ? head : s.size;
    sweep_edge<E>(s.x, s.y, 0, i, op);
    for (; i + kLine <= s.size; i += kLine) {
      prefetch(fetch.address + (i * kItem<E> >> fetch.shift));
      for (int j = 0; j < kLine; j += kLanes<E>)
        stream(s.y + (i + j) * kItem<E>, E::narrow(op.all(load_values<E>(s.x + (i + j) * kItem<E>), i + j)));
    }
  } else {
    for (; i + kLine <= s.size; i += kLine) {
      prefetch(fetch.address + (i * kItem<E> >> fetch.shift));
      for (int j = 0; j < kLine; j += kLanes<E>)
        store(s.y + (i + j) * kItem<E>, E::narrow(op.all(load_values<E>(s.x + (i + j) * kItem<E>), i + j)));
    }
  }
  sweep_edge<E>(s.x, s.y, i, s.size, op);
}

template <class E, bool kWeight, bool kBias>
struct AffineOp {
  Affine affine;

  template <class Load>
  KF_INLINE ValueOf<E> apply(ValueOf<E> v, std::int64_t i, Load load_parameters) const {
    constexpr int kBytes = sizeof(typename E::Compute);
    if constexpr (kWeight) v = v * load_parameters(affine.weight + i * kBytes);
    if constexpr (kBias) v = v + load_parameters(affine.bias + i * kBytes);
    return v;
  }
  KF_INLINE ValueOf<E> all(const ValueOf<E>& v, std::int64_t i) const {
    return apply(v, i, [](const std::byte* p) { return load<ValueOf<E>>(p); });
  }
  KF_INLINE ValueOf<E> part(const ValueOf<E>& v, std::int64_t i, int count) const {
    const int bytes = count * static_cast<int>(sizeof(typename E::Compute));
    return apply(v, i, [bytes](const std::byte* p) { return load_first<ValueOf<E>>(p, bytes); });
  }
};

/// first(v), then the affine part.
template <class E, class First, class Affines>
struct Chain {
  First first;
  Affines affine;
  KF_INLINE ValueOf<E> all(const ValueOf<E>& v, std::int64_t i) const { return affine.all(first(v), i); }
  KF_INLINE ValueOf<E> part(const ValueOf<E>& v, std::int64_t i, int n) const { return affine.part(first(v), i, n); }
};

template <class E, bool kWeight, bool kBias, class First>
KF_INLINE void sweep_with(const Span& s, Fetch fetch, const Affine& affine, const First& first) {
  using Affines = AffineOp<E, kWeight, kBias>;
  sweep<E>(s, fetch, Chain<E, First, Affines>{first, {affine}});
}

template <class E, class First>
KF_INLINE void sweep_affine(const Span& s, Fetch fetch, const Affine& affine, const First& first) {
  if (affine.weight && affine.bias) return sweep_with<E, true, true>(s, fetch, affine, first);
  if (affine.weight) return sweep_with<E, true, false>(s, fetch, affine, first);
  if (affine.bias) return sweep_with<E, false, true>(s, fetch, affine, first);
  sweep_with<E, false, false>(s, fetch, affine, first);
}

/// The mean is subtracted in two parts, its rounded value and the remainder: the first difference is exact where x
/// is near the mean, so that a large mean costs no digits.
template <class E>
KF_INLINE void normalize_span(const Span& s, Fetch fetch, const RowScale& scale, const Affine& affine) {
  using C = typename E::Compute;
  const C mean = static_cast<C>(scale.mean), rest = static_cast<C>(scale.mean - mean),
          rstd = static_cast<C>(scale.rstd);
  sweep_affine<E>(s, fetch, affine, [=](const ValueOf<E>& v) { return ((relu(v) - mean) - rest) * rstd; });
}

template <class E>
void normalize(const Span& s, const RowScale& scale, const Affine& affine) {
  normalize_span<E>(s, {address(s.x) + kAheadBytes, 0}, scale, affine);
}

// ---- fused ----------------------------------------------------------------------------------------------------

template <class E>
KF_INLINE RowScale scale_of_row(const std::byte* x, std::int64_t cols, double eps, std::uintptr_t next) {
  constexpr std::int64_t kChunk = chunk_elements(kDType<E>);
  Moments row = {};
  for (std::int64_t at = 0; at < cols; at += kChunk) {
    const std::int64_t count = cols - at < kChunk ? cols - at : kChunk;
    const std::byte* chunk = x + at * kItem<E>;
    const std::uintptr_t fetched = next + at * kItem<E> / 2;
    const Moments m =
        next ? moments<E>(chunk, static_cast<int>(count), {fetched, 2}, {fetched + count * kItem<E> / 4, 2})
             : chunk_moments<E>(chunk, count);
    if (at == 0) {
      row = m;
    } else {
      merge(row, at, m, count);
    }
  }
  return finish(row, cols, eps);
}

/// While a row is written, the next one is fetched: the memory never waits for the arithmetic. A row too long for
/// that is read twice, and fetches itself a little ahead.
template <class E>
void fused_rows(const FusedRows& job) {
  const bool fetch_next = job.cols * kItem<E> <= kNextRowBytes;
  const std::int64_t rows_ahead = 1 + std::int64_t{kAheadBytes} / (job.cols * kItem<E>);
  for (std::int64_t r = 0; r < job.rows; ++r) {
    const std::byte* x = job.x + r * job.x_stride;
    const std::uintptr_t next = fetch_next ? address(x) + rows_ahead * job.x_stride : 0;
    const RowScale scale = scale_of_row<E>(x, job.cols, job.eps, next);
    const Fetch fetch = fetch_next ? Fetch{next + job.cols * kItem<E> / 2, 1} : Fetch{address(x) + kAheadBytes, 0};
    normalize_span<E>({x, job.y + r * job.y_stride, job.cols, job.stream}, fetch, scale, job.affine);
  }
}

// ---- unfused --------------------------------------------------------------------------------------------------

template <class E>
void relu_kernel(const Span& s) {
  sweep_with<E, false, false>(s, {address(s.x) + kAheadBytes, 0}, {}, [](const ValueOf<E>& v) { return relu(v); });
}

template <class E>
double sum(const std::byte* x, std::int64_t size) {
  using Sum = OneSum<ValueOf<E>>;
  const auto step = [](Sum& s, const ValueOf<E>& v, int) { s.sum += v; };
  return sum_lanes(accumulate<E, Sum>(x, static_cast<int>(size), {address(x) + kAheadBytes, 0}, step).sum);
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
  return sum_lanes(accumulate<E, OneSum<V>>(x, static_cast<int>(size), {address(x) + kAheadBytes, 0}, step).sum);
}

template <class E>
void centre(const Span& s, double mean) {
  const auto m = static_cast<typename E::Compute>(mean);
  sweep_with<E, false, false>(s, {address(s.x) + kAheadBytes, 0}, {}, [=](const ValueOf<E>& v) { return v - m; });
}

template <class E>
void scale(const Span& s, double rstd, const Affine& affine) {
  const auto factor = static_cast<typename E::Compute>(rstd);
  sweep_affine<E>(s, {address(s.x) + kAheadBytes, 0}, affine, [=](const ValueOf<E>& v) { return v * factor; });
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
