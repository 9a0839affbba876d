// Searching columns, by the elements' dtype.
#include <type_traits>

#include "cpu/fused/column_search.hpp"
#include "cpu/fused/tile.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// A register of columns: the extremes so far, and the rows that had them first. A NaN is one.
template <class E, bool kLargest>
struct SearchedColumns {
  using V = VecOf<E>;
  using P = std::conditional_t<sizeof(typename V::Lane) == 4, Int32Vec, Int64Vec>;

  V extreme;
  P position;

  KF_INLINE void take(V x, P row) {
    const auto is_nan = x != x && extreme == extreme;
    const auto better = (kLargest ? x > extreme : x < extreme) || is_nan;
    extreme = select(better, x, extreme), position = select(better, row, position);
  }
};

/// Some rows of one register after the other, so that the extremes come and go once for all of them.
template <class E, bool kLargest>
KF_INLINE void search_rows(const ColumnBlock& b, std::int64_t column, std::int64_t first, std::int64_t last) {
  using S = SearchedColumns<E, kLargest>;
  const std::byte* x = b.x + column * kItem<E> + first * b.row_step;
  std::byte *const extremes = b.extremes + column * static_cast<int>(sizeof(typename S::V::Lane)),
                   *const positions = b.positions + column * static_cast<int>(sizeof(typename S::P::Lane));
  S s{load_elements<E>(x), typename S::P(first)};
  if (first != b.first)
    s = {typename S::V(load<typename S::V::Native>(extremes)), typename S::P(load<typename S::P::Native>(positions))};
  for (std::int64_t row = first; row < last; ++row, x += b.row_step) {
    prefetch_far(reinterpret_cast<std::uintptr_t>(x) + static_cast<std::uintptr_t>(b.row_step * kRowsAtOnce));
    s.take(load_elements<E>(x), typename S::P(row));
  }
  store(extremes, s.extreme.v), store(positions, s.position.v);
}

/// The last register may overlap the one before it: to take a row twice changes nothing.
template <class E, bool kLargest>
void search_columns(const ColumnBlock& b) {
  constexpr std::int64_t kCount = VecOf<E>::kCount;
  for (std::int64_t first = b.first, last; first < b.last; first = last) {
    last = first + kRowsAtOnce < b.last ? first + kRowsAtOnce : b.last;
    for (std::int64_t c = 0; c < b.columns; c += kCount)
      search_rows<E, kLargest>(b, c + kCount > b.columns ? b.columns - kCount : c, first, last);
  }
}

}  // namespace

ColumnSearch::Run column_search(DType elements, bool largest) {
  switch (elements) {
#define KF_ELEMENTS(E) \
  case DType::k##E:    \
    return largest ? search_columns<E, true> : search_columns<E, false>;
    KF_ELEMENTS(Float16)
    KF_ELEMENTS(BFloat16)
    KF_ELEMENTS(Float32)
    KF_ELEMENTS(Float64)
    KF_ELEMENTS(Int32)
    KF_ELEMENTS(Int64)
#undef KF_ELEMENTS
    default:
      return nullptr;
  }
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
