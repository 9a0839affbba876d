// A sweep that finds the first element of each row that equals a number of the row, as one loop (RowLoop). E: the
// elements in memory.
#pragma once
#include "cpu/fused/row_loops.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// The first lane that is set; one is.
template <int bytes>
KF_INLINE int first_lane(Mask<bytes> m) {
#if defined(__AVX512F__)
  return __builtin_ctz(_mm512_test_epi32_mask((__m512i)m.v, (__m512i)m.v)) * 4 / bytes;
#elif defined(__AVX2__)
  return __builtin_ctz(static_cast<unsigned>(_mm256_movemask_epi8((__m256i)m.v))) / bytes;
#elif defined(__SSE2__)
  return __builtin_ctz(static_cast<unsigned>(_mm_movemask_epi8((__m128i)m.v))) / bytes;
#else
  int lane = 0;
  while (m.v[lane] == 0) ++lane;
  return lane;
#endif
}

/// Leaves the position, `none` (RowLoop::factor) where there is no such element. kNan: a NaN is one, too.
template <class E, bool kNan>
class SearchedRows {
 public:
  using V = VecOf<E>;
  using M = typename V::MaskType;
  static constexpr int kCount = V::kCount, kTile = kRegisters * kCount;

  KF_INLINE SearchedRows(const RowLoop& l, const TileContext* c, const RowBlock& b)
      : x_(l, c, b), wanted_(c, l.centre, b), none_(c, l.factor, b), to_(c, l.to, b, 0) {}

  KF_INLINE void row(std::int64_t begin, std::int64_t end) {
    x_.begin_row(), wanted_.begin_row(), none_.begin_row();
    const std::int64_t found = x_.fetches() ? search<true>(begin, end) : search<false>(begin, end);
    const std::int32_t position = found < 0 ? none_.value.v[0] : static_cast<std::int32_t>(found);
    store(to_.next(), position);
  }

 private:
  /// What is prefetched meanwhile goes on behind the element.
  template <bool kFetches>
  KF_INLINE std::int64_t search(std::int64_t i, std::int64_t end) {
    std::int64_t found = -1;
    for (; i + kTile <= end; i += kTile) {
      V tile[kRegisters];
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) tile[j] = x_.template next<kFetches>();
      if (found < 0) found = in_tile(tile, i);
      if (!kFetches && found >= 0) return found;
    }
    if (found >= 0) return found;
    for (; i + kCount <= end; i += kCount)
      if (const M hit = is_it(x_.template next<false>()); any(hit)) return i + first_lane(hit);
    if (i == end) return -1;
    const int rest = static_cast<int>(end - i);
    const M hit = is_it(x_.part(rest));
    const int lane = any(hit) ? first_lane(hit) : rest;
    return lane < rest ? i + lane : -1;
  }
  KF_INLINE std::int64_t in_tile(const V* tile, std::int64_t i) const {
    M hit = is_it(tile[0]);
#pragma GCC unroll 8
    for (int j = 1; j < kRegisters; ++j) hit = hit || is_it(tile[j]);
    if (!any(hit)) [[likely]]
      return -1;
    int j = 0;
    while (!any(is_it(tile[j]))) ++j;
    return i + j * kCount + first_lane(is_it(tile[j]));
  }
  KF_INLINE M is_it(V x) const {
    if constexpr (kNan) return x == wanted_.value || x != x;
    return x == wanted_.value;
  }

  Elements<E> x_;
  NumberOfRow<V> wanted_;
  NumberOfRow<Int32Vec> none_;
  RowsOf to_;
};

template <class E, bool kNan>
void search_rows(const RowLoop& l, const TileContext* c, const RowBlock& b) {
  SearchedRows<E, kNan> rows(l, c, b);
  for (std::int64_t r = b.first; r < b.last; ++r) rows.row(b.begin, b.end);
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
