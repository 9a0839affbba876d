// Partial results of reductions: how those of lanes, warps and blocks are merged, always in one fixed order.
#pragma once
#include "device/reduce.cuh"
#include "device/scalar.cuh"

namespace kfusion::device::scalar {

/// What a sweep without reductions leaves.
struct Nothing {
  static constexpr bool kNothing = true;
  KF_DEVICE void merge(const Nothing&) {}
};

/// Where nothing is: a reduction without an identity chooses one of its arguments, and starts with the extreme that is
/// never chosen. `chosen`: which of the two extremes it chooses.
template <class A>
KF_DEVICE constexpr A unchosen(A chosen) {
  return chosen == highest<A>() ? lowest<A>() : highest<A>();
}

/// Mean, and sum of squared distances from it, of n values.
/// T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
template <class A>
struct Centred {
  A n = 0, mean = 0, m2 = 0;

  KF_DEVICE void merge(const Centred& b) {
    if (b.n == A(0)) return;
    if (n == A(0)) {  // else inf * 0 where the mean's square overflows
      *this = b;
      return;
    }
    const A d = b.mean - mean, share = b.n / (n + b.n);
    m2 += b.m2 + d * d * (n * share);
    const bool finite = d - d == A(0);  // else means that are infinite, or too far apart
    mean = finite ? mean + d * share : mean * (n / (n + b.n)) + b.mean * share;
    n += b.n;
  }
  /// One value: B. Welford, "Note on a method for calculating corrected sums of squares and products", 1962.
  KF_DEVICE void add(A value) {
    const A d = value - mean, before = n;
    n += A(1);
    const A share = A(1) / n;
    mean = d - d == A(0) ? mean + d * share : mean * (before * share) + value * share;
    m2 += d * (value - mean);
  }
  /// Not a number around a mean that is none.
  KF_DEVICE A squares() const { return m2 + (mean - mean); }
  /// Values `skip` to `count`, in two passes.
  template <int kN>
  KF_DEVICE void add(const A (&value)[kN], int skip, int count) {
    Centred part;
    part.n = A((count < kN ? count : kN) - skip);
#pragma unroll
    for (int j = 0; j < kN; ++j) part.mean += j >= skip && j < count ? value[j] : A(0);
    part.mean /= part.n;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const A d = value[j] - part.mean;
      part.m2 += j >= skip && j < count ? d * d : A(0);
    }
    merge(part);
  }
};

/// The largest of some values, and the sum of exp(value - largest).
/// M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class A>
struct Shifted {
  A largest = lowest<A>(), sum = 0;

  /// Equal infinities are no distance apart.
  static KF_DEVICE A scale(A from, A to) { return from == to ? A(1) : exp(from - to); }
  KF_DEVICE void merge(const Shifted& b) {
    const A both = maximum(largest, b.largest);
    sum = sum * scale(largest, both) + b.sum * scale(b.largest, both);
    largest = both;
  }
  template <int kN>
  KF_DEVICE void add(const A (&value)[kN], int skip, int count) {
    Shifted part;
#pragma unroll
    for (int j = 0; j < kN; ++j) part.largest = j >= skip && j < count ? maximum(part.largest, value[j]) : part.largest;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const bool counts =
          j >= skip && j < count && part.largest != lowest<A>();  // exp(-inf - -inf) would spoil what comes later
      part.sum += counts ? exp(value[j] - part.largest) : A(0);
    }
    merge(part);
  }
  KF_DEVICE void add(A value) {
    const bool grows = largest < value;
    const A same = value == lowest<A>() ? A(0) : A(1);
    const A factor = value == largest ? same : exp(grows ? largest - value : value - largest);
    sum = grows ? sum * factor + A(1) : sum + factor;
    largest = maximum(largest, value);
  }
  /// Not a number where the largest is infinite, as value - largest is none.
  KF_DEVICE A total() const { return sum + (largest - largest); }
};

}  // namespace kfusion::device::scalar

namespace kfusion::device {

template <class P>
KF_DEVICE P from_lane(const P& own, int mask) {
  constexpr int kWords = sizeof(P) / 4;
  static_assert(sizeof(P) % 4 == 0);
  u32 word[kWords];
  memcpy(word, &own, sizeof(P));
#pragma unroll
  for (int i = 0; i < kWords; ++i) word[i] = __shfl_xor_sync(0xffffffffu, word[i], mask);
  P other;
  memcpy(&other, word, sizeof(P));
  return other;
}

/// Merges over each group of `lanes` (a power of two up to 32) neighbouring lanes, or those of them that lie `apart` (a
/// power of two) from each other, the same bits in all of them: the lower lane's part always comes first. All 32 lanes
/// must call it.
template <class P>
KF_DEVICE void merge_lanes(P& own, int lanes, int apart = 1) {
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    if (offset < apart) continue;
    if (offset >= lanes) break;
    P first = own, second = from_lane(own, offset);
    if (thread & offset) {  // copies: a choice between addresses would put both in memory
      const P lower = second;
      second = first;
      first = lower;
    }
    first.merge(second);
    own = first;
  }
}

/// Merges `size` parts; every lane of the calling warps gets the same bits.
template <class P>
KF_DEVICE P merge_parts(const P* parts, int size, P total) {
  for (int i = threadIdx.x % 32; i < size; i += 32) total.merge(parts[i]);
  merge_lanes(total, 32);
  return total;
}

/// Merges over all warps of a team.
template <class P>
KF_DEVICE void merge_team(P& own, const P& identity, Exchange& exchange, int warp, int warps) {
  merge_lanes(own, 32);
  own = merge_parts(exchange.share(own, warp), warps, identity);
}

}  // namespace kfusion::device
