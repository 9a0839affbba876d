// The maps of ops.def on vectors.
#pragma once
#include "cpu/codegen/math/math.hpp"
#include "kfusion/ops/table.hpp"

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

/// The dtype whose compute type is T.
template <class T>
inline constexpr DType kDtypeOf = kIsBool<T>    ? DType::kBool
                                  : kIsFloat<T> ? (sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64)
                                                : (sizeof(T) == 4 ? DType::kInt32 : DType::kInt64);

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
using ResultOf = typename Either<kSignatureOf<op>.gives_bool(), BoolVec, Vec<T>>::Type;
template <Op op, class T>
using FirstOf = typename Either<kSignatureOf<op>.chooses, BoolVec, Vec<T>>::Type;

/// The value of a map, as it is kept.
template <Op op, class T>
inline ResultOf<op, T> apply(FirstOf<op, T> x, Vec<T> y, Vec<T> z) {
  const auto result = Map<op>::of(x, y, z);
  if constexpr (kIsBool<T> && !kSignatureOf<op>.gives_bool())
    return BoolVec(BoolVec(result) != BoolVec(0));
  else
    return ResultOf<op, T>(result);
}

}  // namespace
}  // namespace kfusion::cpu::ir
