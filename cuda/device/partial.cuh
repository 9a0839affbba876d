// Partial results of reductions: how those of lanes, warps and blocks are merged, always in one fixed order.
#pragma once
#include "device/quick.cuh"
#include "device/reduce.cuh"
#include "device/vector.cuh"

namespace kfusion::device::scalar {

/// What a sweep without reductions leaves.
struct Nothing {
  static constexpr bool kNothing = true;
  KF_DEVICE void settle() {}
  KF_DEVICE void merge(const Nothing&) {}
};

/// Where nothing is: a reduction without an identity chooses one of its arguments, and starts with the extreme that is
/// never chosen. `chosen`: which of the two extremes it chooses.
template <class A>
KF_DEVICE constexpr A unchosen(A chosen) {
  return chosen == highest<A>() ? lowest<A>() : highest<A>();
}

/// x / n for an n of 1 or more, to the last bit, without the questions that a division asks of its operands.
template <class A>
KF_DEVICE A share_of(A x, A n) {
  const A r = quick_reciprocal(n), q = x * r;
  return isfinite(q) ? fused_multiply_add(fused_multiply_add(-q, n, x), r, q) : q;
}

// Pairs of reductions of which the second needs the first. What a thread has in registers it reduces in two passes:
// look() at each value, settle(), then add() each again; parts that were reduced apart are merged by a formula.

/// Mean, and sum of squared distances from it, of n values.
/// T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
template <class A>
struct Centred {
  static constexpr bool kSymmetric = false;
  A n = 0, mean = 0, m2 = 0;

  KF_DEVICE void look(A value) { mean += value; }
  KF_DEVICE void looked(int values) { n += A(values); }
  KF_DEVICE void settle() { mean = n > A(0) ? share_of(mean, n) : A(0); }
  KF_DEVICE void add(A value) {
    const A d = value - mean;
    m2 = fused_multiply_add(d, d, m2);
  }
  KF_DEVICE void merge(const Centred& b) {
    const A both = n + b.n, d = b.mean - mean, share = b.n * quick_reciprocal(both > A(0) ? both : A(1));
    m2 += b.m2 + d * (d * (n * share));  // in this order: 0 where n is, however large d
    const bool finite = d - d == A(0);   // else means that are infinite, or too far apart
    mean = n == A(0) ? b.mean : finite ? mean + d * share : mean * (A(1) - share) + b.mean * share;
    n = both;
  }
  /// All lanes' parts at once, in fewer steps than merge() takes for two: the mean of all, then distances from it.
  template <class Across>
  KF_DEVICE void merge_across(const Across& across) {
    constexpr A kUnit = A(1) / (1 << 24);  // else the sum of many large means would not be finite
    struct Sums {
      A n, values;
    };
    const Sums all = across(Sums{n, n * kUnit * mean},
                            [](const Sums& a, const Sums& b) { return Sums{a.n + b.n, a.values + b.values}; });
    const A centre = all.n > A(0) ? all.values / (all.n * kUnit) : A(0), d = mean - centre;
    m2 = across(m2 + d * (n * d), [](A a, A b) { return a + b; });
    mean = centre;
    n = all.n;
  }
  /// The sum of squared distances; NaN where the mean is.
  KF_DEVICE A squares() const { return m2 + (mean - mean); }
};

/// The largest element of a whole vector of a half type, NaN where one is: pairs are compared at once.
template <class T, int kN>
KF_DEVICE float largest_of(const Vector<T, kN>& v) {
  static_assert(sizeof(T) == 2 && (kN == 1 || kN % 2 == 0));
  if constexpr (kN == 1) return get(v, 0);
  u32 word = v.word[0];
#pragma unroll
  for (int i = 1; i < kN / 2; ++i) word = larger_pair<T>(word, v.word[i]);
  float lo, hi;
  unpack_pair<T>(word, lo, hi);
  return maximum(lo, hi);
}

/// The largest of some values, and the sum of exp(value - largest).
/// M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class A>
struct Shifted {
  static constexpr bool kSymmetric = true;
  A largest = lowest<A>(), sum = 0;

  /// Equal infinities are no distance apart.
  static KF_DEVICE A scale(A from, A to) { return quick_exp(from == to ? A(0) : from - to); }
  /// scale() for exponentials that are results themselves: NaN where all values are -inf.
  static KF_DEVICE A result_scale(A from, A to) { return to == lowest<A>() ? to - to : scale(from, to); }
  KF_DEVICE void look(A value) { largest = maximum(largest, value); }
  KF_DEVICE void looked(int) {}
  KF_DEVICE void settle() {}
  /// What is subtracted in the second pass: where all are -inf, exp(-inf - -inf) would spoil what comes later.
  KF_DEVICE A shift() const { return largest == lowest<A>() ? A(0) : largest; }
  /// The value's exponential, which is what was added.
  KF_DEVICE A add(A value) {
    const A e = quick_exp(value - shift());
    sum += e;
    return e;
  }
  KF_DEVICE void merge(const Shifted& b) {
    const bool own = largest >= b.largest;  // whose exponentials stay as they are
    const A both = maximum(largest, b.largest), less = scale(own ? b.largest : largest, both);
    sum = (own ? sum : sum * less) + (own ? b.sum * less : b.sum);
    largest = both;
  }
  /// All lanes' parts at once.
  template <class Across>
  KF_DEVICE void merge_across(const Across& across) {
    const A both = across(largest, [](A a, A b) { return maximum(a, b); });
    sum = across(sum * scale(largest, both), [](A a, A b) { return a + b; });
    largest = both;
  }
  /// The sum; NaN where the largest is infinite, as value - largest is.
  KF_DEVICE A total() const { return sum + (largest - largest); }
};

}  // namespace kfusion::device::scalar

namespace kfusion::device {

/// Word by word: a choice of addresses would put both in memory.
template <class V>
KF_DEVICE V chosen(bool first, const V& a, const V& b) {
  constexpr int kWords = sizeof(V) / 4;
  u32 one[kWords], other[kWords];
  memcpy(one, &a, sizeof(V));
  memcpy(other, &b, sizeof(V));
#pragma unroll
  for (int i = 0; i < kWords; ++i) one[i] = first ? one[i] : other[i];
  V value;
  memcpy(&value, one, sizeof(V));
  return value;
}

/// `own` of another lane.
template <class P, class Shuffle>
KF_DEVICE P shuffled(const P& own, const Shuffle& shuffle) {
  constexpr int kWords = (sizeof(P) + 3) / 4;
  u32 word[kWords] = {};
  memcpy(word, &own, sizeof(P));
#pragma unroll
  for (int i = 0; i < kWords; ++i) word[i] = shuffle(word[i]);
  P other;
  memcpy(&other, word, sizeof(P));
  return other;
}

/// Partial results of neighbouring columns.
template <class C, int kN>
struct Columns {
  static constexpr bool kNothing = false, kSymmetric = C::kSymmetric;
  static constexpr int kCount = kN;
  C column[kN];
  KF_DEVICE void merge(const Columns& b) {
#pragma unroll
    for (int j = 0; j < kN; ++j) column[j].merge(b.column[j]);
  }
  KF_DEVICE void settle() {
#pragma unroll
    for (int j = 0; j < kN; ++j) column[j].settle();
  }
};

/// `own` of lanes kApart, 2 kApart ... 16 lanes apart, which have the same columns, merged: each gets its share of the
/// columns, or all of them the same one.
template <int kApart, class C, int kN>
KF_DEVICE auto shared_out(const Columns<C, kN>& own) {
  if constexpr (kApart >= 32) {
    return own;
  } else {
    constexpr int kKept = kN > 1 ? kN / 2 : 1;
    const bool upper = kN > 1 && (threadIdx.y * blockDim.x + threadIdx.x) & kApart;
    Columns<C, kKept> kept;
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      kept.column[j] = chosen(upper, own.column[kN / 2 + j], own.column[j]);
      const C given = chosen(upper, own.column[j], own.column[kN / 2 + j]);
      kept.column[j].merge(shuffled(given, [](u32 word) { return __shfl_xor_sync(0xffffffffu, word, kApart); }));
    }
    return shared_out<2 * kApart>(kept);
  }
}
/// Which of kN columns are a thread's first ones then, and whether it is the first lane that has them.
template <int kApart, int kN>
KF_DEVICE int first_of_lane(int thread) {
  if constexpr (kApart >= 32 || kN == 1) return 0;
  if constexpr (kApart < 32 && kN > 1)
    return (thread & kApart ? kN / 2 : 0) + first_of_lane<2 * kApart, kN / 2>(thread);
}
template <int kApart, int kN>
KF_DEVICE bool is_first(int thread) {
  if constexpr (kApart >= 32) return true;
  if constexpr (kApart < 32 && kN == 1) return (thread % 32 & ~(kApart - 1)) == 0;
  if constexpr (kApart < 32 && kN > 1) return is_first<2 * kApart, kN / 2>(thread);
}

/// Each group of `lanes` (a power of two up to 32) neighbouring lanes, or those of them that lie `apart` (a power of
/// two) from each other. All 32 lanes must call it.
struct Lanes {
  int lanes, apart;

  /// What `merge` makes of all their values, in pairs of pairs.
  template <class V, class Merge>
  KF_DEVICE V operator()(V own, const Merge& merge) const {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      if (offset < apart) continue;
      if (offset >= lanes) break;
      own = merge(own, shuffled(own, [&](u32 word) { return __shfl_xor_sync(0xffffffffu, word, offset); }));
    }
    return own;
  }
};

/// Merges over lanes (see Lanes), the same bits in all of them. Where the order of merge() matters, the group's first
/// lane has it right and tells the others.
template <class P>
KF_DEVICE void merge_lanes(P& own, int lanes, int apart = 1) {
  if (lanes == apart) return;
  const Lanes across{lanes, apart};
  if constexpr (requires { own.merge_across(across); }) {
    own.merge_across(across);
  } else {
    own = across(own, [](P a, const P& b) {
      a.merge(b);
      return a;
    });
    if constexpr (!P::kSymmetric) {
      const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x),
                first = thread % 32 & ~(lanes - apart);
      own = shuffled(own, [&](u32 word) { return __shfl_sync(0xffffffffu, word, first); });
    }
  }
}

/// Merges `size` parts; every lane of the calling warps gets the same bits.
template <class P>
KF_DEVICE P merge_parts(const P* parts, int size, const P& identity) {
  const int lane = threadIdx.x % 32;
  P total = lane < size ? parts[lane] : identity;
#pragma unroll 1
  for (int i = lane + 32; i < size; i += 32) total.merge(parts[i]);
  merge_lanes(total, 32);
  return total;
}

/// Merges over all warps of a team.
template <class P, class Exchange>
KF_DEVICE void merge_team(P& own, const P& identity, Exchange& exchange, int warp, int warps) {
  merge_lanes(own, 32);
  if (warps > 1) own = merge_parts(exchange.share(own, warp), warps, identity);
}

}  // namespace kfusion::device
