// The steps that move a tile: from and to memory, slots and other types.
#include "cpu/fused/move_steps.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

template <class From, class To>
struct Cast {
  template <bool kWhole, class... X>
  static KF_INLINE void take(const TileStep*, TileContext*, std::int64_t, X&... x) {
    ((x = (F32s)Vec<To>(as<From>(x)).v), ...);
  }
};

/// Float32 values as they are after the half type E has held them.
template <class E>
struct Round {
  template <bool kWhole, class... X>
  static KF_INLINE void take(const TileStep*, TileContext*, std::int64_t, X&... x) {
    ((x = E::widen(E::narrow(x))), ...);
  }
};

/// A number as a float whose last bit says that something is missing: what rounds that once more rounds the number
/// once.
KF_INLINE FloatVec rounded_to_odd(Int32Vec x) {
  const FloatVec near(x);
  const Int32Vec back(near), zero(0);
  const auto too_large = near >= FloatVec(0x1p31f);  // which `back` cannot hold
  const BoolVec beyond((x > zero && back > x) || (x < zero && back < x) || too_large), inexact(back != x);
  return FloatVec::bits((Int32Vec::bits(near) - Int32Vec(beyond)) | Int32Vec(inexact));
}
KF_INLINE FloatVec rounded_to_odd(DoubleVec x) {
  const FloatVec near(x);
  const DoubleVec back(near), zero(0);
  const BoolVec beyond((x > zero && back > x) || (x < zero && back < x)), inexact(back != x);
  return FloatVec::bits((Int32Vec::bits(near) - Int32Vec(beyond)) | Int32Vec(inexact));
}

template <class E, class From>
struct RoundToOdd {
  template <bool kWhole, class... X>
  static KF_INLINE void take(const TileStep*, TileContext*, std::int64_t, X&... x) {
    ((x = E::widen(E::narrow(rounded_to_odd(as<From>(x)).v))), ...);
  }
};

template <class E>
StepFunction round_step(DType from, Width width) {
  if (from == DType::kFloat64) return step<RoundToOdd<E, double>>(width);
  if (from == DType::kInt32) return step<RoundToOdd<E, std::int32_t>>(width);
  return step<Round<E>>(width);
}

template <class T>
struct Number {
  template <bool kWhole, class... X>
  static KF_INLINE void take(KF_STEP, X&... x) {
    const F32s value = (F32s)number<T>(operand(s, c, i)).v;
    ((x = value), ...);
  }
};

struct Done {
  template <class... X>
  static void run(KF_STEP, [[maybe_unused]] X... x) {
    (void)s, (void)c, (void)i;
  }
};

template <template <class, bool> class Body>
StepFunction of_element(DType dtype, Width width, bool wide) {
#define KF_ELEMENT(E) \
  case DType::k##E:   \
    return wide ? step<Body<E, true>>(width) : step<Body<E, false>>(width);
  switch (dtype) {
    KF_ELEMENT(Float16)
    KF_ELEMENT(BFloat16)
    KF_ELEMENT(Float32)
    KF_ELEMENT(Bool)
    KF_ELEMENT(Int32)
    case DType::kFloat64:
      return step<Body<Float64, true>>(width);
    case DType::kInt64:
      return step<Body<Int64, true>>(width);
  }
#undef KF_ELEMENT
  return nullptr;
}

StepFunction cast_step(DType from, DType to, Width width) {
  if (to == DType::kFloat16) return round_step<Float16>(from, width);
  if (to == DType::kBFloat16) return round_step<BFloat16>(from, width);
  return with_type(from, [to, width](auto f) {
    return with_type(to, [width](auto t) { return step<Cast<decltype(f), decltype(t)>>(width); });
  });
}

StepFunction number_step(int bytes, Width width) {
  return bytes == 8 ? step<Number<std::int64_t>>(width) : step<Number<std::int32_t>>(width);
}

template <class... X>
KF_INLINE void run_steps(KF_STEP, std::int64_t end, std::int64_t elements, X... zero) {
  c->last = end - elements;
  for (; i <= c->last; i = c->i + elements) {
    c->i = i;
    reinterpret_cast<Run<X...>>(s->run)(s, c, i, zero...);
    c->first = c->first && c->columns;
  }
#if defined(__AVX__)
  _mm256_zeroupper();  // baseline code that follows would wait for the upper halves of registers
#endif
}
void run_full(KF_STEP, std::int64_t end, std::int64_t elements) {
  const F32s zero = {};
  run_steps(s, c, i, end, elements, zero, zero, zero, zero, zero, zero, zero, zero);
}
void run_short(KF_STEP, std::int64_t end, std::int64_t elements) { run_steps(s, c, i, end, elements, F32s{}); }

template <class E>
void widen(const std::byte* from, std::int64_t count, std::byte* to) {
  for (; count >= kLanes<E>; count -= kLanes<E>, from += kLanes<E> * kItem<E>, to += kVectorBytes)
    store(to, load_elements<E>(from).v);
  const int rest = static_cast<int>(count);
  if (rest > 0) store_first(to, load_elements<E>(from, rest).v, rest * static_cast<int>(sizeof(float)));
}
void widen_halves(DType half, const std::byte* from, std::int64_t count, std::byte* to) {
  half == DType::kFloat16 ? widen<Float16>(from, count, to) : widen<BFloat16>(from, count, to);
}

template <class E>
void add_rows_of(const std::byte* rows, std::int64_t pitch, std::int64_t count, std::int64_t cols, std::byte* to,
                 bool first) {
  using V = VecOf<E>;
  std::int64_t i = 0;
  for (; i + V::kCount <= cols; i += V::kCount) {
    V sum = first ? V(-0.0) : load_elements<E>(to + i * kItem<E>);
    for (std::int64_t r = 0; r < count; ++r) sum = sum + load_elements<E>(rows + r * pitch + i * kItem<E>);
    store_elements<E>(to + i * kItem<E>, sum);
  }
  if (i == cols) return;
  const int rest = static_cast<int>(cols - i);
  V sum = first ? V(-0.0) : load_elements<E>(to + i * kItem<E>, rest);
  for (std::int64_t r = 0; r < count; ++r) sum = sum + load_elements<E>(rows + r * pitch + i * kItem<E>, rest);
  store_elements<E>(to + i * kItem<E>, sum, rest);
}
void add_rows(DType dtype, const std::byte* rows, std::int64_t pitch, std::int64_t count, std::int64_t cols,
              std::byte* to, bool first) {
  dtype == DType::kFloat64 ? add_rows_of<Float64>(rows, pitch, count, cols, to, first)
                           : add_rows_of<Float32>(rows, pitch, count, cols, to, first);
}

/// At and after the first line of `to`; the edges by plain stores.
void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  using V = VectorOf<std::uint8_t, kVectorBytes>::Type;
  constexpr std::uintptr_t kAheadBytes = 2048;  // about memory's latency
  const std::size_t phase = -reinterpret_cast<std::uintptr_t>(to) & (kLineBytes - 1);
  const std::size_t head = phase < bytes ? phase : bytes;
  __builtin_memcpy(to, from, head);
  std::size_t i = head;
  for (; i + 4 * kLineBytes <= bytes; i += 4 * kLineBytes) {
    for (int b = 0; b < 4 * kLineBytes; b += kLineBytes)
      prefetch(reinterpret_cast<std::uintptr_t>(from) + i + static_cast<std::uintptr_t>(b) + kAheadBytes);
    for (int b = 0; b < 4 * kLineBytes; b += kVectorBytes) stream(to + i + b, load<V>(from + i + b));
  }
  __builtin_memcpy(to + i, from + i, bytes - i);
  stream_fence();
}

void fence() { stream_fence(); }

}  // namespace

StepFunction load_step(DType dtype, Width width, bool wide) { return of_element<Load>(dtype, width, wide); }
StepFunction take_step(DType dtype, Width width, bool wide) { return of_element<Take>(dtype, width, wide); }
StepFunction store_step(DType dtype, Width width, bool wide) { return of_element<Store>(dtype, width, wide); }

StepFunction add_step(DType dtype, Width width, bool wide) {
  if (dtype == DType::kFloat64) return step<Add<Float64, true>>(width);
  return wide ? step<Add<Float32, true>>(width) : step<Add<Float32, false>>(width);
}

StepFunction done_step(Width width) {
  if (width == Width::kShort) return reinterpret_cast<StepFunction>(static_cast<Run<F32s>>(Done::run<F32s>));
  return reinterpret_cast<StepFunction>(static_cast<Run<KF_FULL_TILE>>(Done::run<KF_FULL_TILE>));
}
StepFunction reload_step(Width width) { return step<Reload>(width); }
StepFunction spill_step(Width width) { return step<Spill>(width); }

extern const TileKernels kTileKernels = {kVectorBytes,  kRegisters,
                                         map_step,      load_step,
                                         store_step,    add_step,
                                         take_step,     cast_step,
                                         reload_step,   spill_step,
                                         number_step,   reduce_step,
                                         done_step,     join_steps,
                                         row_loop,      sum_loop,
                                         store_loop,    row_search,
                                         column_search, row_moments,
                                         row_ahead,     {run_full, run_short},
                                         widen_halves,  add_rows,
                                         stream_copy,   fence};

}  // namespace KF_ISA
}  // namespace kfusion::cpu
