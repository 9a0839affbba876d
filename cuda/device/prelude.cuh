// What device code here needs of the language: integers, half types, prefetching, cluster primitives.
// It includes nothing, so that NVRTC compiles it as it is and no toolkit header's compile time is paid.
#pragma once

#define KF_DEVICE __device__ __forceinline__

namespace kfusion::device {

using i64 = long long;
using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;
using u8 = unsigned char;
using i32 = int;

/// Storage of the half types; arithmetic happens in float.
struct half_t {
  u16 bits;
};
struct bfloat16_t {
  u16 bits;
};
/// Storage of a bool: what is not 0 is true.
struct bool_t {
  u8 byte;
};

template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<half_t> {
  using type = float;
};
template <>
struct ComputeOf<bfloat16_t> {
  using type = float;
};
template <>
struct ComputeOf<bool_t> {
  using type = u8;
};
/// The type that values of T are computed in: float for half types, 0 or 1 in a byte for bools, else T.
template <class T>
using Compute = typename ComputeOf<T>::type;

template <bool kCondition, class Then, class Else>
struct Choose {
  using type = Then;
};
template <class Then, class Else>
struct Choose<false, Then, Else> {
  using type = Else;
};

template <class A, class B>
inline constexpr bool kIsSame = false;
template <class A>
inline constexpr bool kIsSame<A, A> = true;

/// 16 bytes, as one thread moves them at once.
struct alignas(16) Slot {
  u32 word[4];
};

template <class T>
KF_DEVICE T minimum(T a, T b) {
  return b < a ? b : a;
}
template <class T>
KF_DEVICE T maximum(T a, T b) {
  return a < b ? b : a;
}
/// a * b + c, rounded once.
KF_DEVICE float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KF_DEVICE double fused_multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }

// ---- half types <-> float -------------------------------------------------------------------------------------------

KF_DEVICE u32 bfloat16_bits(float x) {
  const u32 bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
}

/// Two elements from one word, the lower half first.
template <class T>
KF_DEVICE void unpack_pair(u32 word, float& lo, float& hi);
template <>
KF_DEVICE void unpack_pair<half_t>(u32 word, float& lo, float& hi) {
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h; }" : "=f"(lo), "=f"(hi) : "r"(word));
}
template <>
KF_DEVICE void unpack_pair<bfloat16_t>(u32 word, float& lo, float& hi) {
  lo = __uint_as_float(word << 16);
  hi = __uint_as_float(word & 0xffff0000u);
}

/// Rounds two values to nearest even into one word.
template <class T>
KF_DEVICE u32 pack_pair(float lo, float hi);
template <>
KF_DEVICE u32 pack_pair<half_t>(float lo, float hi) {
  u32 word;
  asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h}; }"
      : "=r"(word)
      : "f"(lo), "f"(hi));
  return word;
}
template <>
KF_DEVICE u32 pack_pair<bfloat16_t>(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(hi), "f"(lo));
  return word;
#else
  return bfloat16_bits(lo) | bfloat16_bits(hi) << 16;
#endif
}

/// The larger ones of two pairs, NaN where either is.
template <class T>
KF_DEVICE u32 larger_pair(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 800
  u32 word;
  if constexpr (kIsSame<T, half_t>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  }
  return word;
#else
  float a_lo, a_hi, b_lo, b_hi;
  unpack_pair<T>(a, a_lo, a_hi), unpack_pair<T>(b, b_lo, b_hi);
  return pack_pair<T>(a_lo >= b_lo || a_lo != a_lo ? a_lo : b_lo, a_hi >= b_hi || a_hi != a_hi ? a_hi : b_hi);
#endif
}

/// Starts bringing `bytes` (a multiple of 16) into L2. One thread asks for all of them.
KF_DEVICE void prefetch_to_l2([[maybe_unused]] const void* p, [[maybe_unused]] u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
#endif
}

/// Words of memory that other blocks read or write at the same time; whole, in no order with others.
KF_DEVICE u64 load_relaxed(const u64* p) {
#ifdef __CUDA_ARCH__
  u64 word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
  return word;
#else
  return *p;
#endif
}
KF_DEVICE void store_relaxed(u64* p, u64 word) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(word) : "memory");
#else
  *p = word;
#endif
}

// ---- kernels of a stream, one after the other (compute capability 9) ------------------------------------------------

/// Waits, in a kernel whose launch may start early (codegen::Launch), until those before it have ended and all sees
/// what they wrote.
KF_DEVICE void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The next kernel, if its launch may start early, takes multiprocessors as blocks of this one leave them. Until all
/// blocks of this one have started it does not.
KF_DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// ---- clusters of blocks (one block where the architecture has none) -------------------------------------------------

#if __CUDA_ARCH__ >= 900
#define KF_SPECIAL_REGISTER(function, name, otherwise) \
  KF_DEVICE u32 function() {                           \
    u32 value;                                         \
    asm("mov.u32 %0, %" name ";" : "=r"(value));       \
    return value;                                      \
  }
#else
#define KF_SPECIAL_REGISTER(function, name, otherwise) \
  KF_DEVICE u32 function() { return otherwise; }
#endif
KF_SPECIAL_REGISTER(cluster_index, "%clusterid.x", blockIdx.x)
KF_SPECIAL_REGISTER(cluster_count, "%nclusterid.x", gridDim.x)
KF_SPECIAL_REGISTER(block_rank, "%cluster_ctarank", 0)
KF_SPECIAL_REGISTER(block_count, "%cluster_nctarank", 1)
#undef KF_SPECIAL_REGISTER

KF_DEVICE void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
KF_DEVICE void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// Writes `value` to the place of `p` (shared memory of this block) in block `rank` of the cluster.
template <class V>
KF_DEVICE void store_to_block([[maybe_unused]] V* p, [[maybe_unused]] const V& value, [[maybe_unused]] u32 rank) {
#if __CUDA_ARCH__ >= 900
  constexpr int kWords = sizeof(V) / 4;
  static_assert(sizeof(V) % 4 == 0);
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<u32>(__cvta_generic_to_shared(p))), "r"(rank));
  u32 word[kWords];
  memcpy(word, &value, sizeof(V));
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address + 4 * i), "r"(word[i]) : "memory");
  }
#endif
}

}  // namespace kfusion::device
