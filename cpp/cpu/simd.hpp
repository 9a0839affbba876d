// One thin vector layer over the GCC/clang vector extensions, compiled once per instruction set (KF_ISA). All of it
// is internal to the including file: a shared inline function would reach the linker as a weak symbol, and the linker
// may keep the copy that an older CPU cannot run. For the same reason nothing from the standard library is used here.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef KF_ISA
#define KF_ISA baseline
#endif
#define KF_INLINE inline __attribute__((always_inline))

namespace kfusion::cpu {
namespace KF_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLineBytes = 64;

template <class T, int Bytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(Bytes)));
};
using F32s = VectorOf<float, kVectorBytes>::Type;
using F64s = VectorOf<double, kVectorBytes>::Type;
using U32s = VectorOf<std::uint32_t, kVectorBytes>::Type;
using I32s = VectorOf<std::int32_t, kVectorBytes>::Type;
using I64s = VectorOf<std::int64_t, kVectorBytes>::Type;
using U16s = VectorOf<std::uint16_t, kVectorBytes / 2>::Type;  ///< as many lanes as F32s
using U8s = VectorOf<std::uint8_t, kVectorBytes / 4>::Type;    ///< as many lanes as F32s

/// Loads and stores take any address: an array may start at any byte.
template <class V>
KF_INLINE V load(const std::byte* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
KF_INLINE void store(std::byte* p, const V& v) {
  __builtin_memcpy(p, &v, sizeof v);
}

/// Copies `n` < kBelow <= 64 bytes in at most six moves of fixed size, the largest first.
template <int kBelow, int kSize = kBelow / 2>
KF_INLINE void copy_short(std::byte* to, const std::byte* from, int n) {
  if constexpr (kSize > 0) {
    const int moved = n & kSize;
    if (moved) __builtin_memcpy(to, from, kSize);
    copy_short<kBelow, kSize / 2>(to + moved, from + moved, n);
  }
}

/// The first `bytes` bytes of a vector, 0 <= bytes < sizeof(V), the others zero; touches no byte beyond.
template <class V>
KF_INLINE V load_first(const std::byte* p, int bytes) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(V) == 64) return (V)_mm512_maskz_loadu_epi8((__mmask64{1} << bytes) - 1, p);
  if constexpr (sizeof(V) == 32) return (V)_mm256_maskz_loadu_epi8((__mmask32{1} << bytes) - 1, p);
  if constexpr (sizeof(V) == 16) return (V)_mm_maskz_loadu_epi8(static_cast<__mmask16>((1 << bytes) - 1), p);
#endif
  V v = {};
  copy_short<sizeof(V)>(reinterpret_cast<std::byte*>(&v), p, bytes);
  return v;
}
template <class V>
KF_INLINE void store_first(std::byte* p, const V& v, int bytes) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (sizeof(V) == 64) return _mm512_mask_storeu_epi8(p, (__mmask64{1} << bytes) - 1, (__m512i)v);
  if constexpr (sizeof(V) == 32) return _mm256_mask_storeu_epi8(p, (__mmask32{1} << bytes) - 1, (__m256i)v);
  if constexpr (sizeof(V) == 16) return _mm_mask_storeu_epi8(p, static_cast<__mmask16>((1 << bytes) - 1), (__m128i)v);
#endif
  copy_short<sizeof(V)>(p, reinterpret_cast<const std::byte*>(&v), bytes);
}

/// The first half of a vector's bytes, the others zero; touches no byte beyond. At once, as what goes through memory in
/// pieces waits for them.
template <class V>
KF_INLINE V load_half(const std::byte* p) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return (V)_mm512_maskz_loadu_epi64(0xf, p);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) return (V)_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 16) return (V)_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
#endif
  V v = {};
  __builtin_memcpy(&v, p, sizeof v / 2);
  return v;
}
template <class V>
KF_INLINE void store_half(std::byte* p, const V& v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return _mm512_mask_storeu_epi64(p, 0xf, (__m512i)v);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32)
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128((__m256i)v));
#endif
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 16) return _mm_storel_epi64(reinterpret_cast<__m128i*>(p), (__m128i)v);
#endif
  __builtin_memcpy(p, &v, sizeof v / 2);
}

/// A store that goes past the caches, to an address aligned to sizeof(V).
template <class V>
KF_INLINE void stream(std::byte* p, const V& v) {
#if defined(__x86_64__)
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) return _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)v);
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) return _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)v);
#endif
  if constexpr (sizeof(V) == 16) return _mm_stream_si128(reinterpret_cast<__m128i*>(p), (__m128i)v);
  if constexpr (sizeof(V) == 8) return _mm_stream_si64(reinterpret_cast<long long*>(p), (long long)v);
#endif
  store(p, v);
}

/// Makes streamed stores visible before what follows (the thread's "done").
KF_INLINE void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// A hint: any address is allowed, mapped or not.
KF_INLINE void prefetch(std::uintptr_t address) { __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 3); }
/// To the second-level cache.
KF_INLINE void prefetch_far(std::uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address), 0, 2);
}
KF_INLINE void prefetch(std::uintptr_t address, bool far) { far ? prefetch_far(address) : prefetch(address); }

/// max(x, 0) with NaN kept: the operand order of x86's max, which returns its second operand for NaN.
template <class V>
KF_INLINE V relu(const V& x) {
#if defined(__AVX512F__)
  // g++ 12 makes a compare and a masked move of the selection below. The masked forms: see upper_half.
  if constexpr (sizeof(x[0]) == 4) return (V)_mm512_maskz_max_ps(0xffff, __m512{}, (__m512)x);
  if constexpr (sizeof(x[0]) == 8) return (V)_mm512_maskz_max_pd(0xff, __m512d{}, (__m512d)x);
#endif
  return V{} > x ? V{} : x;
}

#if defined(__AVX512F__)
// The masked forms, because g++ 12 warns about its own header in the plain ones.
KF_INLINE __m256d upper_half(F64s v) { return _mm512_maskz_extractf64x4_pd(0xf, (__m512d)v, 1); }
KF_INLINE __m256d lower_half(F64s v) { return _mm512_maskz_extractf64x4_pd(0xf, (__m512d)v, 0); }
#elif defined(__AVX2__)
KF_INLINE __m128d upper_half(F64s v) { return _mm256_extractf128_pd((__m256d)v, 1); }
KF_INLINE __m128d lower_half(F64s v) { return _mm256_castpd256_pd128((__m256d)v); }
#endif

/// Sum of the lanes, halves first: the same order whatever the surrounding code.
KF_INLINE double sum_lanes(F64s v) {
#if defined(__AVX512F__)
  const __m256d half = lower_half(v) + upper_half(v);
  const __m128d low = _mm256_castpd256_pd128(half) + _mm256_extractf128_pd(half, 1);
#elif defined(__AVX2__)
  const __m128d low = lower_half(v) + upper_half(v);
#else
  const F64s low = v;
#endif
  return low[0] + low[1];
}

// ---- half types: stored in 16 bits, computed as float ---------------------------------------------------------

KF_INLINE F32s float_of_half(U16s h) {
#if defined(__AVX512F__)
  return (F32s)_mm512_maskz_cvtph_ps(0xffff, (__m256i)h);  // g++ 12 warns about the plain form's own header
#elif defined(__F16C__)
  return (F32s)_mm256_cvtph_ps((__m128i)h);
#else
  const U32s wide = __builtin_convertvector(h, U32s);
  const U32s magnitude = (wide & 0x7fffu) << 13;
  const U32s normal = magnitude + (112u << 23);  // exponent bias 15 -> 127
  // Subnormal: an implicit one is added as exponent, and taken off again as a number. No subnormal float is ever an
  // operand, so that the process's flush-to-zero mode does not matter.
  const F32s one = (F32s)(U32s{} + (113u << 23));
  const U32s subnormal = (U32s)((F32s)(magnitude + (113u << 23)) - one);
  U32s bits = (wide & 0x7c00u) == 0u ? subnormal : normal;
  bits = (wide & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : bits;
  return (F32s)(bits | (wide & 0x8000u) << 16);
#endif
}

/// Round to nearest even; NaN stays NaN.
KF_INLINE U16s half_of_float(F32s f) {
#if defined(__AVX512F__)
  return (U16s)_mm512_maskz_cvtps_ph(0xffff, (__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  return (U16s)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const U32s all = (U32s)f, magnitude = all & 0x7fffffffu;
  const U32s normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Below 2^-14: adding 0.5 leaves the subnormal half in the low mantissa bits, rounded by the adder.
  const U32s subnormal = (U32s)((F32s)magnitude + 0.5f) - 0x3f000000u;
  const U32s nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  U32s bits = magnitude < 0x38800000u ? subnormal : normal;
  bits = magnitude >= 0x47800000u ? U32s{} + 0x7c00u : bits;
  bits = magnitude > 0x7f800000u ? nan : bits;
  return __builtin_convertvector(bits | (all >> 16 & 0x8000u), U16s);
#endif
}

/// Each 16 bits in a lane of 4 bytes. g++ 12 takes the plain conversion apart, half a register at a time.
KF_INLINE U32s lanes_of_words(U16s h) {
#if defined(__AVX512F__)
  return (U32s)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)h);
#elif defined(__AVX2__)
  return (U32s)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, U32s);
#endif
}
/// The upper 16 bits of each lane.
KF_INLINE U16s upper_words(U32s v) {
#if defined(__AVX512F__)
  using Words = std::uint16_t __attribute__((vector_size(64)));
  constexpr Words odd = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  return (U16s)lower_half((F64s)_mm512_maskz_permutexvar_epi16(0xffff, (__m512i)odd, (__m512i)v));
#elif defined(__AVX2__)
  const __m256i words = _mm256_srli_epi32((__m256i)v, 16);
  return (U16s)_mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(words, words), 0x08));
#else
  return __builtin_convertvector(v >> 16, U16s);
#endif
}

KF_INLINE F32s float_of_bfloat(U16s h) { return (F32s)(lanes_of_words(h) << 16); }

/// Round to nearest even; NaN stays NaN.
KF_INLINE U16s bfloat_of_float(F32s f) {
  const U32s bits = (U32s)f;
  const U32s rounded = bits + 0x7fffu + (bits >> 16 & 1u), nan = bits | 0x400000u;
  return upper_words(f != f ? nan : rounded);
}

// ---- element types: how a dtype lies in memory, and the vector it is computed in ------------------------------

struct Float32 {
  using Raw = F32s;
  using Compute = float;
  static KF_INLINE F32s widen(F32s v) { return v; }
  static KF_INLINE F32s narrow(F32s v) { return v; }
};
struct Float64 {
  using Raw = F64s;
  using Compute = double;
  static KF_INLINE F64s widen(F64s v) { return v; }
  static KF_INLINE F64s narrow(F64s v) { return v; }
};
struct Float16 {
  using Raw = U16s;
  using Compute = float;
  static KF_INLINE F32s widen(U16s v) { return float_of_half(v); }
  static KF_INLINE U16s narrow(F32s v) { return half_of_float(v); }
};
struct BFloat16 {
  using Raw = U16s;
  using Compute = float;
  static KF_INLINE F32s widen(U16s v) { return float_of_bfloat(v); }
  static KF_INLINE U16s narrow(F32s v) { return bfloat_of_float(v); }
};
struct Int32 {
  using Raw = I32s;
  using Compute = std::int32_t;
  static KF_INLINE I32s widen(I32s v) { return v; }
  static KF_INLINE I32s narrow(I32s v) { return v; }
};
struct Int64 {
  using Raw = I64s;
  using Compute = std::int64_t;
  static KF_INLINE I64s widen(I64s v) { return v; }
  static KF_INLINE I64s narrow(I64s v) { return v; }
};
// g++ 12 takes conversions between 4-byte lanes and bytes apart, lane by lane.
KF_INLINE I32s lanes_of_bytes(U8s v) {
#if defined(__AVX512F__)
  return (I32s)_mm512_maskz_cvtepu8_epi32(0xffff, (__m128i)v);
#elif defined(__AVX2__)
  return (I32s)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)v));
#else
  return __builtin_convertvector(v, I32s);
#endif
}
KF_INLINE U8s bytes_of_lanes(I32s v) {
#if defined(__AVX512F__)
  return (U8s)_mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)v);
#elif defined(__AVX2__)
  const __m256i lowest = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));
  const __m128i lower = _mm256_castsi256_si128(lowest), upper = _mm256_extracti128_si256(lowest, 1);
  return (U8s)_mm_cvtsi128_si64(_mm_unpacklo_epi32(lower, upper));
#elif defined(__SSE2__)
  const __m128i words = _mm_packs_epi32((__m128i)(v & 0xff), __m128i{});
  return (U8s)_mm_cvtsi128_si32(_mm_packus_epi16(words, words));
#else
  return __builtin_convertvector(v, U8s);
#endif
}

/// 0 or 1; in memory, any byte that is not 0 is true.
struct Bool {
  using Raw = U8s;
  using Compute = std::uint8_t;
  static KF_INLINE I32s widen(U8s v) { return lanes_of_bytes(v < 1 ? v : U8s{} + 1); }
  static KF_INLINE U8s narrow(I32s v) { return bytes_of_lanes(v); }
};

template <class E>
using ValueOf = typename VectorOf<typename E::Compute, kVectorBytes>::Type;
template <class E>
constexpr int kItem = static_cast<int>(sizeof(typename E::Raw{}[0]));  ///< bytes of an element in memory
template <class E>
constexpr int kLanes = static_cast<int>(sizeof(typename E::Raw)) / kItem<E>;

}  // namespace
}  // namespace KF_ISA
}  // namespace kfusion::cpu
