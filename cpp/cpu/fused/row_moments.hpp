// The mean of a row and its squared distances from it in one sweep: sums of x - p and of (x - p)^2, where each lane's p
// is the mean of its first elements (T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample
// variance", 1983, on shifted data). Two sweeps take 1.4 times as long, and leave memory idle in between.
#pragma once
#include "cpu/fused/row_loops.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// Of n elements in each lane, p being the mean of k of them, n (mean - p)^2 is at most n / k times the squared
/// distances from the mean: that is how much rounding errors grow. Means of tiles that are merged as floats lose more:
/// errors of their last digits come back multiplied by the mean over the deviation.
class Moments {
 public:
  template <int kCount>
  KF_INLINE void take(const FloatVec* x) {
    FloatVec away[kCount], square[kCount];
    if (count_ == 0) {
#pragma GCC unroll 8
      for (int j = 0; j < kCount; ++j) away[j] = x[j];
      add_up<kCount>(away);
      pivot_ = away[0] * FloatVec(1.0 / kCount);
    }
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) away[j] = x[j] - pivot_, square[j] = away[j] * away[j];
    add_up<kCount>(away), add_up<kCount>(square);
    take_sums(away[0], square[0]);
    count_ += kCount;
  }

  /// One more element in the first `lanes` lanes.
  KF_INLINE void take_part(FloatVec x, int lanes) {
    if (count_ == 0) pivot_ = keep_first(x, lanes, FloatVec(-0.0));
    const FloatVec away = keep_first(x - pivot_, lanes, FloatVec(0));
    take_sums(away, away * away);
    more_ = keep_first(FloatVec(1), lanes, FloatVec(0));
  }

  KF_INLINE double sum() const { return sum_lanes((sum_of<0>() + sum_of<1>()).v); }
  /// Squared distances from `centre`.
  KF_INLINE double squares(double centre) const {
    return sum_lanes((squares_.sum + moved<0>(DoubleVec(centre)) + moved<1>(DoubleVec(centre))).v);
  }

 private:
  template <int kCount>
  static KF_INLINE void add_up(FloatVec* x) {
#pragma GCC unroll 3
    for (int n = kCount / 2; n > 0; n /= 2)
#pragma GCC unroll 4
      for (int j = 0; j < n; ++j) x[j] = x[j] + x[j + n];
  }
  template <int kHalf>
  static KF_INLINE DoubleVec half(FloatVec x) {
    return DoubleVec(doubles_of(half_lanes<kHalf>(x)));
  }
  KF_INLINE void take_sums(FloatVec away, FloatVec square) {
    away_[0] = away_[0] + half<0>(away), away_[1] = away_[1] + half<1>(away);
    squares_.template take<1>(&square);
  }
  KF_INLINE FloatVec counts() const { return FloatVec(static_cast<float>(count_)) + more_; }
  /// -0 where all elements are.
  template <int kHalf>
  KF_INLINE DoubleVec sum_of() const {
    const DoubleVec of_pivot = half<kHalf>(counts()) * half<kHalf>(pivot_), away = away_[kHalf];
    return select(away == DoubleVec(0), of_pivot, of_pivot + away);
  }
  /// What squared distances from the pivot lack to those from the centre.
  template <int kHalf>
  KF_INLINE DoubleVec moved(DoubleVec centre) const {
    const DoubleVec by = half<kHalf>(pivot_) - centre;
    return by * (DoubleVec(2) * away_[kHalf] + half<kHalf>(counts()) * by);
  }

  int count_ = 0;
  FloatVec pivot_{0}, more_{0};
  DoubleVec away_[2] = {DoubleVec(0), DoubleVec(0)};
  RowSum<float> squares_;
};

/// Before(x) of a row.
template <class E, template <class> class Before>
class MomentsOfRows {
 public:
  using V = VecOf<E>;
  static constexpr int kCount = V::kCount;

  KF_INLINE MomentsOfRows(const RowLoop& l, const TileContext* c, const RowBlock& b) : x_(l, c, b), before_(l, c, b) {}

  KF_INLINE void begin_row() {
    x_.begin_row();
    moments_ = {};
  }
  KF_INLINE void tile() { some<kRegisters, true>(); }
  KF_INLINE const Moments& rest(std::int64_t i, std::int64_t end) {
    i = x_.fetches() ? tiles<kRegisters, true>(i, end) : tiles<kRegisters, false>(i, end);
    i = tiles<4, false>(i, end);
    i = tiles<2, false>(i, end);
    i = tiles<1, false>(i, end);
    if (i < end) moments_.take_part(before_(x_.part(static_cast<int>(end - i))), static_cast<int>(end - i));
    return moments_;
  }

 private:
  template <int kSome, bool kFetches>
  KF_INLINE std::int64_t tiles(std::int64_t i, std::int64_t end) {
    for (; i + kSome * kCount <= end; i += kSome * kCount) some<kSome, kFetches>();
    return i;
  }
  template <int kSome, bool kFetches>
  KF_INLINE void some() {
    V tile[kSome];
#pragma GCC unroll 8
    for (int j = 0; j < kSome; ++j) tile[j] = before_(x_.template next<kFetches>());
    moments_.template take<kSome>(tile);
  }

  Elements<E> x_;
  Before<V> before_;
  Moments moments_;
};

/// Leaves what the two loops would. They take rows where floats overflow, that are not finite, or that are zeros of
/// which some may be negative.
class MomentsLeft {
 public:
  KF_INLINE MomentsLeft(const RowMoments& m, const TileContext* c, const RowBlock& b)
      : m_(m), c_(c), b_(b), row_(b.first), sums_(c, m.mean.to, b, 0), squares_(c, m.squares.to, b, 0) {}

  KF_INLINE void leave(const Moments& moments) {
    const double sum = moments.sum(), square = moments.squares(mean_of(sum));
    std::byte *const to_sum = sums_.next(), *const to_square = squares_.next();
    __builtin_memcpy(to_sum, &sum, sizeof sum);
    __builtin_memcpy(to_square, &square, sizeof square);
    if (!__builtin_isfinite(square) || (sum == 0 && __builtin_signbit(sum))) [[unlikely]]
      by_loops(to_sum);
    ++row_;
  }

 private:
  KF_INLINE float mean_of(double sum) const { return static_cast<float>(sum / static_cast<double>(b_.end - b_.begin)); }
  void by_loops(const std::byte* sum) const {
    const RowBlock row{row_, row_ + 1, b_.begin, b_.end};
    m_.mean.run(m_.mean, c_, row);
    double exact;
    __builtin_memcpy(&exact, sum, sizeof exact);
    const float mean = mean_of(exact);
    const std::int32_t centre = m_.squares.centre;
    __builtin_memcpy(c_->at[centre] + row_ * c_->row_steps[centre], &mean, sizeof mean);
    m_.squares.run(m_.squares, c_, row);
  }

  const RowMoments& m_;
  const TileContext* c_;
  RowBlock b_;
  std::int64_t row_;
  RowsOf sums_, squares_;
};

template <class E, template <class> class Before>
void moments_of_rows(const RowMoments& m, const TileContext* c, const RowBlock& b) {
  const std::int64_t begin = b.begin, end = b.end;
  MomentsOfRows<E, Before> rows(m.mean, c, b);
  MomentsLeft left(m, c, b);
  for (std::int64_t n = b.last - b.first; n > 0; --n) {
    rows.begin_row();
    left.leave(rows.rest(begin, end));
  }
}

/// Rows are stored past the caches while those after them are read.
template <class E, template <class> class Before, template <class> class Stored, int kArrays>
void store_and_take(const RowAhead& a, const TileContext* c, const RowBlock& b, const TileContext* next,
                    const RowBlock& of_next) {
  constexpr int kTile = kRegisters * VecOf<E>::kCount;
  const std::int64_t begin = b.begin, end = b.end, rows = b.last - b.first, next_rows = of_next.last - of_next.first;
  const std::int64_t most = rows > next_rows ? rows : next_rows;
  EdgeLine& edge = *c->edge;
  StoredRows<E, E, Stored, Times, kArrays> stored(a.store, c, b);
  MomentsOfRows<E, Before> taken(a.moments.mean, next, of_next);
  MomentsLeft left(a.moments, next, of_next);
  for (std::int64_t r = 0; r < most; ++r) {  // each part once: it is all inlined
    const bool stores = r < rows, takes = r < next_rows;
    if (stores) stored.begin_row();
    if (takes) taken.begin_row();
    const bool streams = stores && stored.has_lines(begin);
    std::int64_t i = streams ? stored.stream_head(begin, end, edge) : begin, read = begin;
    if (streams && takes)
      for (; i + kTile <= end; i += kTile, read += kTile) taken.tile(), stored.stream_tile(i);
    if (streams)
      stored.stream_rest(i, end, edge);
    else if (stores)
      stored.store_all(begin, end);
    if (takes) left.leave(taken.rest(read, end));
  }
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
