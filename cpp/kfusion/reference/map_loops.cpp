#include "kfusion/ops/scalar_math.hpp"
#include "kfusion/ops/signature.hpp"
#include "kfusion/ops/table.hpp"
#include "kfusion/reference/elements.hpp"
#include "kfusion/reference/loops.hpp"

namespace kfusion::scalar {
namespace {

/// A row of the table. Its expression finds the functions of scalar_math.hpp first.
template <Op op>
struct Map;
#define KF_MAP(name, arity, signature, flops, cost, facts, other_names, doc, expression, ...) \
  template <>                                                                                 \
  struct Map<Op::name> {                                                                      \
    template <class X, class T>                                                               \
    static auto of([[maybe_unused]] X x, [[maybe_unused]] T y, [[maybe_unused]] T z) {        \
      return expression;                                                                      \
    }                                                                                         \
  };
#include "kfusion/ops/ops.def"

}  // namespace
}  // namespace kfusion::scalar

namespace kfusion::reference {
namespace {

using scalar::Map;

template <class T, bool present>
T argument(const Pointers& p, const Strides& s, std::size_t k, std::int64_t i) {
  if constexpr (present) return load<T>(p[k] + i * s[k]);
  return T();
}

template <Op op, class T>
void map_run(std::int64_t n, const Pointers& p, const Strides& s) {
  using Row = Map<op>;
  using First = std::conditional_t<kSignatureOf<op>.chooses, std::uint8_t, T>;
  using Result = std::conditional_t<kSignatureOf<op>.gives_bool(), std::uint8_t, T>;
  for (std::int64_t i = 0; i < n; ++i) {
    const auto x = argument<First, true>(p, s, 1, i);
    const auto y = argument<T, (row_of(op).arity > 1)>(p, s, 2, i);
    const auto z = argument<T, (row_of(op).arity > 2)>(p, s, 3, i);
    store(p[0] + i * s[0], convert<Result>(Row::of(x, y, z)));
  }
}

template <Op op, DType t>
constexpr Loop loop_of() {
  if constexpr (!is_half(t)) {
    if constexpr (kSignatureOf<op>.accepts(t)) return map_run<op, typename ComputeOf<t>::type>;
  }
  return nullptr;
}

template <Op op, std::size_t... t>
constexpr LoopPerDType loops_of(std::index_sequence<t...>) {
  return {loop_of<op, static_cast<DType>(t)>()...};
}

constexpr LoopPerDType kMapLoops[] = {
#define KF_MAP(name, ...) loops_of<Op::name>(std::make_index_sequence<kDTypes>()),
#define KF_REDUCE(...) {},
#define KF_NODE(...) {},
#include "kfusion/ops/ops.def"
};

}  // namespace

Loop map_loop(Op op, DType t) { return kMapLoops[static_cast<std::size_t>(op)][static_cast<std::size_t>(t)]; }

}  // namespace kfusion::reference
