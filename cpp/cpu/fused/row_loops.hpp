// A sweep over rows as one loop (RowLoop). E: the elements in memory, computed in E::Compute.
#pragma once
#include <utility>

#include "cpu/edge_line.hpp"
#include "cpu/fused/map_steps.hpp"
#include "cpu/fused/reduce_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// A row's part of an operand, row after row. (Kept apart from the context, which stores might change for all that the
/// compiler knows.)
class RowsOf {
 public:
  KF_INLINE RowsOf(const TileContext* c, std::int32_t operand, const RowBlock& b, int item)
      : step_(c->row_steps[operand]), next_(c->at[operand] + b.first * step_ + b.begin * item) {}
  KF_INLINE std::byte* next() {
    std::byte* const row = next_;
    next_ += step_;
    return row;
  }

 private:
  std::int64_t step_;
  std::byte* next_;
};

/// A number of each row, in every lane.
template <class V>
class NumberOfRow {
 public:
  KF_INLINE NumberOfRow(const TileContext* c, std::int32_t operand, const RowBlock& b)
      : rows_(c, operand, {b.first, b.last, 0, 0}, 0) {}
  KF_INLINE void begin_row() { value = number<typename V::Value>(rows_.next()); }
  V value{0};

 private:
  RowsOf rows_;
};

/// The elements of rows, register by register.
template <class E>
class Elements {
 public:
  using V = VecOf<E>;
  static constexpr int kCount = V::kCount, kBytes = kCount * kItem<E>;

  KF_INLINE Elements(const RowLoop& l, const TileContext* c, const RowBlock& b) : rows_(c, l.x, b, kItem<E>) {
    if (l.fetch.stride == 0) return;
    stride_ = static_cast<std::uintptr_t>(l.fetch.stride), far_ = l.fetch.far;
    fetch_step_ = c->row_steps[l.fetch.operand];
    next_row_ = begin_of(l.fetch, c, b.begin) + static_cast<std::uintptr_t>(b.first * fetch_step_);
  }
  KF_INLINE void begin_row() {
    from_ = rows_.next();
    next_ = next_row_, next_row_ += static_cast<std::uintptr_t>(fetch_step_);
  }
  bool fetches() const { return stride_ != 0; }
  template <bool kFetches>
  KF_INLINE V next() {
    if constexpr (kFetches) prefetch(next_, far_), next_ += stride_;
    const std::byte* const p = from_;
    from_ += kBytes;
    return load_elements<E>(p);
  }
  KF_INLINE V part(int count) {
    const std::byte* const p = from_;
    from_ += count * kItem<E>;
    return load_elements<E>(p, count);
  }

 private:
  RowsOf rows_;
  const std::byte* from_ = nullptr;
  std::uintptr_t next_row_ = 0, next_ = 0, stride_ = 0;  ///< what is prefetched meanwhile
  std::int64_t fetch_step_ = 0;
  bool far_ = false;
};

/// What comes before a sweep's function: x, max(x, 0), x - centre, max(x, 0) - centre or an exponential of these.
template <class V>
struct Plain {
  KF_INLINE Plain(const RowLoop&, const TileContext*, const RowBlock&) {}
  KF_INLINE void begin_row() {}
  KF_INLINE V operator()(V x) const { return x; }
};
template <class V>
struct Relu : Plain<V> {
  using Plain<V>::Plain;
  KF_INLINE V operator()(V x) const { return at_least(x, V(0)); }
};
template <class V, template <class> class Before>
struct CentredAfter : Before<V> {
  KF_INLINE CentredAfter(const RowLoop& l, const TileContext* c, const RowBlock& b)
      : Before<V>(l, c, b), centre(c, l.centre, b) {}
  KF_INLINE void begin_row() { centre.begin_row(); }
  KF_INLINE V operator()(V x) const { return Before<V>::operator()(x) - centre.value; }
  NumberOfRow<V> centre;
};
template <class V>
using Centred = CentredAfter<V, Plain>;
template <class V>
using CentredRelu = CentredAfter<V, Relu>;
template <class V>
struct CentredExp : Centred<V> {
  using Centred<V>::Centred;
  KF_INLINE V operator()(V x) const {
    const V v = Centred<V>::operator()(x);
    return apply<Op::exp, typename V::Value>(v, v, v);
  }
};

// ---- reductions --------------------------------------------------------------------------------------------------

struct Same {
  template <class T>
  static KF_INLINE Vec<T> of(Vec<T> x) {
    return x;
  }
};
template <Op op>
struct Function {
  template <class T>
  static KF_INLINE Vec<T> of(Vec<T> x) {
    return apply<op, T>(x, x, x);
  }
};

/// In doubles.
template <class T>
struct RowSum {
  static constexpr bool kFolded = true;
  DoubleVec sum{-0.0};

  template <int kCount>
  KF_INLINE void take(const Vec<T>* x) {
    sum = sum + in_doubles<0, kCount>(x);
  }
  static KF_INLINE Vec<T> only(Vec<T> x, int count) { return keep_first(x, count, Vec<T>(-0.0)); }
  KF_INLINE bool finish() { return true; }
  KF_INLINE void put(std::byte* to) const { store(to, sum_lanes(sum.v)); }

 private:
  template <int kBegin, int kEnd>
  static KF_INLINE DoubleVec in_doubles(const Vec<T>* x) {
    if constexpr (kEnd - kBegin > 1)
      return in_doubles<kBegin, (kBegin + kEnd) / 2>(x) + in_doubles<(kBegin + kEnd) / 2, kEnd>(x);
    else if constexpr (sizeof(T) == 8)
      return x[kBegin];
    else
      return DoubleVec(doubles_of(half_lanes<0>(x[kBegin]))) + DoubleVec(doubles_of(half_lanes<1>(x[kBegin])));
  }
};

/// Of floats that are not negative, where what additions lose is small: as floats over a few tiles, then in doubles.
/// finish() is false where they overflow, which doubles might not.
struct RowSumOfPositive {
  static constexpr bool kFolded = true;
  static constexpr int kTiles = 4;

  DoubleVec sum{-0.0};
  FloatVec pending[kRegisters];
  int tiles = 0;

  KF_INLINE RowSumOfPositive() { clear(); }
  template <int kCount>
  KF_INLINE void take(const FloatVec* x) {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) pending[j] = pending[j] + x[j];
    if (kCount == kRegisters && ++tiles == kTiles) flush();
  }
  static KF_INLINE FloatVec only(FloatVec x, int count) { return keep_first(x, count, FloatVec(-0.0)); }
  KF_INLINE bool finish() {
    flush();
    return !any(!isfinite(sum));
  }
  KF_INLINE void put(std::byte* to) const { store(to, sum_lanes(sum.v)); }

 private:
  KF_INLINE void clear() {
    tiles = 0;
#pragma GCC unroll 8
    for (int j = 0; j < kRegisters; ++j) pending[j] = FloatVec(-0.0);
  }
  KF_INLINE void flush() {
    RowSum<float> all;
    FloatVec tree[kRegisters];
#pragma GCC unroll 8
    for (int j = 0; j < kRegisters; ++j) tree[j] = pending[j];
#pragma GCC unroll 3
    for (int n = kRegisters / 2; n > 0; n /= 2)
#pragma GCC unroll 4
      for (int j = 0; j < n; ++j) tree[j] = tree[j] + tree[j + n];
    all.take<1>(tree);
    sum = sum + all.sum;
    clear();
  }
};
template <class T>
struct PositiveSum {
  using Type = RowSum<T>;
};
template <>
struct PositiveSum<float> {
  using Type = RowSumOfPositive;
};

/// Without regard to NaN, but where there is one.
template <class T>
struct RowMax {
  static constexpr bool kFolded = true;
  Vec<T> largest{-__builtin_inf()};

  template <int kCount>
  KF_INLINE void take(const Vec<T>* x) {
    Vec<T> tile[kCount];
    auto nan = x[0] != x[0];
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) tile[j] = x[j], nan = nan || x[j] != x[j];
    if (any(nan)) [[unlikely]] {
      for (int j = 0; j < kCount; ++j) largest = maximum(largest, x[j]);
      return;
    }
#pragma GCC unroll 3
    for (int n = kCount / 2; n > 0; n /= 2)
#pragma GCC unroll 4
      for (int j = 0; j < n; ++j) tile[j] = at_least(tile[j], tile[j + n]);
    largest = at_least(largest, tile[0]);
  }
  static KF_INLINE Vec<T> only(Vec<T> x, int count) { return keep_first(x, count, Vec<T>(-__builtin_inf())); }
  KF_INLINE bool finish() { return true; }
  /// One number: what reads lanes of a register that has just been stored waits for all stores before it.
  KF_INLINE void put(std::byte* to) const { store(to, value()); }
  KF_INLINE T value() const { return folded<Vec<T>::kCount / 2>(largest).v[0]; }

 private:
  using Native = typename Vec<T>::Native;
  template <int kBy, std::size_t... lane>
  static KF_INLINE Native moved(Native v, std::index_sequence<lane...>) {
    return __builtin_shufflevector(v, v, (lane + kBy) % sizeof...(lane)...);
  }
  template <int kHalf>
  static KF_INLINE Vec<T> folded(Vec<T> x) {
    const Vec<T> half = maximum(x, Vec<T>(moved<kHalf>(x.v, std::make_index_sequence<Vec<T>::kCount>())));
    if constexpr (kHalf > 1) return folded<kHalf / 2>(half);
    return half;
  }
};

template <class T>
struct RowMin {
  static constexpr bool kFolded = true;
  RowMax<T> of_negatives;

  template <int kCount>
  KF_INLINE void take(const Vec<T>* x) {
    Vec<T> negatives[kCount];
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) negatives[j] = apply<Op::negative, T>(x[j], x[j], x[j]);
    of_negatives.template take<kCount>(negatives);
  }
  static KF_INLINE Vec<T> only(Vec<T> x, int count) { return keep_first(x, count, Vec<T>(__builtin_inf())); }
  KF_INLINE bool finish() { return true; }
  KF_INLINE void put(std::byte* to) const { store(to, -of_negatives.value()); }
};

/// Takes up f(before(x)) of a row; kKeeps: which also stays for a later sweep. False where the accumulators cannot hold
/// it.
template <class E, template <class> class Before, class F, class Accumulators, bool kKeeps>
class ReducedRows {
 public:
  using V = VecOf<E>;
  static constexpr int kCount = V::kCount;

  KF_INLINE ReducedRows(const RowLoop& l, const TileContext* c, const RowBlock& b)
      : x_(l, c, b),
        before_(l, c, b),
        kept_rows_(c, kKeeps ? l.kept : l.x, b, sizeof(typename V::Lane)),
        to_(c, l.to, b, 0) {}

  KF_INLINE bool row(std::int64_t i, std::int64_t end) {
    x_.begin_row();
    before_.begin_row();
    if constexpr (kKeeps) kept_ = kept_rows_.next();
    std::byte* const to = to_.next();
    Accumulators sums;
    if (x_.fetches())
      i = tiles<true>(sums, i, end);
    else
      i = tiles<false>(sums, i, end);
    for (; i + kCount <= end; i += kCount) {
      const V one = take(x_.template next<false>());
      sums.template take<1>(&one);
    }
    if (i < end) {
      const int rest = static_cast<int>(end - i);
      const V part = Accumulators::only(take(x_.part(rest)), rest);
      sums.template take<1>(&part);
    }
    const bool held = sums.finish();
    sums.put(to);
    return held;
  }

 private:
  template <bool kFetches>
  KF_INLINE std::int64_t tiles(Accumulators& sums, std::int64_t i, std::int64_t end) {
    for (; i + kRegisters * kCount <= end; i += kRegisters * kCount) {
      V tile[kRegisters];
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) tile[j] = take(x_.template next<kFetches>());
      sums.template take<kRegisters>(tile);
    }
    return i;
  }
  KF_INLINE V take(V x) {
    const V v = F::of(before_(x));
    if constexpr (kKeeps) store(kept_, v.v), kept_ += kVectorBytes;
    return v;
  }

  Elements<E> x_;
  Before<V> before_;
  RowsOf kept_rows_, to_;
  std::byte* kept_ = nullptr;
};

template <class E, template <class> class Before, class F, class Accumulators, bool kKeeps>
void reduce_rows(const RowLoop& l, const TileContext* c, const RowBlock& b) {
  const std::int64_t begin = b.begin, end = b.end;
  ReducedRows<E, Before, F, Accumulators, kKeeps> rows(l, c, b);
  for (std::int64_t r = b.first; r < b.last; ++r)
    if (!rows.row(begin, end)) [[unlikely]]
      ReducedRows<E, Before, F, RowSum<typename E::Compute>, kKeeps>(l, c, {r, r + 1, begin, end}).row(begin, end);
}

// ---- stores ------------------------------------------------------------------------------------------------------

/// By a number of the row.
template <class V, Op op>
struct ByNumber {
  KF_INLINE ByNumber(const RowLoop& l, const TileContext* c, const RowBlock& b) : number(c, l.factor, b) {}
  KF_INLINE void begin_row() { number.begin_row(); }
  template <int kCount>
  KF_INLINE void take(V* x) const {
#pragma GCC unroll 8
    for (int j = 0; j < kCount; ++j) x[j] = apply<op, typename V::Value>(x[j], number.value, number.value);
  }
  NumberOfRow<V> number;
};
#if defined(__AVX512F__)
template <>
struct ByNumber<FloatVec, Op::divide> {
  KF_INLINE ByNumber(const RowLoop& l, const TileContext* c, const RowBlock& b) : number(c, l.factor, b) {}
  KF_INLINE void begin_row() {
    number.begin_row();
    by = Divisor(number.value);
  }
  template <int kCount>
  KF_INLINE void take(FloatVec* x) const {
    by.divide_all<kCount>(x);
  }
  NumberOfRow<FloatVec> number;
  Divisor by{FloatVec(1)};
};
#endif
template <class V>
using Times = ByNumber<V, Op::multiply>;
template <class V>
using Less = ByNumber<V, Op::subtract>;
template <class V>
using Over = ByNumber<V, Op::divide>;

/// Arrays along the row: none, a weight, a weight and a bias.
template <class V, int kArrays>
struct Affine {
  static constexpr int kBytes = static_cast<int>(sizeof(typename V::Lane));
  KF_INLINE Affine(const RowLoop& l, const TileContext* c, const RowBlock& b)
      : weights(c, kArrays > 0 ? l.weight : l.x, {b.first, b.last, 0, 0}, 0),
        biases(c, kArrays > 1 ? l.bias : l.x, {b.first, b.last, 0, 0}, 0) {}
  KF_INLINE void begin_row() { weight = weights.next(), bias = biases.next(); }
  template <class Read>
  KF_INLINE V of(V v, std::int64_t i, const Read& read_from) const {
    if constexpr (kArrays > 0) v = v * read_from(weight + i * kBytes);
    if constexpr (kArrays > 1) v = v + read_from(bias + i * kBytes);
    return v;
  }
  KF_INLINE V all(V v, std::int64_t i) const {
    return of(v, i, [](const std::byte* p) KF_LAMBDA { return read<typename V::Value>(p); });
  }
  KF_INLINE V part(V v, std::int64_t i, int count) const {
    return of(v, i,
              [count](const std::byte* p) KF_LAMBDA { return V(load_first<typename V::Native>(p, count * kBytes)); });
  }
  RowsOf weights, biases;
  const std::byte *weight = nullptr, *bias = nullptr;
};

/// In: the elements read, E: those stored, of one compute type.
template <class In, class E, template <class> class Before, template <class> class Scale, int kArrays>
class StoredRows {
 public:
  using V = VecOf<E>;
  static constexpr int kCount = V::kCount, kLine = kLineBytes / kItem<E>;

  KF_INLINE StoredRows(const RowLoop& l, const TileContext* c, const RowBlock& b)
      : x_(l, c, b), before_(l, c, b), scale_(l, c, b), affine_(l, c, b), to_(c, l.to, {b.first, b.last, 0, 0}, 0) {}

  KF_INLINE void begin_row() {
    x_.begin_row(), before_.begin_row(), scale_.begin_row(), affine_.begin_row();
    y_ = to_.next();
  }
  KF_INLINE void store_all(std::int64_t i, std::int64_t end) {
    i = registers<false>(i, end);
    if (i < end) part(i, static_cast<int>(end - i), y_ + i * kItem<E>);
  }
  /// Past the caches, but for parts of lines, which wait in `edge`.
  KF_INLINE void stream_all(std::int64_t i, std::int64_t end, EdgeLine& edge) {
    if (!has_lines(i)) return store_all(i, end);
    stream_rest(stream_head(i, end, edge), end, edge);
  }
  /// The same in parts: up to the first line, tiles, what is left.
  KF_INLINE bool has_lines(std::int64_t i) const { return to_line(i) % kItem<E> == 0; }
  KF_INLINE std::int64_t stream_head(std::int64_t i, std::int64_t end, EdgeLine& edge) {
    const std::int64_t line = i + to_line(i) / kItem<E>, first = line < end ? line : end;
    part_of_line(i, first, edge);
    return first;
  }
  KF_INLINE void stream_tile(std::int64_t i) { some<kRegisters, true>(i); }
  KF_INLINE void stream_rest(std::int64_t i, std::int64_t end, EdgeLine& edge) {
    part_of_line(registers<true>(i, i + (end - i) / kLine * kLine), end, edge);
  }

 private:
  KF_INLINE std::int64_t to_line(std::int64_t i) const {
    return static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(y_ + i * kItem<E>) & (kLineBytes - 1));
  }
  template <bool kStreams>
  KF_INLINE std::int64_t registers(std::int64_t i, std::int64_t end) {
    for (; i + kRegisters * kCount <= end; i += kRegisters * kCount) some<kRegisters, kStreams>(i);
    for (; i + kCount <= end; i += kCount) some<1, kStreams>(i);
    return i;
  }
  template <int kSome, bool kStreams>
  KF_INLINE void some(std::int64_t i) {
    V v[kSome];
    if (kSome > 1 && x_.fetches()) {
#pragma GCC unroll 8
      for (int j = 0; j < kSome; ++j) v[j] = before_(x_.template next<true>());
    } else {
#pragma GCC unroll 8
      for (int j = 0; j < kSome; ++j) v[j] = before_(x_.template next<false>());
    }
    scale_.template take<kSome>(v);
    std::byte* const y = y_ + i * kItem<E>;
#pragma GCC unroll 8
    for (int j = 0; j < kSome; ++j) {
      const V value = affine_.all(v[j], i + j * kCount);
      if constexpr (kStreams)
        stream_elements<E>(y + j * kCount * kItem<E>, value);
      else
        store_elements<E>(y + j * kCount * kItem<E>, value);
    }
  }
  KF_INLINE void part(std::int64_t i, int count, std::byte* to) {
    V v = before_(x_.part(count));
    scale_.template take<1>(&v);
    store_elements<E>(to, affine_.part(v, i, count), count);
  }
  KF_INLINE void part_of_line(std::int64_t i, std::int64_t end, EdgeLine& edge) {
    if (i == end) return;
    std::byte* to = place(edge, y_ + i * kItem<E>, (end - i) * kItem<E>);
    for (; i + kCount <= end; i += kCount, to += kCount * kItem<E>) {
      V v = before_(x_.template next<false>());
      scale_.template take<1>(&v);
      store_elements<E>(to, affine_.all(v, i));
    }
    if (i < end) part(i, static_cast<int>(end - i), to);
  }

  Elements<In> x_;
  Before<V> before_;
  Scale<V> scale_;
  Affine<V, kArrays> affine_;
  RowsOf to_;
  std::byte* y_ = nullptr;
};

constexpr std::int64_t kStreamedBytes = 256;  // of shorter rows few lines would be whole

template <class In, class E, template <class> class Before, template <class> class Scale, int kArrays>
void store_rows(const RowLoop& l, const TileContext* c, const RowBlock& b) {
  const bool streams = c->stream && (b.end - b.begin) * kItem<E> >= kStreamedBytes;
  EdgeLine* const edge = c->edge;
  const std::int64_t begin = b.begin, end = b.end;
  StoredRows<In, E, Before, Scale, kArrays> rows(l, c, b);
  for (std::int64_t n = b.last - b.first; n > 0; --n) {
    rows.begin_row();
    streams ? rows.stream_all(begin, end, *edge) : rows.store_all(begin, end);
  }
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
