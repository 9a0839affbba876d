// How steps are written: a tile is a pack of registers, a step ends by jumping to the next. Compiled once per
// instruction set; g++ and clang make the jump at -O2 and above (tests look at the assembly), and a build without
// optimisation returns after each tile, so that its stack is bounded by the number of steps.
#pragma once
#include "cpu/fused/tile_steps.hpp"
#include "cpu/vector/vector.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

constexpr int kRegisters = 8;  // as many as are arguments in registers
#define KF_FULL_TILE F32s, F32s, F32s, F32s, F32s, F32s, F32s, F32s

#define KF_LAMBDA __attribute__((always_inline))
#define KF_STEP const TileStep *s, TileContext *c, std::int64_t i

template <class... X>
using Run = void (*)(const TileStep*, TileContext*, std::int64_t, X...);

template <class... X>
KF_INLINE void next(KF_STEP, X... x) {
  return reinterpret_cast<Run<X...>>(s[1].run)(s + 1, c, i, x...);
}

/// A step of one body. Body::take<kWhole>(s, c, i, x...) works on the tile, in place; kWhole: all its elements count.
template <class Body>
struct Step {
  template <class... X>
  static void run(KF_STEP, X... x) {
    Body::template take<false>(s, c, i, x...);
    return next(s, c, i, x...);
  }
};

/// The two widths of a step.
template <class Body>
KF_INLINE StepFunction step(Width width) {
  if (width == Width::kShort)
    return reinterpret_cast<StepFunction>(static_cast<Run<F32s>>(Step<Body>::template run<F32s>));
  return reinterpret_cast<StepFunction>(static_cast<Run<KF_FULL_TILE>>(Step<Body>::template run<KF_FULL_TILE>));
}

/// Where the operands' elements of this tile begin.
KF_INLINE std::byte* operand(KF_STEP) { return c->at[s->operand] + i * s->scale; }
KF_INLINE std::byte* second(KF_STEP) { return c->at[s->second] + i * s->second_scale; }

template <class T>
KF_INLINE Vec<T> as(const F32s& x) {
  return Vec<T>((typename Vec<T>::Native)x);
}
template <class T>
KF_INLINE Vec<T> read(const std::byte* p) {
  return Vec<T>(load<typename Vec<T>::Native>(p));
}

/// One number in every lane.
template <class T>
KF_INLINE Vec<T> number(const std::byte* p) {
  typename Vec<T>::Lane lane;
  __builtin_memcpy(&lane, p, sizeof lane);
  return Vec<T>((typename Vec<T>::Native)(lane - typename Vec<T>::Native{}));
}

KF_INLINE std::uintptr_t begin_of(const TileFetch& f, const TileContext* c, std::int64_t i) {
  return reinterpret_cast<std::uintptr_t>(c->at[f.operand]) +
         static_cast<std::uintptr_t>(f.ahead + (i * f.stride >> f.shift));
}

/// A step's prefetches, register by register: a burst of all of them would find the line fill buffers full, and then
/// leave memory idle until the next one.
class Fetches {
 public:
  KF_INLINE Fetches(KF_STEP) : count_(c->partial ? 0 : s->fetches) {
    for (int k = 0; k < count_; ++k) {
      const TileFetch& f = c->fetches[s->fetch + k];
      next_[k] = begin_of(f, c, i), stride_[k] = f.stride, far_[k] = f.far;
    }
  }
  KF_INLINE void next_register() {
    for (int k = 0; k < count_; ++k) prefetch(next_[k], far_[k]), next_[k] += stride_[k];
  }

 private:
  int count_;
  std::uintptr_t next_[kMaxFetches], stride_[kMaxFetches];
  bool far_[kMaxFetches];
};

template <bool kFar>
KF_INLINE void prefetch_lines(std::uintptr_t at, std::uintptr_t end) {
#pragma GCC unroll 1
  for (; at < end; at += kLineBytes) kFar ? prefetch_far(at) : prefetch(at);
}

/// Those of a short step, before its work. The loops are not unrolled: registers to save and a stack to align would
/// cost each step more than its work, whether or not it prefetches. Several arrays in turn: one after the other,
/// 2x + 3y fell from 0.96 of a copy to 0.82.
template <bool kWhole, int kRegistersOfTile>
KF_INLINE void fetch(KF_STEP) {
  if (s->fetches == 0 || (!kWhole && c->partial)) return;
  const TileFetch* const first = c->fetches + s->fetch;
  if (s->fetches == 1) {
    const std::uintptr_t begin = begin_of(*first, c, i),
                         end = begin + static_cast<std::uintptr_t>(first->stride) * kRegistersOfTile;
    return first->far ? prefetch_lines<true>(begin, end) : prefetch_lines<false>(begin, end);
  }
  const TileFetch* const last = first + s->fetches;
#pragma GCC unroll 1
  for (std::uintptr_t at = 0; at < kRegistersOfTile * kVectorBytes; at += kLineBytes) {
#pragma GCC unroll 1
    for (const TileFetch* f = first; f < last; ++f)
      if (at < static_cast<std::uintptr_t>(f->stride) * kRegistersOfTile) prefetch(begin_of(*f, c, i) + at, f->far);
  }
}

/// f(T()) for the compute type of a dtype.
template <class F>
KF_INLINE StepFunction with_type(DType held, F f) {
  switch (held) {
    case DType::kFloat32:
      return f(float());
    case DType::kFloat64:
      return f(double());
    case DType::kBool:
      return f(std::uint8_t());
    case DType::kInt32:
      return f(std::int32_t());
    case DType::kInt64:
      return f(std::int64_t());
    default:
      return nullptr;
  }
}

}  // namespace

// Between the files of one level.
StepFunction load_step(DType dtype, Width width, bool wide);
StepFunction store_step(DType dtype, Width width, bool wide);
StepFunction take_step(DType dtype, Width width, bool wide);
StepFunction spill_step(Width width);
StepFunction reload_step(Width width);
StepFunction map_step(Op op, DType held, Width width);
StepFunction reduce_step(Op op, DType held, Width width, bool wide, bool columns, bool positive);
StepFunction done_step(Width width);
bool join_steps(TileStep* steps, int count, bool columns);
RowLoop row_loop(const TileStep* steps, int count, const TileFetch* fetches);
RowLoop sum_loop(const Expression& e, DType elements);
RowLoop store_loop(const Expression& e, DType elements, DType to);
RowLoop::Run row_search(DType elements, bool nan);
ColumnSearch::Run column_search(DType elements, bool largest);
RowMoments row_moments(const RowLoop& mean, const RowLoop& squares);
RowAhead row_ahead(const RowMoments& moments, const RowLoop& store, std::int64_t ahead);

}  // namespace KF_ISA
}  // namespace kfusion::cpu
