// Several steps as one: what normalisations and softmax take on each tile, known as a whole, so that values stay in
// registers and a load is an operand of what uses it.
#include "cpu/fused/column_steps.hpp"
#include "cpu/fused/joined_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

/// The bodies of a sequence.
template <class...>
struct Bodies {
  KF_INLINE Bodies(const TileStep*, TileContext*, std::int64_t) {}
  template <class... X>
  KF_INLINE void take(X&...) {}
  KF_INLINE void finish() const {}
};
template <class First, class... More>
struct Bodies<First, More...> {
  KF_INLINE Bodies(KF_STEP) : first(s, c, i), more(s + 1, c, i) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    first.take(x...);
    more.take(x...);
  }
  KF_INLINE void finish() const {
    first.finish();
    more.finish();
  }
  First first;
  Bodies<More...> more;
};

/// Some steps in turn; kLoops: through all tiles that follow, where it is the whole program.
template <class... Steps>
struct Sequence {
  static constexpr int kSteps = sizeof...(Steps);
  static constexpr bool kReads = (__is_base_of(Read, Steps) || ...);  ///< it can be a whole program

  static bool is(const TileStep* s) {
    int k = 0;
    return (Steps::is(s[k++]) && ...);
  }
  template <bool kLoops, class... X>
  static void run(KF_STEP, X... x) {
    constexpr std::int64_t kElements = sizeof...(X) * FloatVec::kCount;
    const std::int64_t last = c->last - kElements;
    Bodies<Steps...> bodies(s, c, i);
    for (;; i += kElements) {
      bodies.take(x...);
      if (!kLoops || i > last) break;
    }
    c->i = i;
    bodies.finish();
    if constexpr (!kLoops) return next(s + kSteps - 1, c, i, x...);
  }
};

/// Some steps that are a whole program of columns: a tile's accumulators wait in registers while it goes through rows.
template <class Load, class... Steps>
struct RowsSequence {
  static bool is(const TileStep* s, int count) {
    int k = 1;
    return count == static_cast<int>(sizeof...(Steps)) + 2 && Load::is(*s) && (Steps::is(s[k++]) && ...);
  }
  template <class... X>
  static void run(KF_STEP, X... x) {
    constexpr std::int64_t kElements = sizeof...(X) * Load::kElements;
    const std::int64_t last = c->last - kElements;
    for (;; i += kElements) {
      Bodies<Load, Steps...> bodies(s, c, i);
      for (std::int64_t row = 0; row < c->rows; ++row) bodies.take(x...);
      bodies.finish();
      if (i > last) break;
    }
    c->i = i;
  }
};

template <class... Sequences>
bool join_rows(TileStep* s, int count) {
  const auto joins = [&]<class S>(S*) {
    if (!S::is(s, count)) return false;
    const Run<KF_FULL_TILE> run = S::template run<KF_FULL_TILE>;
    s->run = reinterpret_cast<StepFunction>(run);
    return true;
  };
  return (joins(static_cast<Sequences*>(nullptr)) || ...);
}

/// Puts a sequence in place where it fits.
template <class S>
bool fits(TileStep* s, int count, bool loops) {
  if (S::kSteps > count || !S::is(s)) return false;
  Run<KF_FULL_TILE> run = S::template run<false, KF_FULL_TILE>;
  if constexpr (S::kReads)
    if (loops && S::kSteps + 1 == count) run = S::template run<true, KF_FULL_TILE>;
  s->run = reinterpret_cast<StepFunction>(run);
  return true;
}

/// Puts the first sequence that fits in place; returns its length, or 1. `loops`: it may be one that does.
template <class... Sequences>
int join_first(TileStep* s, int count, bool loops) {
  int steps = 1;
  ((fits<Sequences>(s, count, loops) && (steps = Sequences::kSteps, true)) || ...);
  return steps;
}

using Relu = Unary<Op::relu>;
using Square = Unary<Op::square>;
using Exp = Unary<Op::exp>;
using Less = ByRow<Op::subtract>;
using Plus = ByRow<Op::add>;
using Times = ByRow<Op::multiply>;
using Over = ByRow<Op::divide>;
using Weight = ByElement<Op::multiply>;
using Bias = ByElement<Op::add>;
using MeanOfPositive = SumOfFloats<Op::mean, true>;
using SumOfPositive = SumOfFloats<Op::sum, true>;

int join_at(TileStep* s, int count, bool loops) {
  return join_first<
      // layernorm, of x or relu(x)
      Sequence<LoadFloats, SumOfLoaded<Op::mean>>, Sequence<LoadFloats, SumOfLoaded<Op::sum>>,
      Sequence<LoadFloats, Relu, MeanOfPositive>, Sequence<LoadFloats, Less, Square, MeanOfPositive>,
      Sequence<LoadFloats, Relu, Less, Square, MeanOfPositive>,
      Sequence<LoadFloats, Less, Times, Weight, Bias, StoreFloats>,
      Sequence<LoadFloats, Relu, Less, Times, Weight, Bias, StoreFloats>,
      Sequence<LoadFloats, Less, Times, Weight, StoreFloats>, Sequence<LoadFloats, Less, Times, StoreFloats>,
      Sequence<LoadFloats, Relu, Less, Times, StoreFloats>,
      // rmsnorm
      Sequence<LoadFloats, Square, MeanOfPositive>, Sequence<LoadFloats, Times, Weight, StoreFloats>,
      Sequence<LoadFloats, Times, StoreFloats>,
      // softmax and log_softmax
      Sequence<LoadFloats, MaxOfFloats>, Sequence<LoadFloats, Less, Exp, SumOfPositive, Keep>,
      Sequence<LoadFloats, Less, Exp, SumOfPositive>, Sequence<Kept, Over, StoreFloats>,
      Sequence<LoadFloats, Less, Less, StoreFloats>,
      // common functions, unrolled
      Sequence<Exp>, Sequence<Unary<Op::log>>, Sequence<Unary<Op::tanh>>, Sequence<Unary<Op::sigmoid>>,
      Sequence<Unary<Op::erf>>>(s, count, loops);
}

template <class... Steps>
struct List {};

/// Any of the first list with any of the second: half the jumps.
template <class... Firsts, class... Seconds>
int join_pair(TileStep* s, int count, List<Firsts...>, List<Seconds...>) {
  int steps = 1;
  const auto begins_with = [&]<class First>(First*) {
    steps = join_first<Sequence<First, Seconds>...>(s, count, false);
    return steps > 1;
  };
  (begins_with(static_cast<Firsts*>(nullptr)) || ...);
  return steps;
}

int join_any(TileStep* s, int count, bool loops) {
  const int steps = join_at(s, count, loops);
  if (steps > 1) return steps;
  return join_pair(s, count, List<LoadFloats, Plus, Less, Times, Weight, Bias, Relu>(),
                   List<Plus, Less, Times, Weight, Bias, Relu, StoreFloats>());
}

using LoadFloatRow = LoadRow<Float32, DType::kFloat32>;
using LoadHalfRow = LoadRow<Float16, DType::kFloat16>;
using LoadBrainRow = LoadRow<BFloat16, DType::kBFloat16>;
using LoadDoubleRow = LoadRow<Float64, DType::kFloat64>;

/// Sums over rows, plain and weighted, and of squares and of squared distances from a mean.
template <Op op>
bool join_sum_of_rows(TileStep* s, int count) {
  using Sum = SumOfRows<op>;
  return join_rows<RowsSequence<LoadFloatRow, SumOfLoadedRows<op>>, RowsSequence<LoadHalfRow, Sum>,
                   RowsSequence<LoadBrainRow, Sum>, RowsSequence<LoadDoubleRow, ReduceRows<op, double>>,
                   RowsSequence<LoadFloatRow, Unary<Op::square>, Sum>,
                   RowsSequence<LoadFloatRow, WithRow<Op::multiply>, Sum>,
                   RowsSequence<LoadFloatRow, WithRow<Op::subtract>, Unary<Op::square>, Sum>>(s, count);
}

template <Op op>
bool join_extreme_of_rows(TileStep* s, int count) {
  using Extreme = ReduceRows<op, float>;
  return join_rows<RowsSequence<LoadFloatRow, Extreme>, RowsSequence<LoadHalfRow, Extreme>,
                   RowsSequence<LoadBrainRow, Extreme>, RowsSequence<LoadDoubleRow, ReduceRows<op, double>>>(s, count);
}

bool join_columns(TileStep* s, int count) {
  return join_sum_of_rows<Op::sum>(s, count) || join_sum_of_rows<Op::mean>(s, count) ||
         join_extreme_of_rows<Op::max>(s, count) || join_extreme_of_rows<Op::min>(s, count);
}

}  // namespace

bool join_steps(TileStep* steps, int count, bool columns) {
  if (columns && join_columns(steps, count)) return true;
  for (int k = 0; k < count;) k += join_any(steps + k, count - k, !columns && k == 0);
  return false;
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
