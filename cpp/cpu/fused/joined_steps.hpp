// The bodies of steps that are taken together, of whole tiles of float32. A body is made once for a run of tiles and
// keeps in registers what stays or counts up from tile to tile: a row's number, addresses, the sum so far.
#pragma once
#include "cpu/fused/map_steps.hpp"
#include "cpu/fused/move_steps.hpp"
#include "cpu/fused/reduce_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

constexpr Width kFull = Width::kFull;

/// What most bodies leave behind after the last tile: nothing.
struct Stateless {
  KF_INLINE void finish() const {}
};

/// A step's prefetches, tile after tile.
class FetchesOfTiles {
 public:
  KF_INLINE FetchesOfTiles(KF_STEP) : s_(s), c_(c), i_(i), one_(s->fetches == 1) {
    const TileFetch share = one_ ? c->fetches[s->fetch] : TileFetch{};
    next_ = one_ ? begin_of(share, c, i) : 0, stride_ = static_cast<std::uintptr_t>(share.stride), far_ = share.far;
  }
  KF_INLINE void take() {
    if (one_) {
#pragma GCC unroll 8
      for (int j = 0; j < kRegisters; ++j) prefetch(next_, far_), next_ += stride_;
    } else {
      fetch<true, kRegisters>(s_, c_, i_);
      i_ += kRegisters * FloatVec::kCount;
    }
  }

  /// A part beside a long function of each register; where there is not just one array, all before them, and what is in
  /// the cache in its place.
  template <class F, class... X>
  KF_INLINE void take_beside(const F& f, X&... x) {
    const bool one = s_->fetches == 1;
    const TileFetch share = one ? c_->fetches[s_->fetch] : TileFetch{};
    std::uintptr_t next = one ? begin_of(share, c_, i_) : reinterpret_cast<std::uintptr_t>(s_);
    if (!one) fetch<true, kRegisters>(s_, c_, i_);
    ((prefetch(next, share.far), next += static_cast<std::uintptr_t>(share.stride), x = f(x)), ...);
    i_ += kRegisters * FloatVec::kCount;
  }

 private:
  const TileStep* s_;
  TileContext* c_;
  std::int64_t i_;
  bool one_;
  std::uintptr_t next_, stride_;  ///< where there is one array
  bool far_;
};

// ---- from and to memory ------------------------------------------------------------------------------------------

class Read : public Stateless {
 public:
  KF_INLINE Read(KF_STEP) : from_(operand(s, c, i)), fetches_(s, c, i) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    fetches_.take();
    ((x = load<F32s>(from_), from_ += kVectorBytes), ...);
  }

 private:
  const std::byte* from_;
  FetchesOfTiles fetches_;
};
struct LoadFloats : Read {
  using Read::Read;
  static bool is(const TileStep& s) { return s.run == load_step(DType::kFloat32, kFull, false); }
};
struct Kept : Read {
  using Read::Read;
  static bool is(const TileStep& s) { return s.run == reload_step(kFull) && s.stride != 0; }
};

struct Keep : Stateless {
  static bool is(const TileStep& s) { return s.run == spill_step(kFull); }
  KF_INLINE Keep(KF_STEP) : to(operand(s, c, i)) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    ((store(to, x), to += kVectorBytes), ...);
  }
  std::byte* to;
};

/// Lines stay lines from tile to tile.
class StoreFloats : public Stateless {
 public:
  static bool is(const TileStep& s) { return s.run == store_step(DType::kFloat32, kFull, false); }
  KF_INLINE StoreFloats(KF_STEP)
      : to_(operand(s, c, i)),
        streams_(c->stream && s->scale != 0 && reinterpret_cast<std::uintptr_t>(to_) % kLineBytes == 0) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    if (streams_)
      ((stream(to_, x), to_ += kVectorBytes), ...);
    else
      ((store(to_, x), to_ += kVectorBytes), ...);
  }

 private:
  std::byte* to_;
  bool streams_;
};

// ---- maps --------------------------------------------------------------------------------------------------------

/// Of the tile alone.
template <Op op>
struct Unary : Stateless {
  static bool is(const TileStep& s) { return s.run == map_step(op, DType::kFloat32, kFull); }
  KF_INLINE Unary(KF_STEP) : fetches(s, c, i) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    const auto f = [](const F32s& v) KF_LAMBDA { return map_register<op, float>(v); };
    if constexpr (is_long(op)) {
      fetches.take_beside(f, x...);
    } else {
      fetches.take();
      ((x = f(x)), ...);
    }
  }
  FetchesOfTiles fetches;
};

/// With a row's number.
template <Op op>
struct ByRow : Stateless {
  static bool is(const TileStep& s) { return s.run == map_step(op, DType::kFloat32, kFull) && s.stride == 0; }
  KF_INLINE ByRow(KF_STEP) : number_(number<float>(operand(s, c, i))) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    ((x = (F32s)apply<op, float>(FloatVec(x), number_, number_).v), ...);
  }
  FloatVec number_;
};
#if defined(__AVX512F__)
template <>
struct ByRow<Op::divide> : Stateless {
  static bool is(const TileStep& s) { return s.run == map_step(Op::divide, DType::kFloat32, kFull) && s.stride == 0; }
  KF_INLINE ByRow(KF_STEP) : by(number<float>(operand(s, c, i))) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    by.divide(x...);
  }
  Divisor by;
};
#endif

/// With an array along the row.
template <Op op>
struct ByElement : Stateless {
  static bool is(const TileStep& s) {
    return s.run == map_step(op, DType::kFloat32, kFull) && s.stride == kVectorBytes;
  }
  KF_INLINE ByElement(KF_STEP) : from(operand(s, c, i)), fetches(s, c, i) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    fetches.take();
    ((x = (F32s)apply<op, float>(FloatVec(x), read<float>(from), FloatVec(0)).v, from += kVectorBytes), ...);
  }
  const std::byte* from;
  FetchesOfTiles fetches;
};

// ---- reductions --------------------------------------------------------------------------------------------------

/// Accumulators in a register; they begin as what changes nothing, and are put where the step's own would be.
template <class A>
class Accumulating {
 public:
  KF_INLINE Accumulating(KF_STEP, double identity)
      : to_(operand(s, c, i)), sum(c->first ? A(identity) : read<typename A::Value>(to_)) {}
  KF_INLINE void finish() const { store(to_, sum.v); }

 private:
  std::byte* to_;

 protected:
  A sum;
};

template <Op op, bool positive>
struct SumOfFloats : Accumulating<DoubleVec> {
  static bool is(const TileStep& s) { return s.run == reduce_step(op, DType::kFloat32, kFull, false, false, positive); }
  KF_INLINE SumOfFloats(KF_STEP) : Accumulating(s, c, i, -0.0) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    const FloatVec tile[] = {FloatVec(x)...};
    sum = sum + TileReduction<op, float, false, sizeof...(X)>::template combined<positive>(tile);
  }
};

/// The sum of floats that have just been loaded, in double precision from memory on: half the work of compensated sums.
template <Op op>
class SumOfLoaded : public Accumulating<DoubleVec> {
 public:
  static bool is(const TileStep& s) { return SumOfFloats<op, false>::is(s); }
  KF_INLINE SumOfLoaded(KF_STEP) : Accumulating(s, c, i, -0.0), from_(operand(s - 1, c, i)) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    DoubleVec parts[] = {sum_of_register(x)...};
    tree<sizeof...(X)>(parts);
    sum = sum + parts[0];
  }

 private:
  KF_INLINE DoubleVec sum_of_register(const F32s&) {
    using Half = VectorOf<float, kVectorBytes / 2>::Type;
    const DoubleVec low(doubles_of(load<Half>(from_))), high(doubles_of(load<Half>(from_ + sizeof(Half))));
    from_ += kVectorBytes;
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

  const std::byte* from_;
};

/// Without regard to NaN, but where there is one.
struct MaxOfFloats : Accumulating<FloatVec> {
  static bool is(const TileStep& s) {
    return s.run == reduce_step(Op::max, DType::kFloat32, kFull, false, false, false);
  }
  KF_INLINE MaxOfFloats(KF_STEP) : Accumulating(s, c, i, -__builtin_inf()) {}
  template <class... X>
  KF_INLINE void take(X&... x) {
    if (any_nan(x...)) [[unlikely]]
      return void(((sum = maximum(sum, FloatVec(x))), ...));
    FloatVec largest[] = {FloatVec(x)...};
#pragma GCC unroll 3
    for (int n = static_cast<int>(sizeof...(X)) / 2; n > 0; n /= 2)
#pragma GCC unroll 4
      for (int j = 0; j < n; ++j) largest[j] = at_least(largest[j], largest[j + n]);
    sum = at_least(sum, largest[0]);
  }

 private:
  template <class... X>
  static KF_INLINE bool any_nan(const X&... x) {
    const FloatVec tile[] = {FloatVec(x)...};
    Mask<4> found = unordered(tile[0], tile[1]);
#pragma GCC unroll 3
    for (int j = 2; j < static_cast<int>(sizeof...(X)); j += 2) found = found || unordered(tile[j], tile[j + 1]);
    return any(found);
  }
};

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
