#include "kfusion/ops/scalar_math.hpp"
#include "kfusion/ops/signature.hpp"
#include "kfusion/ops/table.hpp"
#include "kfusion/reference/elements.hpp"
#include "kfusion/reference/loops.hpp"

namespace kfusion::scalar {
namespace {

/// A row of the table. Its expressions find the functions of scalar_math.hpp first.
template <Op op>
struct Reduction;
#define KF_REDUCE(name, signature, flops, other_names, doc, identity_, lift_, combine_, finish_, ...) \
  template <>                                                                                         \
  struct Reduction<Op::name> {                                                                        \
    template <class A>                                                                                \
    static A identity() {                                                                             \
      return identity_;                                                                               \
    }                                                                                                 \
    template <class A, class T>                                                                       \
    static A lift(T x) {                                                                              \
      return lift_;                                                                                   \
    }                                                                                                 \
    template <class A>                                                                                \
    static A combine(A a, A b) {                                                                      \
      return combine_;                                                                                \
    }                                                                                                 \
    template <class A>                                                                                \
    static A finish(A a, [[maybe_unused]] std::int64_t n) {                                           \
      return finish_;                                                                                 \
    }                                                                                                 \
  };
#include "kfusion/ops/ops.def"

}  // namespace
}  // namespace kfusion::scalar

namespace kfusion::reference {
namespace {

using scalar::Reduction;

/// Blocks one after the other, their results combined like the carries of a binary counter: the error of a sum grows
/// with log(n), and the order depends on n only.
template <class Row, class T, class A>
A reduce(const std::byte* p, Reduced r) {
  constexpr std::int64_t kBlock = 128;
  if (r.n == 0) return Row::template identity<A>();
  A partial[64];
  int depth = 0;
  for (std::int64_t begin = 0, block = 0; begin < r.n; begin += kBlock, ++block) {
    A a = Row::template lift<A>(load<T>(p + begin * r.stride));
    const std::int64_t end = begin + kBlock < r.n ? begin + kBlock : r.n;
    for (std::int64_t i = begin + 1; i < end; ++i)
      a = Row::combine(a, Row::template lift<A>(load<T>(p + i * r.stride)));
    for (std::int64_t carry = block; carry & 1; carry >>= 1) a = Row::combine(partial[--depth], a);
    partial[depth++] = a;
  }
  while (depth > 1) {
    --depth;
    partial[depth - 1] = Row::combine(partial[depth - 1], partial[depth]);
  }
  return partial[0];
}

template <Op op, DType t>
void reduce_run(std::int64_t results, const Pointers& p, const Strides& s, Reduced r) {
  using Row = Reduction<op>;
  constexpr const SignatureInfo& kSignature = kSignatureOf<op>;
  using T = typename ComputeOf<t>::type;
  using Result = typename ComputeOf<kSignature.result(t)>::type;
  using Accumulator =
      std::conditional_t<kSignature.accumulates(), std::conditional_t<is_float(t), double, std::int64_t>, Result>;
  for (std::int64_t i = 0; i < results; ++i) {
    const auto a = reduce<Row, T, Accumulator>(p[1] + i * s[1], r);
    store(p[0] + i * s[0], convert<Result>(Row::finish(a, r.n)));
  }
}

using ReduceLoops = std::array<ReduceLoop, kDTypes>;

template <Op op, DType t>
constexpr ReduceLoop loop_of() {
  if constexpr (!is_half(t) && kSignatureOf<op>.accepts(t)) return reduce_run<op, t>;
  return nullptr;
}

template <Op op, std::size_t... t>
constexpr ReduceLoops loops_of(std::index_sequence<t...>) {
  return {loop_of<op, static_cast<DType>(t)>()...};
}

constexpr ReduceLoops kReduceLoops[] = {
#define KF_MAP(...) {},
#define KF_REDUCE(name, ...) loops_of<Op::name>(std::make_index_sequence<kDTypes>()),
#define KF_NODE(...) {},
#include "kfusion/ops/ops.def"
};

}  // namespace

ReduceLoop reduce_loop(Op op, DType t) {
  return kReduceLoops[static_cast<std::size_t>(op)][static_cast<std::size_t>(t)];
}

}  // namespace kfusion::reference
