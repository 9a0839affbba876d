// Vec<T>: a register of values of compute type T (ops.def), with the operators that the table's expressions use. Like
// all of simd.hpp: compiled once per instruction set, internal to the including file, nothing of the standard library.
//
// 4-byte types have kVectorBytes / 4 lanes, 8-byte types half as many. Where both occur together, only the lower half
// of a 4-byte type's lanes is used: conversions to 8 bytes read it, conversions from 8 bytes write it and zero the
// rest. A bool is a 4-byte lane holding 0 or 1.
#pragma once
#include "cpu/simd.hpp"

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

template <class T>
struct LaneOf {
  using Type = T;
};
template <>
struct LaneOf<std::uint8_t> {
  using Type = std::int32_t;
};

template <class T>
constexpr bool kIsBool = sizeof(T) == 1;
template <class T>
constexpr bool kIsFloat = T(1) / T(2) != T(0);

template <int bytes>
struct IntegerOf {
  using Type = std::int32_t;
  using Unsigned = std::uint32_t;
};
template <>
struct IntegerOf<8> {
  using Type = std::int64_t;
  using Unsigned = std::uint64_t;
};

/// What a comparison gives: lanes of `bytes` bytes, all bits set where it holds.
template <int bytes>
struct Mask {
  using Lane = typename IntegerOf<bytes>::Type;
  using Native = typename VectorOf<Lane, kVectorBytes>::Type;
  Native v;

  template <class V>
  static KF_INLINE Mask of(const V& comparison) {
    return {(Native)comparison};
  }
  friend KF_INLINE Mask operator&&(Mask a, Mask b) { return {a.v & b.v}; }
  friend KF_INLINE Mask operator||(Mask a, Mask b) { return {a.v | b.v}; }
  friend KF_INLINE Mask operator!=(Mask a, Mask b) { return {a.v ^ b.v}; }
  friend KF_INLINE Mask operator!(Mask a) { return {~a.v}; }
};

/// Of any lane.
template <int bytes>
KF_INLINE bool any(Mask<bytes> m) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)m.v, (__m512i)m.v) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)m.v) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)m.v) != 0;
#else
  const auto halves = (typename VectorOf<std::int64_t, 16>::Type)m.v;
  return (halves[0] | halves[1]) != 0;
#endif
}

template <class T>
struct Vec {
  using Value = T;
  using Lane = typename LaneOf<T>::Type;
  using Native = typename VectorOf<Lane, kVectorBytes>::Type;
  using Unsigned = typename VectorOf<typename IntegerOf<sizeof(Lane)>::Unsigned, kVectorBytes>::Type;
  using MaskType = Mask<sizeof(Lane)>;
  static constexpr int kCount = kVectorBytes / static_cast<int>(sizeof(Lane));

  Native v;

  Vec() = default;
  explicit KF_INLINE Vec(Native native) : v(native) {}
  /// A number in every lane; subtracting 0 keeps -0.
  template <class S>
  explicit KF_INLINE Vec(S number) : v(static_cast<Lane>(number) - Native{}) {}
  template <class S>
  explicit KF_INLINE Vec(Vec<S> x);
  template <int bytes>
  explicit KF_INLINE Vec(Mask<bytes> m) : Vec(zero_or_one(m)) {}

  /// Of another type's lanes, bit by bit.
  template <class S>
  static KF_INLINE Vec bits(Vec<S> x) {
    return Vec((Native)x.v);
  }

  // Integers wrap; bits are those of any type.
#define KF_WRAPPING(op)                                   \
  friend KF_INLINE Vec operator op(Vec a, Vec b) {        \
    if constexpr (kIsFloat<T>) return Vec(a.v op b.v);    \
    return Vec((Native)((Unsigned)a.v op(Unsigned) b.v)); \
  }
#define KF_BITWISE(op) \
  friend KF_INLINE Vec operator op(Vec a, Vec b) { return Vec((Native)((Unsigned)a.v op(Unsigned) b.v)); }
#define KF_OPERATOR(op) \
  friend KF_INLINE Vec operator op(Vec a, Vec b) { return Vec(a.v op b.v); }
#define KF_COMPARISON(op) \
  friend KF_INLINE MaskType operator op(Vec a, Vec b) { return MaskType::of(a.v op b.v); }
  KF_WRAPPING(+)
  KF_WRAPPING(-)
  KF_WRAPPING(*)
  KF_OPERATOR(/)
  KF_OPERATOR(%)
  KF_BITWISE(&)
  KF_BITWISE(|)
  KF_BITWISE(^)
  KF_COMPARISON(==)
  KF_COMPARISON(!=)
  KF_COMPARISON(<)
  KF_COMPARISON(<=)
  KF_COMPARISON(>)
  KF_COMPARISON(>=)
#undef KF_WRAPPING
#undef KF_BITWISE
#undef KF_OPERATOR
#undef KF_COMPARISON
  friend KF_INLINE Vec operator-(Vec a) {
    if constexpr (kIsFloat<T>) return Vec(-a.v);
    return Vec((Native)(Unsigned{} - (Unsigned)a.v));
  }
  friend KF_INLINE Vec operator~(Vec a) { return Vec((Native) ~(Unsigned)a.v); }
  friend KF_INLINE Vec operator<<(Vec a, int count) { return Vec((Native)((Unsigned)a.v << count)); }
  friend KF_INLINE Vec operator>>(Vec a, int count) { return Vec(a.v >> count); }  ///< keeps the sign
  friend KF_INLINE Vec operator<<(Vec a, Vec count) { return Vec((Native)((Unsigned)a.v << (Unsigned)count.v)); }
  friend KF_INLINE Vec operator>>(Vec a, Vec count) { return Vec(a.v >> count.v); }
  KF_INLINE Vec logical_right(int count) const { return Vec((Native)((Unsigned)v >> count)); }
  friend KF_INLINE MaskType operator&&(Vec a, Vec b) { return a != Vec(0) && b != Vec(0); }
  friend KF_INLINE MaskType operator||(Vec a, Vec b) { return a != Vec(0) || b != Vec(0); }
};

using FloatVec = Vec<float>;
using DoubleVec = Vec<double>;
using Int32Vec = Vec<std::int32_t>;
using Int64Vec = Vec<std::int64_t>;
using BoolVec = Vec<std::uint8_t>;

template <class T>
KF_INLINE Vec<T> select(typename Vec<T>::MaskType condition, Vec<T> x, Vec<T> y) {
  return Vec<T>(condition.v ? x.v : y.v);
}

// ---- conversions: reference/elements.hpp says what they mean ---------------------------------------------------

/// Half of a 4-byte type's lanes, the lower (0) or the upper (1).
template <int half, class T>
KF_INLINE auto half_lanes(Vec<T> x) {
  using Half = typename VectorOf<typename Vec<T>::Lane, kVectorBytes / 2>::Type;
#if defined(__AVX512F__)
  return (Half)_mm512_maskz_extracti64x4_epi64(0xf, (__m512i)x.v, half);  // masked: see upper_half in simd.hpp
#elif defined(__AVX2__)
  return (Half)_mm256_extracti128_si256((__m256i)x.v, half);
#else
  Half lanes;
  __builtin_memcpy(&lanes, reinterpret_cast<const char*>(&x.v) + half * sizeof lanes, sizeof lanes);
  return lanes;
#endif
}

/// A whole register of two halves.
template <class T, class Half>
KF_INLINE Vec<T> join_lanes(const Half& lower, const Half& upper) {
  using Native = typename Vec<T>::Native;
#if defined(__AVX512F__)
  const __m512i low = _mm512_maskz_inserti64x4(0xff, __m512i{}, (__m256i)lower, 0);
  return Vec<T>((Native)_mm512_maskz_inserti64x4(0xff, low, (__m256i)upper, 1));
#elif defined(__AVX2__)
  return Vec<T>((Native)_mm256_inserti128_si256(_mm256_castsi128_si256((__m128i)lower), (__m128i)upper, 1));
#else
  Native whole;
  __builtin_memcpy(&whole, &lower, sizeof lower);
  __builtin_memcpy(reinterpret_cast<char*>(&whole) + sizeof lower, &upper, sizeof upper);
  return Vec<T>(whole);
#endif
}

/// Half a register of floats as doubles.
KF_INLINE F64s doubles_of(const VectorOf<float, kVectorBytes / 2>::Type& x) {
#if defined(__AVX512F__)
  return (F64s)_mm512_maskz_cvtps_pd(0xff, (__m256)x);  // g++ 12 makes four instructions of the conversion below
#else
  return __builtin_convertvector(x, F64s);
#endif
}

/// Half a register of integers as doubles; g++ 12 converts them one by one.
KF_INLINE F64s doubles_of(const VectorOf<std::int32_t, kVectorBytes / 2>::Type& x) {
#if defined(__AVX512F__)
  return (F64s)_mm512_maskz_cvtepi32_pd(0xff, (__m256i)x);
#elif defined(__AVX2__)
  return (F64s)_mm256_cvtepi32_pd((__m128i)x);
#else
  return __builtin_convertvector(x, F64s);
#endif
}

/// Of integers of 8 bytes, rounded once. AVX2 has no instruction for it: the lower half becomes the last digits of
/// 2^52, the upper one those of 2^84, with its sign turned, and both offsets are subtracted from the latter, which is
/// exact.
KF_INLINE F64s doubles_of(const VectorOf<std::int64_t, kVectorBytes>::Type& x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  constexpr std::int64_t kTo52 = 0x4330000000000000, kTo84 = 0x4530000000000000, kSign = 0x80000000;
  const auto lower = (F64s)((x & 0xffffffff) | kTo52);
  const auto upper = (F64s)(((I64s)_mm256_srli_epi64((__m256i)x, 32) ^ kSign) | kTo84);
  return (upper - (0x1p84 + 0x1p63 + 0x1p52)) + lower;
#else
  return __builtin_convertvector(x, F64s);
#endif
}

/// C++'s conversion of every lane.
template <class To, class From>
KF_INLINE Vec<To> convert_lanes(Vec<From> x) {
  using Lane = typename Vec<To>::Lane;
  using Native = typename Vec<To>::Native;
  constexpr bool kToDoubles = kIsFloat<To> && sizeof(Lane) == 8;
  if constexpr (kToDoubles && !kIsFloat<From> && sizeof(typename Vec<From>::Lane) == 8) {
    return Vec<To>(doubles_of(x.v));
  } else if constexpr (sizeof(Lane) == sizeof(typename Vec<From>::Lane)) {
    return Vec<To>(__builtin_convertvector(x.v, Native));
  } else if constexpr (kToDoubles) {
    return Vec<To>(doubles_of(half_lanes<0>(x)));
  } else if constexpr (sizeof(Lane) == 8) {
    return Vec<To>(__builtin_convertvector(half_lanes<0>(x), Native));
  } else {
    using Half = typename VectorOf<Lane, kVectorBytes / 2>::Type;
    return join_lanes<To>(__builtin_convertvector(x.v, Half), Half{});
  }
}

KF_INLINE BoolVec zero_or_one(Mask<4> m) { return BoolVec(m.v & 1); }
KF_INLINE BoolVec zero_or_one(Mask<8> m) { return convert_lanes<std::uint8_t>(Int64Vec(m.v & 1)); }

template <class To, class From>
KF_INLINE Vec<To> convert(Vec<From> x) {
  using V = Vec<From>;
  if constexpr (kIsBool<To>) {
    return BoolVec(x != V(0));
  } else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    constexpr From kEnd = sizeof(To) == 8 ? From(0x1p63) : From(0x1p31);
    return convert_lanes<To>(select(x >= V(-kEnd) && x < V(kEnd), x, V(-kEnd)));
  } else {
    return convert_lanes<To>(x);
  }
}
template <class T>
template <class S>
KF_INLINE Vec<T>::Vec(Vec<S> x) : Vec(convert<T>(x)) {}

/// The mask of a condition that is held as bools.
template <class T>
KF_INLINE Vec<T> select(BoolVec condition, Vec<T> x, Vec<T> y) {
  if constexpr (sizeof(typename Vec<T>::Lane) == 8)
    return select(Int64Vec(condition) != Int64Vec(0), x, y);
  else
    return select(condition != BoolVec(0), x, y);
}

// ---- elements in memory (E: Float32, BFloat16, Bool, ... of simd.hpp) ------------------------------------------

template <class E>
using VecOf = Vec<typename E::Compute>;

/// kLanes<E> elements at any address.
template <class E>
KF_INLINE VecOf<E> load_elements(const std::byte* p) {
  return VecOf<E>(E::widen(load<typename E::Raw>(p)));
}
/// 0 <= count < kLanes<E> elements, the other lanes zero.
template <class E>
KF_INLINE VecOf<E> load_elements(const std::byte* p, int count) {
  return VecOf<E>(E::widen(load_first<typename E::Raw>(p, count * kItem<E>)));
}
/// Rounded to E.
template <class E>
KF_INLINE void store_elements(std::byte* p, VecOf<E> x) {
  store(p, E::narrow(x.v));
}
template <class E>
KF_INLINE void store_elements(std::byte* p, VecOf<E> x, int count) {
  store_first(p, E::narrow(x.v), count * kItem<E>);
}
/// Half as many, in the lower lanes.
template <class E>
KF_INLINE VecOf<E> load_half_elements(const std::byte* p) {
  return VecOf<E>(E::widen(load_half<typename E::Raw>(p)));
}
template <class E>
KF_INLINE void store_half_elements(std::byte* p, VecOf<E> x) {
  store_half(p, E::narrow(x.v));
}
/// Past the caches, to an address aligned to the register in memory.
template <class E>
KF_INLINE void stream_elements(std::byte* p, VecOf<E> x) {
  stream(p, E::narrow(x.v));
}

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
