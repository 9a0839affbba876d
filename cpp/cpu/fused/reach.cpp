#include "cpu/fused/reach.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "cpu/fused/tables.hpp"
#include "cpu/strided.hpp"

namespace kfusion::cpu {
namespace {

std::int64_t size_of(const Extents& e) {
  std::int64_t n = 1;
  for (const std::int64_t extent : e) n *= extent;
  return n;
}

bool is_dense(const Extents& extents, const Extents& strides) {
  std::int64_t expected = 1;
  for (std::size_t d = extents.size(); d-- > 0; expected *= extents[d])
    if (strides[d] != expected) return false;
  return true;
}

/// Calls run(n, offset, stride) for each run of elements along the last axis.
template <class F>
void for_runs(const Extents& extents, const Extents& strides, std::int64_t begin, std::int64_t count, F run) {
  if (extents.empty()) return run(count, std::int64_t{0}, std::int64_t{0});
  const std::size_t last = extents.size() - 1;
  std::int64_t index[kMaxDims], offset = 0;
  for (std::size_t d = last + 1; d-- > 0; begin /= extents[d]) {
    index[d] = begin % extents[d];
    offset += index[d] * strides[d];
  }
  for (std::int64_t n; count > 0; count -= n) {
    n = std::min(count, extents[last] - index[last]);
    run(n, offset, strides[last]);
    index[last] += n, offset += n * strides[last];
    for (std::size_t d = last; d > 0 && index[d] == extents[d]; --d) {
      index[d] = 0, offset -= extents[d] * strides[d];
      ++index[d - 1], offset += strides[d - 1];
    }
  }
}

template <int item>
using BitsOf = std::conditional_t<
    item == 8, std::uint64_t,
    std::conditional_t<item == 4, std::uint32_t, std::conditional_t<item == 2, std::uint16_t, std::uint8_t>>>;

/// Every second element, two registers at a time: the first of each pair. The last ones go alone, since behind them the
/// array may end.
template <int item, class Bits>
std::int64_t copy_every_second(std::int64_t n, const std::byte* from, std::byte* to) {
  constexpr int kLanes = 16 / item;
  using Lanes [[gnu::vector_size(16)]] = Bits;
  std::int64_t k = 0;
  for (; k + kLanes < n; k += kLanes) {
    Lanes a, b;
    std::memcpy(&a, from + 2 * k * item, sizeof a);
    std::memcpy(&b, from + 2 * k * item + 16, sizeof b);
    const Lanes firsts = [&]<int... i>(std::integer_sequence<int, i...>) {
      return __builtin_shufflevector(a, b, 2 * i...);
    }(std::make_integer_sequence<int, kLanes>());
    std::memcpy(to + k * item, &firsts, sizeof firsts);
  }
  return k;
}

template <class Bits>
void fill(const std::byte* element, std::int64_t count, std::byte* to) {
  constexpr int kLanes = 32 / sizeof(Bits);
  using Lanes [[gnu::vector_size(32)]] = Bits;
  Bits bits;
  std::memcpy(&bits, element, sizeof bits);
  const Lanes all = Lanes{} + bits;
  for (; count >= kLanes; count -= kLanes, to += sizeof all) std::memcpy(to, &all, sizeof all);
  std::memcpy(to, &all, static_cast<std::size_t>(count) * sizeof bits);
}

template <int item>
void copy_run(std::int64_t n, const std::byte* from, std::int64_t from_stride, std::byte* to, std::int64_t to_stride) {
  if (from_stride == item && to_stride == item) {
    std::memcpy(to, from, static_cast<std::size_t>(n * item));
    return;
  }
  if (from_stride == 0 && to_stride == item) return fill<BitsOf<item>>(from, n, to);
  std::int64_t k = 0;
  if constexpr (item > 1)
    if (from_stride == 2 * item && to_stride == item) k = copy_every_second<item, BitsOf<item>>(n, from, to);
  for (; k < n; ++k) std::memcpy(to + k * to_stride, from + k * from_stride, item);
}

void copy_run(int item, std::int64_t n, const std::byte* from, std::int64_t from_stride, std::byte* to,
              std::int64_t to_stride) {
  if (item == 4) return copy_run<4>(n, from, from_stride, to, to_stride);
  if (item == 8) return copy_run<8>(n, from, from_stride, to, to_stride);
  if (item == 2) return copy_run<2>(n, from, from_stride, to, to_stride);
  copy_run<1>(n, from, from_stride, to, to_stride);
}

template <class T>
void count_off(const Layout& iota, const Extents& extents, std::int64_t first, std::int64_t begin, std::int64_t count,
               std::byte* tile) {
  for_runs(extents, iota.flat, begin, count, [&](std::int64_t n, std::int64_t offset, std::int64_t stride) {
    for (std::int64_t k = 0; k < n; ++k, tile += sizeof(T)) {
      const T value = static_cast<T>(first + offset + k * stride);
      std::memcpy(tile, &value, sizeof value);
    }
  });
}

template <int item, class Index>
void take_elements(const TileTable& table, std::int64_t begin, std::int64_t count, const std::byte* indices,
                   std::int64_t per_register, std::byte* tile) {
  std::int64_t lane = 0;
  const auto next_index = [&] {
    Index index;
    std::memcpy(&index, indices + lane * static_cast<std::int64_t>(sizeof index), sizeof index);
    if (++lane == per_register) lane = 0, indices += table.vector_bytes;
    return std::int64_t{index};
  };
  for_runs(*table.extents, *table.strides, begin, count, [&](std::int64_t n, std::int64_t offset, std::int64_t stride) {
    const std::byte* from = table.base + offset;
    for (std::int64_t k = 0; k < n; ++k, from += stride, tile += item) {
      const std::byte* const element = table.at(from, next_index());
      if (element)
        std::memcpy(tile, element, item);
      else
        std::memset(tile, 0, item);
    }
  });
}

template <int item>
void take_elements(const TileTable& table, std::int64_t begin, std::int64_t count, const std::byte* indices,
                   std::int64_t per_register, std::byte* tile) {
  if (table.index_bytes == 8)
    return take_elements<item, std::int64_t>(table, begin, count, indices, per_register, tile);
  take_elements<item, std::int32_t>(table, begin, count, indices, per_register, tile);
}

constexpr std::int64_t kShortRow = 32, kFewColumns = 8;
constexpr std::int64_t kShortRowBytes = 256;  // below, buffers for tiles of several rows take less than rows one by one

/// Whether each element of a tile is a row of its own. That also serves short rows, which would fill no register, and
/// few columns are better taken one after the other, as rows of strided elements.
bool goes_by_columns(const Kernel& k) {
  if (k.parts() > 0) return false;
  if (k.kind == Pattern::kRows) return k.cols() <= kShortRow && !k.kept.empty() && k.kept.back() > kShortRow;
  if (k.kind == Pattern::kColumns) return k.rows() >= kFewColumns || k.reduced.back() <= kShortRow;
  return false;
}

/// Whether an elementwise kernel goes by rows: where it reads one element for all of a row, or where rows of its
/// results lie apart (parts of a join), tiles of several rows would need copies.
bool goes_by_rows(const Kernel& k) {
  if (k.kind != Pattern::kPointwise || k.kept.size() < 2) return false;
  const auto is_still = [](const Operand& o) { return o.kept.back() == 0; };
  const auto is_row = [](const Operand& o) { return o.kept.back() == 1; };
  const auto is_direct = [&](const Operand& o) { return is_row(o) || is_still(o); };
  const auto lies_apart = [&](const Operand& o) { return !is_dense(k.kept, o.kept); };
  const auto is_long_row = [&](const Operand& o) {
    return is_row(o) && k.kept.back() * static_cast<std::int64_t>(item_bytes(o.dtype)) >= kShortRowBytes;
  };
  if (std::ranges::any_of(k.stores, is_still, &Store::to)) return false;
  if (std::ranges::any_of(k.stores, lies_apart, &Store::to) && std::ranges::all_of(k.stores, is_long_row, &Store::to) &&
      std::ranges::all_of(k.loads, is_direct))
    return true;
  return k.kept.back() > kShortRow &&
         std::ranges::any_of(k.loads, [&](const Operand& o) { return is_still(o) && !all_zero(o.kept); });
}

constexpr std::int64_t kLeastRun = 256;  // several whole tiles

/// Elements that lie together of long rows along two axes, such as a channel's of each image.
std::int64_t run_length_of(const Kernel& k, const Space& s) {
  const auto is_dense_within = [](const Operand& o) { return o.reduced.size() == 2 && o.reduced[1] == 1; };
  const bool is_long = s.grouped && s.flat.size() == 2 && s.cols > kChunk && s.flat[1] >= kLeastRun;
  if (!is_long || k.kind != Pattern::kRows || k.parts() > 0 || !k.tables.empty()) return 0;
  return std::ranges::any_of(k.loads, is_dense_within) ? s.flat[1] : 0;
}

}  // namespace

Space::Space(const Kernel& k)
    : columns(goes_by_columns(k)),
      pointwise_(k.kind == Pattern::kPointwise),
      row_axes_(goes_by_rows(k) ? k.kept.size() - 1 : 0) {
  outer = outer_of(k.kept, k.reduced);
  flat = flat_of(k.kept, k.reduced);
  if (pointwise_ && flat.empty()) flat = {1};
  rows = size_of(outer), cols = size_of(flat);
  grouped = !columns && !outer.empty();
  run_length = run_length_of(k, *this);
}

Extents Space::outer_of(const Extents& kept, const Extents& reduced) const {
  if (pointwise_) return Extents(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(row_axes_));
  return columns ? reduced : kept;
}

Extents Space::flat_of(const Extents& kept, const Extents& reduced) const {
  if (pointwise_) return Extents(kept.begin() + static_cast<std::ptrdiff_t>(row_axes_), kept.end());
  return columns ? kept : reduced;
}

Layout Space::layout(const Operand& o, int item) const {
  Layout l;
  l.item = item, l.offset = o.offset * item;
  l.outer = outer_of(o.kept, o.reduced);
  l.flat = flat_of(o.kept, o.reduced);
  if (pointwise_ && l.flat.empty()) l.flat = {1};
  l.outer.resize(outer.size()), l.flat.resize(flat.size());
  const bool still = all_zero(l.flat);
  l.reach = still && all_zero(l.outer) ? Reach::kScalar
            : still && !columns        ? Reach::kOuter
            : is_dense(flat, l.flat)   ? Reach::kDirect
                                       : Reach::kStrided;
  for (std::int64_t& s : l.flat) s *= item;
  for (std::int64_t& s : l.outer) s *= item;
  return l;
}

Layout along_rows(const Layout& l) {
  Layout values = l;
  values.flat = {l.outer.empty() ? 0 : l.outer.back()};
  return values;
}

Layout Space::by_runs(Layout l) const {
  if (run_length == 0 || l.reach != Reach::kStrided || l.flat[1] != l.item) return l;
  l.reach = Reach::kDirect;
  l.to_run = l.flat[0] - run_length * l.item;
  return l;
}

void gather(const Layout& from, const Extents& extents, const std::byte* base, std::int64_t begin, std::int64_t count,
            std::byte* tile) {
  for_runs(extents, from.flat, begin, count, [&](std::int64_t n, std::int64_t offset, std::int64_t stride) {
    copy_run(from.item, n, base + offset, stride, tile, from.item);
    tile += n * from.item;
  });
}

void scatter(const Layout& to, const Extents& extents, std::byte* base, std::int64_t begin, std::int64_t count,
             const std::byte* tile) {
  for_runs(extents, to.flat, begin, count, [&](std::int64_t n, std::int64_t offset, std::int64_t stride) {
    copy_run(to.item, n, tile, to.item, base + offset, stride);
    tile += n * to.item;
  });
}

void count_off(const Layout& iota, const Extents& extents, std::int64_t first, DType dtype, std::int64_t begin,
               std::int64_t count, std::byte* tile) {
  switch (dtype) {
    case DType::kFloat64:
      return count_off<double>(iota, extents, first, begin, count, tile);
    case DType::kInt64:
      return count_off<std::int64_t>(iota, extents, first, begin, count, tile);
    case DType::kInt32:
      return count_off<std::int32_t>(iota, extents, first, begin, count, tile);
    default:
      return count_off<float>(iota, extents, first, begin, count, tile);
  }
}

void take_elements(const TileTable& table, std::int64_t begin, std::int64_t count, const std::byte* indices,
                   std::int64_t per_register, std::byte* tile) {
  if (table.item == 4) return take_elements<4>(table, begin, count, indices, per_register, tile);
  if (table.item == 8) return take_elements<8>(table, begin, count, indices, per_register, tile);
  if (table.item == 2) return take_elements<2>(table, begin, count, indices, per_register, tile);
  take_elements<1>(table, begin, count, indices, per_register, tile);
}

void repeat(const std::byte* element, int item, std::int64_t count, std::byte* to) {
  if (item == 4) return fill<std::uint32_t>(element, count, to);
  if (item == 8) return fill<std::uint64_t>(element, count, to);
  if (item == 2) return fill<std::uint16_t>(element, count, to);
  fill<std::uint8_t>(element, count, to);
}

}  // namespace kfusion::cpu
