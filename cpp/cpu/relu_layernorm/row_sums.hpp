// Sums over contiguous elements, and the mean and variance made of them. Compiled once per instruction set.
#pragma once
#include "cpu/relu_layernorm/kernels.hpp"
#include "cpu/simd.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

constexpr int kBlockLines = 4;  // every pass goes by blocks of this many lines
constexpr int kBlockBytes = kBlockLines * kLineBytes;
constexpr std::uintptr_t kAheadBytes = 2048;  // in a pass through memory: about its latency

KF_INLINE std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// What a pass prefetches meanwhile: kLines lines for every block that it handles, from `next` on.
template <int kLines>
struct Fetch {
  std::uintptr_t next;
  KF_INLINE void advance() {
    for (int l = 0; l < kLines; ++l) prefetch(next + l * kLineBytes);
    next += kLines * kLineBytes;
  }
};
using FetchNothing = Fetch<0>;

/// A pass through memory fetches for itself.
KF_INLINE Fetch<kBlockLines> fetch_ahead(const std::byte* x) { return {address(x) + kAheadBytes}; }

template <class E>
KF_INLINE ValueOf<E> load_values(const std::byte* p) {
  return E::widen(load<typename E::Raw>(p));
}
template <class E>
KF_INLINE ValueOf<E> load_values(const std::byte* p, int count) {
  return E::widen(load_first<typename E::Raw>(p, count * kItem<E>));
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

/// Adds up step(sums, v, count) over the vectors of a chunk. It is advanced block by block, so that it can run beside
/// another pass. The last, partial vector comes with its count of lanes (0: all). Four independent sums hide the
/// latency of an addition.
template <class E, class Sums, int kFetch, class Step>
class Accumulation {
 public:
  KF_INLINE Accumulation(const std::byte* x, std::int64_t size, Fetch<kFetch> fetch, const Step& step)
      : x_(x), left_(size), fetch_(fetch), step_(step) {}

  /// False when less than a block is left.
  KF_INLINE bool advance() {
    if (kBlock > left_) return false;
    fetch_.advance();
    for (int u = 0; u < kBlock / kLane; ++u) step_(sums_[u % kSums], load_values<E>(x_ + u * kVector), 0);
    x_ += kBlockBytes, left_ -= kBlock;
    return true;
  }

  /// What is left, and the result.
  KF_INLINE Sums finish() {
    while (advance()) {
    }
    for (int u = 0; u < kBlock / kLane && kLane <= left_; ++u, x_ += kVector, left_ -= kLane)
      step_(sums_[u % kSums], load_values<E>(x_), 0);
    if (left_ > 0) step_(sums_[kSums - 1], load_values<E>(x_, static_cast<int>(left_)), static_cast<int>(left_));
    sums_[0] += sums_[1], sums_[2] += sums_[3], sums_[0] += sums_[2];
    return sums_[0];
  }

 private:
  static constexpr int kSums = 4, kLane = kLanes<E>, kBlock = kBlockBytes / kItem<E>, kVector = kLane * kItem<E>;
  const std::byte*
      x_;  // addresses that move on: with an index, sums beside stores past the caches took 1.2 times as long
  std::int64_t left_;
  Fetch<kFetch> fetch_;
  Step step_;
  Sums sums_[kSums] = {};
};

template <class E, class Sums, int kFetch, class Step>
KF_INLINE auto accumulation(const std::byte* x, std::int64_t size, Fetch<kFetch> fetch, const Step& step) {
  return Accumulation<E, Sums, kFetch, Step>(x, size, fetch, step);
}

// ---- moments of relu(x), two passes over a chunk --------------------------------------------------------------

template <class E, int kFetch>
KF_INLINE auto first_pass(const std::byte* x, std::int64_t size, Fetch<kFetch> fetch) {
  using Sum = OneSum<ValueOf<E>>;
  return accumulation<E, Sum>(x, size, fetch, [](Sum& s, const ValueOf<E>& v, int) { s.sum += relu(v); });
}

/// The mean, rounded to the compute type.
template <class E>
KF_INLINE typename E::Compute rough_mean(const OneSum<ValueOf<E>>& first, std::int64_t size) {
  return static_cast<typename E::Compute>(sum_lanes(first.sum) / static_cast<double>(size));
}

/// The second pass also sums the distances from that mean, which cancels its rounding: exact enough for a row whose
/// mean is many times its deviation.
template <class E, int kFetch>
KF_INLINE auto second_pass(const std::byte* x, std::int64_t size, typename E::Compute centre, Fetch<kFetch> fetch) {
  using V = ValueOf<E>;
  using Sums = TwoSums<V>;
  return accumulation<E, Sums>(x, size, fetch, [=](Sums& s, const V& v, int count) {
    V d = relu(v) - centre;
    if (count) d = first_lanes(d, count);
    s.sum += d;
    s.squares += d * d;
  });
}

template <class E>
KF_INLINE Moments moments_about(typename E::Compute centre, const TwoSums<ValueOf<E>>& second, std::int64_t size) {
  const auto n = static_cast<double>(size);
  const double shift = sum_lanes(second.sum) / n;
  return {centre + shift, sum_lanes(second.squares) - shift * shift * n};
}

/// Both passes, one after the other.
template <class E, int kFirst, int kSecond>
KF_INLINE Moments moments(const std::byte* x, std::int64_t size, Fetch<kFirst> in_first, Fetch<kSecond> in_second) {
  const auto centre = rough_mean<E>(first_pass<E>(x, size, in_first).finish(), size);
  return moments_about<E>(centre, second_pass<E>(x, size, centre, in_second).finish(), size);
}

/// Chan's formula: appends a chunk of `count` elements to the moments of the `before` elements on its left.
KF_INLINE void append(Moments& row, std::int64_t before, const Moments& chunk, std::int64_t count) {
  if (before == 0) {
    row = chunk;
    return;
  }
  const double delta = chunk.mean - row.mean, share = static_cast<double>(count) / (before + count);
  row.mean += delta * share;
  row.m2 += chunk.m2 + delta * delta * share * before;
}

KF_INLINE RowScale finish(const Moments& row, std::int64_t cols, double eps) {
  const double variance = row.m2 > 0 || row.m2 != row.m2 ? row.m2 / cols : 0;
  return {row.mean, 1 / __builtin_sqrt(variance + eps)};
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
