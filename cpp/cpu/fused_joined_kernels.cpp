// Several steps as one: what normalisations and softmax take on each tile, known as a whole, so that values stay in
// registers and a load is an operand of what uses it.
#include "cpu/fused_map_steps.hpp"
#include "cpu/fused_move_steps.hpp"
#include "cpu/fused_reduce_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

constexpr Width kFull = Width::kFull;

// ---- single steps, of float32: the body, and which step it is ----------------------------------------------------

struct LoadFloats : Load<Float32, false> {
  static bool is(const TileStep& s) { return s.run == load_step(DType::kFloat32, kFull, false); }
};
struct StoreFloats : Store<Float32, false> {
  static bool is(const TileStep& s) { return s.run == store_step(DType::kFloat32, kFull, false); }
};
struct Keep : Spill {
  static bool is(const TileStep& s) { return s.run == spill_step(kFull); }
};
struct Kept : Reload {
  static bool is(const TileStep& s) { return s.run == reload_step(kFull) && s.stride != 0; }
};

/// Long functions prefetch between the registers; where there is nothing to prefetch, what is in the cache.
template <Op op>
struct Unary {
  static bool is(const TileStep& s) { return s.run == map_step(op, DType::kFloat32, kFull); }
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    if (!is_long(op, Map<op>::kSignature) || s->fetches > 1) fetch<kWhole, sizeof...(X)>(s, c, i);
    if constexpr (is_long(op, Map<op>::kSignature)) {
      const TileFetch f = s->fetches == 1 ? c->fetches[s->fetch] : TileFetch{};
      std::uintptr_t next = s->fetches == 1 ? begin_of(f, c, i) : reinterpret_cast<std::uintptr_t>(s);
      const auto stride = static_cast<std::uintptr_t>(f.stride);
      ((prefetch(next), next += stride, x = map_register<op, float>(x, nullptr, nullptr)), ...);
    } else {
      ((x = map_register<op, float>(x, nullptr, nullptr)), ...);
    }
  }
};
/// With one number for the whole row.
template <Op op>
struct ByRow {
  static bool is(const TileStep& s) { return s.run == map_step(op, DType::kFloat32, kFull) && s.stride == 0; }
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    if constexpr (op == Op::divide) {
      MapStep<op, float>::template take<kWhole>(s, c, i, x...);
    } else {
      float number;  // not the register: that has just been written in parts, and would have to wait for them
      __builtin_memcpy(&number, operand(s, c, i), sizeof number);
      const FloatVec y(number);
      ((x = (F32s)apply<op, float>(FloatVec(x), y, y).v), ...);
    }
  }
};
/// With an array along the row.
template <Op op>
struct ByElement {
  static bool is(const TileStep& s) {
    return s.run == map_step(op, DType::kFloat32, kFull) && s.stride == kVectorBytes;
  }
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    const std::byte* y = operand(s, c, i);
    fetch<kWhole, sizeof...(X)>(s, c, i);
    ((x = (F32s)apply<op, float>(FloatVec(x), read<float>(y), FloatVec(0)).v, y += kVectorBytes), ...);
  }
};
template <Op op, bool positive>
struct ReduceFloats : Reduce<op, float, false, positive> {
  static bool is(const TileStep& s) { return s.run == reduce_step(op, DType::kFloat32, kFull, false, false, positive); }
};

/// The sum of floats that have just been loaded, in double precision from memory on: half the work of compensated sums.
template <Op op>
struct SumOfLoaded {
  using Sum = Reduce<op, float, false, false>;
  static bool is(const TileStep& s) { return ReduceFloats<op, false>::is(s); }

  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    const std::byte* p = operand(s - 1, c, i);
    DoubleVec parts[] = {sum_of_register(x, p)...};
    tree<sizeof...(X)>(parts);
    Sum::add(s, c, i, parts[0]);
  }

 private:
  static KF_INLINE DoubleVec sum_of_register(const F32s&, const std::byte*& p) {
    using Half = VectorOf<float, kVectorBytes / 2>::Type;
    const DoubleVec low(doubles_of(load<Half>(p))), high(doubles_of(load<Half>(p + sizeof(Half))));
    p += kVectorBytes;
    return low + high;
  }
  template <int kCount>
  static KF_INLINE void tree(DoubleVec* parts) {
    if constexpr (kCount > 1) {
#pragma GCC unroll 8
      for (int j = 0; j < kCount / 2; ++j) parts[j] = parts[2 * j] + parts[2 * j + 1];
      tree<kCount / 2>(parts);
    }
  }
};

// ---- sequences ---------------------------------------------------------------------------------------------------

/// Some steps in turn; kLoops: through all tiles that follow, where it is the whole program.
template <class... Bodies>
struct Sequence {
  static constexpr int kSteps = sizeof...(Bodies);

  static bool is(const TileStep* s) {
    int k = 0;
    return (Bodies::is(s[k++]) && ...);
  }
  template <bool kLoops, class... X>
  static void run(KF_STEP, X... x) {
    constexpr std::int64_t kElements = sizeof...(X) * FloatVec::kCount;
    take(s, c, i, x...);
    if constexpr (kLoops) {
      for (; i + kElements <= c->last; c->i = i) {
        c->first = false;
        take(s, c, i += kElements, x...);
      }
    }
    return next(s + kSteps - 1, c, i, x...);
  }

 private:
  template <class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    int k = 0;
    (Bodies::template take<true>(s + k++, c, i, x...), ...);
  }
};

/// Puts the first sequence that fits in place; returns its length, or 1. `loops`: it may be one that does.
template <class... Sequences>
int join_first(TileStep* s, int count, bool loops) {
  int steps = 1;
  const auto fits = [&]<class S>(S) {
    if (S::kSteps > count || !S::is(s)) return false;
    const bool whole = loops && S::kSteps + 1 == count;
    const Run<KF_FULL_TILE> run = whole ? S::template run<true, KF_FULL_TILE> : S::template run<false, KF_FULL_TILE>;
    s->run = reinterpret_cast<StepFunction>(run);
    steps = S::kSteps;
    return true;
  };
  (fits(Sequences()) || ...);
  return steps;
}

using Relu = Unary<Op::relu>;
using Square = Unary<Op::square>;
using Exp = Unary<Op::exp>;
using Less = ByRow<Op::subtract>;
using Times = ByRow<Op::multiply>;
using Over = ByRow<Op::divide>;
using Weight = ByElement<Op::multiply>;
using Bias = ByElement<Op::add>;
using MeanOfPositive = ReduceFloats<Op::mean, true>;
using SumOfPositive = ReduceFloats<Op::sum, true>;
using Max = ReduceFloats<Op::max, false>;

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
      Sequence<LoadFloats, Max>, Sequence<LoadFloats, Less, Exp, SumOfPositive, Keep>,
      Sequence<LoadFloats, Less, Exp, SumOfPositive>, Sequence<Kept, Over, StoreFloats>,
      Sequence<LoadFloats, Less, Less, StoreFloats>,
      // common functions, unrolled
      Sequence<Exp>, Sequence<Unary<Op::log>>, Sequence<Unary<Op::tanh>>, Sequence<Unary<Op::sigmoid>>,
      Sequence<Unary<Op::erf>>>(s, count, loops);
}

}  // namespace

void join_steps(TileStep* steps, int count, bool loops) {
  for (int k = 0; k < count;) k += join_at(steps + k, count - k, loops && k == 0);
}

}  // namespace KF_ISA
}  // namespace kfusion::cpu
