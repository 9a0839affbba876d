#include "cpu/fused/reductions.hpp"

#include <cstring>
#include <type_traits>

#include "cpu/fused/tile_steps.hpp"
#include "kfusion/ops/scalar_math.hpp"
#include "kfusion/ops/signature.hpp"

namespace kfusion::scalar {
namespace {

/// A row of the table over numbers.
template <Op op>
struct Accumulation;
#define KF_REDUCE(name, signature, flops, other_names, doc, identity_, lift_, combine_, finish_, ...) \
  template <>                                                                                         \
  struct Accumulation<Op::name> {                                                                     \
    template <class A>                                                                                \
    static auto identity() {                                                                          \
      return identity_;                                                                               \
    }                                                                                                 \
    template <class A>                                                                                \
    static A combine(A a, A b) {                                                                      \
      return static_cast<A>(combine_);                                                                \
    }                                                                                                 \
    template <class A>                                                                                \
    static A finish(A a, [[maybe_unused]] std::int64_t n) {                                           \
      return finish_;                                                                                 \
    }                                                                                                 \
  };
#include "kfusion/ops/ops.def"

}  // namespace
}  // namespace kfusion::scalar

namespace kfusion::cpu {
namespace {

template <class A>
A value_of(const std::byte* p) {
  A a;
  std::memcpy(&a, p, sizeof a);
  return a;
}

template <class A>
Partial partial_of(A a) {
  Partial p;
  std::memcpy(p.bytes, &a, sizeof a);
  return p;
}

constexpr int kMaxLanes = 16;

/// A: the accumulator's lane; T: the result's.
template <Op op, class A, class T>
struct Scalars {
  using Row = scalar::Accumulation<op>;
  using Identity = decltype(Row::template identity<A>());

  static void fold(const std::byte* lanes, int count, std::int64_t pitch, std::int64_t rows, Partial* folded) {
    if (count == 16) return fold<16>(lanes, pitch, rows, folded);
    if (count == 8) return fold<8>(lanes, pitch, rows, folded);
    if (count == 4) return fold<4>(lanes, pitch, rows, folded);
    count == 2 ? fold<2>(lanes, pitch, rows, folded) : fold<1>(lanes, pitch, rows, folded);
  }
  static void combine(std::byte* a, const std::byte* b, std::int64_t count) {
    for (std::int64_t k = 0; k < count; ++k, a += sizeof(A), b += sizeof(A)) {
      const A both = Row::template combine<A>(value_of<A>(a), value_of<A>(b));
      std::memcpy(a, &both, sizeof both);
    }
  }
  static void finish(const std::byte* a, std::int64_t n, std::byte* values, std::int64_t count) {
    for (std::int64_t k = 0; k < count; ++k, a += sizeof(A), values += sizeof(T)) {
      const T result = static_cast<T>(Row::template finish<A>(value_of<A>(a), n));
      std::memcpy(values, &result, sizeof result);
    }
  }
  static void finish_rows(const std::byte* a, std::int64_t pitch, std::int64_t n, std::byte* values,
                          std::int64_t rows) {
    for (std::int64_t k = 0; k < rows; ++k) finish(a + k * pitch, n, values + k * static_cast<int>(sizeof(T)), 1);
  }
  static Partial identity() { return partial_of(static_cast<A>(Row::template identity<A>())); }

  /// The upper half onto the lower, for a number of lanes that the compiler knows.
  template <int kCount>
  static void fold(const std::byte* lanes, std::int64_t pitch, std::int64_t rows, Partial* to) {
    for (std::int64_t k = 0; k < rows; ++k, lanes += pitch) {
      A a[kCount];
      std::memcpy(a, lanes, sizeof a);
      to[k] = partial_of(folded<kCount>(a));
    }
  }
  template <int kCount>
  static A folded(const A* a) {
    if constexpr (kCount == 1) {
      return a[0];
    } else {
      A half[kCount / 2];
      for (int l = 0; l < kCount / 2; ++l) half[l] = Row::template combine<A>(a[l], a[l + kCount / 2]);
      return folded<kCount / 2>(half);
    }
  }

  static ScalarReduction row() {
    if constexpr (std::is_same_v<Identity, None>)
      return {&Scalars::fold, combine, finish, finish_rows, nullptr, sizeof(A)};
    else
      return {&Scalars::fold, combine, finish, finish_rows, identity, sizeof(A)};
  }
};

template <Op op>
ScalarReduction of_type(DType held) {
  constexpr bool kChoice = !signature_of(op).accumulates();
  if constexpr (signature_of(op).gives_bool()) return Scalars<op, std::int32_t, std::int32_t>::row();
  switch (held) {
    case DType::kFloat32:
      return Scalars<op, std::conditional_t<kChoice, float, double>, float>::row();
    case DType::kFloat64:
      return Scalars<op, double, double>::row();
    case DType::kInt64:
      return Scalars<op, std::int64_t, std::int64_t>::row();
    default:
      using Lane = std::conditional_t<kChoice, std::int32_t, std::int64_t>;
      return Scalars<op, Lane, Lane>::row();
  }
}

}  // namespace

double Partial::as_double() const { return value_of<double>(bytes); }
Partial Partial::of(double v) { return partial_of(v); }

ScalarReduction scalar_reduction(Op op, DType held) {
  switch (op) {
#define KF_REDUCE(name, ...) \
  case Op::name:             \
    return of_type<Op::name>(held);
#include "kfusion/ops/ops.def"
    default:
      return {};
  }
}

void combine_all(const ScalarReduction& r, Partial* parts, std::int64_t count, std::int64_t stride) {
  for (; count > 1; count = (count + 1) / 2)
    for (std::int64_t k = 0; k < count / 2 + count % 2; ++k) {
      Partial both = parts[2 * k * stride];
      if (2 * k + 1 < count) r.combine(both.bytes, parts[(2 * k + 1) * stride].bytes, 1);
      parts[k * stride] = both;
    }
}

void combine_all(const ScalarReduction& r, std::vector<std::vector<std::byte>>& arrays) {
  for (std::size_t step = 1; step < arrays.size(); step *= 2)
    for (std::size_t k = 0; k + step < arrays.size(); k += 2 * step)
      r.combine(arrays[k].data(), arrays[k + step].data(), static_cast<std::int64_t>(arrays[k].size()) / r.lane_bytes);
}

}  // namespace kfusion::cpu
