// The maps of ops.def on vectors.
#pragma once
#include "cpu/vector/math.hpp"
#include "kfusion/ops/op.hpp"

namespace kfusion::cpu::ir {
namespace {

/// A row of the table: of(x, y, z) is its expression over vectors, a Vec or a Mask. Vec<Result>(of(x, y, z)) is the
/// value to keep. Arguments that the row does not have may be anything.
template <Op op>
struct Map;
#define KF_MAP(name, arity, signature, flops, cost, facts, other_names, doc, expression, ...) \
  template <>                                                                                 \
  struct Map<Op::name> {                                                                      \
    template <class X, class T>                                                               \
    static inline auto of([[maybe_unused]] X x, [[maybe_unused]] T y, [[maybe_unused]] T z) { \
      return expression;                                                                      \
    }                                                                                         \
  };
#include "kfusion/ops/ops.def"

/// Whether a row takes arguments of compute type T, and whether it gives bools (else T).
template <class T>
constexpr bool accepts(Signature s) {
  switch (s) {
    case Signature::F_F:
    case Signature::FF_F:
      return kIsFloat<T>;
    case Signature::S_S:
    case Signature::SS_S:
      return !kIsBool<T>;
    case Signature::II_I:
      return !kIsFloat<T>;
    case Signature::ZZ_Z:
      return !kIsFloat<T> && !kIsBool<T>;
    case Signature::LLL_L:
      return !kIsFloat<T> && sizeof(T) == 8;
    case Signature::BB_B:
      return kIsBool<T>;
    default:
      return true;
  }
}
constexpr bool gives_bool(Signature s) { return s == Signature::A_B || s == Signature::AA_B || s == Signature::BB_B; }

template <bool kCondition, class Then, class Else>
struct Either {
  using Type = Then;
};
template <class Then, class Else>
struct Either<false, Then, Else> {
  using Type = Else;
};

/// What a map of arguments of type T gives, and what its first argument is.
template <Op op, class T>
using ResultOf = typename Either<gives_bool(info(op).signature), BoolVec, Vec<T>>::Type;
template <Op op, class T>
using FirstOf = typename Either<info(op).signature == Signature::BNN_N, BoolVec, Vec<T>>::Type;

/// The value of a map, as it is kept.
template <Op op, class T>
inline ResultOf<op, T> apply(FirstOf<op, T> x, Vec<T> y, Vec<T> z) {
  const auto result = Map<op>::of(x, y, z);
  if constexpr (kIsBool<T> && !gives_bool(info(op).signature))
    return BoolVec(BoolVec(result) != BoolVec(0));
  else
    return ResultOf<op, T>(result);
}

}  // namespace
}  // namespace kfusion::cpu::ir
