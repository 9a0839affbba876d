// The bodies of the steps that the reductions of ops.def make.
#pragma once
#include "cpu/fused/tile.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"  // reductions need two of them
#include "cpu/vector/math.hpp"
#pragma GCC diagnostic pop

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// A row of the table over vectors: A is the accumulators' Vec, T the elements'.
template <Op op>
struct Reduction;
#define KF_REDUCE(name, signature, flops, other_names, doc, identity_, lift_, combine_, finish_, ...) \
  template <>                                                                                         \
  struct Reduction<Op::name> {                                                                        \
    template <class A>                                                                                \
    static KF_INLINE auto identity() {                                                                \
      return identity_;                                                                               \
    }                                                                                                 \
    template <class A, class T>                                                                       \
    static KF_INLINE A lift(T x) {                                                                    \
      return lift_;                                                                                   \
    }                                                                                                 \
    template <class A>                                                                                \
    static KF_INLINE A combine(A a, A b) {                                                            \
      return A(combine_);                                                                             \
    }                                                                                                 \
  };
#include "kfusion/ops/ops.def"

/// The elements' type of a dtype, and the other way round.
template <DType t>
struct TypeOf;
template <class T>
struct DTypeOf;
#define KF_DTYPE(T, k)                        \
  template <>                                 \
  struct TypeOf<DType::k> {                   \
    using Type = T;                           \
  };                                          \
  template <>                                 \
  struct DTypeOf<T> {                         \
    static constexpr DType kValue = DType::k; \
  };
KF_DTYPE(float, kFloat32)
KF_DTYPE(double, kFloat64)
KF_DTYPE(std::uint8_t, kBool)
KF_DTYPE(std::int32_t, kInt32)
KF_DTYPE(std::int64_t, kInt64)
#undef KF_DTYPE

template <Op op, class T>
using Accumulator = Vec<typename TypeOf<accumulator(op, DTypeOf<T>::kValue)>::Type>;

template <class T>
KF_INLINE Vec<T> upper_lanes_as_lower(Vec<T> x) {
  const auto upper = half_lanes<1>(x);
  return join_lanes<T>(upper, upper);
}

/// Lanes from `count` on become those of `filler`.
template <class T>
KF_INLINE Vec<T> keep_first(Vec<T> x, std::int64_t count, Vec<T> filler) {
  using Index = Vec<typename IntegerOf<sizeof(typename Vec<T>::Lane)>::Type>;
  typename Index::Native lane = {};
  for (int l = 0; l < Index::kCount; ++l) lane[l] = l;
  return select(Index(lane) < Index(count), x, filler);
}

/// What takes the place of elements that do not count: the identity, or where there is none the tile's first element.
template <class Row, class A, class T>
KF_INLINE Vec<T> filler(Vec<T> tile) {
  const auto identity = Row::template identity<A>();
  if constexpr (__is_same(decltype(identity), const None))
    return Vec<T>(tile.v[0]);
  else
    return Vec<T>(identity.v[0]);
}

/// x + y and what its rounding lost (D. E. Knuth, "The Art of Computer Programming", volume 2).
template <class T>
struct ExactSum {
  Vec<T> sum, lost;
};
template <class T>
KF_INLINE ExactSum<T> exact_sum(Vec<T> x, Vec<T> y) {
  const Vec<T> sum = x + y, of_y = sum - x;
  return {sum, (x - (sum - of_y)) + (y - of_y)};
}

/// A tile's registers, each lifted, combined in pairs: the order is that of the tile.
template <Op op, class T, bool wide, int kCount>
struct TileReduction {
  using A = Accumulator<op, T>;
  using Row = Reduction<op>;
  static constexpr bool kIsSumOfFloats = (op == Op::sum || op == Op::mean) && !wide && kIsFloat<T> && sizeof(T) == 4;
  static constexpr bool kWidens = !wide && sizeof(typename A::Lane) > sizeof(typename Vec<T>::Lane);
  static constexpr int kElements = kVectorBytes / (wide ? 8 : static_cast<int>(sizeof(typename Vec<T>::Lane)));

  static KF_INLINE A lift(Vec<T> x) {
    const A a = Row::template lift<A>(x);
    if constexpr (kWidens) return Row::combine(a, Row::template lift<A>(upper_lanes_as_lower(x)));
    return a;
  }

  template <int kBegin, int kEnd>
  static KF_INLINE A tree(const Vec<T>* x) {
    if constexpr (kEnd - kBegin == 1)
      return lift(x[kBegin]);
    else
      return Row::combine(tree<kBegin, (kBegin + kEnd) / 2>(x), tree<(kBegin + kEnd) / 2, kEnd>(x));
  }

  template <bool positive, int kBegin, int kEnd>
  static KF_INLINE ExactSum<T> sum(const Vec<T>* x) {
    if constexpr (kEnd - kBegin == 1) {
      return {x[kBegin], Vec<T>(0)};
    } else if constexpr (kEnd - kBegin == 2 && !positive) {
      return exact_sum(x[kBegin], x[kBegin + 1]);
    } else {
      const auto a = sum<positive, kBegin, (kBegin + kEnd) / 2>(x), b = sum<positive, (kBegin + kEnd) / 2, kEnd>(x);
      if constexpr (positive) return {a.sum + b.sum, Vec<T>(0)};
      const auto both = exact_sum(a.sum, b.sum);
      return {both.sum, both.lost + (a.lost + b.lost)};
    }
  }

  /// Floats become doubles once a tile, when its registers have been added up: to convert each would take longer than
  /// all the rest. What the additions lose is kept, but where all terms have one sign: there it is a part of the sum
  /// that is no larger than its own rounding. A sum that overflows is taken in doubles.
  template <bool positive>
  static KF_INLINE A combined(const Vec<T>* x) {
    if constexpr (kIsSumOfFloats && kCount > 1) {
      const auto total = sum<positive, 0, kCount>(x);
      if (!any(!isfinite(total.sum))) [[likely]] {
        if constexpr (positive) return lift(total.sum);
        return Row::combine(lift(total.sum), lift(total.lost));
      }
    }
    return tree<0, kCount>(x);
  }
};

template <Op op, class T, bool wide, bool positive>
struct Reduce {
  using A = Accumulator<op, T>;
  using Row = Reduction<op>;

  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    using Tile = TileReduction<op, T, wide, sizeof...(X)>;
    Vec<T> tile[] = {as<T>(x)...};
    if (!kWhole && c->partial) {
      const Vec<T> rest = filler<Row, A>(tile[0]);
      int j = 0;  // no loop: the tile is to stay in registers
      ((tile[j] = keep_first(as<T>(x), c->valid - j * Tile::kElements, rest), ++j), ...);
    }
    add(s, c, i, Tile::template combined<positive>(tile));
  }

  static KF_INLINE void add(KF_STEP, A a) {
    std::byte* const at = operand(s, c, i);
    if (!c->first) a = Row::combine(read<typename A::Value>(at), a);
    store(at, a.v);
  }
};

/// Each element of the tile has its accumulator: a register of them, or two where they are wider.
template <Op op, class T, bool wide>
struct ReduceColumns {
  using A = Accumulator<op, T>;
  using Row = Reduction<op>;
  using Tile = TileReduction<op, T, wide, 1>;

  static KF_INLINE void take(std::byte*& at, Vec<T> x, bool first) {
    A a = Row::template lift<A>(x);
    if (!first) a = Row::combine(read<typename A::Value>(at), a);
    store(at, a.v);
    at += kVectorBytes;
  }

  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    std::byte* at = operand(s, c, i);
    const bool first = c->first;
    const auto part = [&at, first](Vec<T> v) KF_LAMBDA {
      take(at, v, first);
      if constexpr (Tile::kWidens) take(at, upper_lanes_as_lower(v), first);
    };
    (part(as<T>(x)), ...);
  }
};

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
