// What device code here needs of the language: integers, half types, 16-byte slots, global memory, cluster primitives.
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

/// 16 bytes of packed elements: the unit that a thread loads, holds and stores.
struct alignas(16) Slot {
  u32 word[4];
};
/// Elements in a slot.
template <class T>
inline constexpr int kLanes = static_cast<int>(16 / sizeof(T));

template <class T>
KF_DEVICE T minimum(T a, T b) {
  return b < a ? b : a;
}
template <class T>
KF_DEVICE T maximum(T a, T b) {
  return a < b ? b : a;
}
/// max(x, 0); NaN stays NaN.
KF_DEVICE float relu(float x) {
#if __CUDA_ARCH__ >= 800
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < 0.0f ? 0.0f : x;
#endif
}
KF_DEVICE double relu(double x) { return x < 0.0 ? 0.0 : x; }
/// a * b + c, rounded once.
KF_DEVICE float fused_multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KF_DEVICE double fused_multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }
KF_DEVICE float square_root(float x) {
  float y;
  asm("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
KF_DEVICE double square_root(double x) {
  double y;
  asm("sqrt.rn.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

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

/// All elements of a slot, in the compute type.
template <class T>
KF_DEVICE void unpack(const Slot& slot, Compute<T> (&v)[kLanes<T>]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) unpack_pair<T>(slot.word[i], v[2 * i], v[2 * i + 1]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __uint_as_float(slot.word[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      v[i] = __hiloint2double(static_cast<int>(slot.word[2 * i + 1]), static_cast<int>(slot.word[2 * i]));
    }
  }
}
template <class T>
KF_DEVICE Slot pack(const Compute<T> (&v)[kLanes<T>]) {
  Slot slot;
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) slot.word[i] = pack_pair<T>(v[2 * i], v[2 * i + 1]);
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) slot.word[i] = __float_as_uint(v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      slot.word[2 * i] = static_cast<u32>(__double2loint(v[i]));
      slot.word[2 * i + 1] = static_cast<u32>(__double2hiint(v[i]));
    }
  }
  return slot;
}

/// Makes the compiler forget what it derived from `slot`, so that a later pass unpacks it again instead of keeping
/// the unpacked values (twice the registers for half types) alive.
KF_DEVICE void forget(Slot& slot) {
  asm volatile("" : "+r"(slot.word[0]), "+r"(slot.word[1]), "+r"(slot.word[2]), "+r"(slot.word[3]));
}

/// The same for what depends on no row, so that all that is derived from it is not kept through the loop over rows.
KF_DEVICE void forget(i64& n) { asm volatile("" : "+l"(n)); }
KF_DEVICE void forget(int& n) { asm volatile("" : "+r"(n)); }

// ---- global memory --------------------------------------------------------------------------------------------------
// Matrix loads are volatile and not `.nc`: in place, the same kernel writes what it has read. They are predicated
// inside the asm, so that the loads of a thread follow each other without branches.

/// 16 bytes of a matrix, which L1 does not keep, or zeros where not `valid`.
KF_DEVICE Slot load_slot(const void* p, bool valid) {
  Slot s{{0, 0, 0, 0}};
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(s.word[0]), "+r"(s.word[1]), "+r"(s.word[2]), "+r"(s.word[3])
               : "l"(p), "r"(static_cast<int>(valid)));
  return s;
}

enum class Store { kKeep, kStream };  ///< kStream: nothing on the device reads it soon

template <Store kHow>
KF_DEVICE void store_slot(void* p, const Slot& s, bool valid) {
  if constexpr (kHow == Store::kStream) {
    asm volatile(
        "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.cs.v4.u32 [%4], {%0, %1, %2, %3}; }" ::"r"(s.word[0]),
        "r"(s.word[1]), "r"(s.word[2]), "r"(s.word[3]), "l"(p), "r"(static_cast<int>(valid))
        : "memory");
  } else {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.v4.u32 [%4], {%0, %1, %2, %3}; }" ::"r"(s.word[0]),
                 "r"(s.word[1]), "r"(s.word[2]), "r"(s.word[3]), "l"(p), "r"(static_cast<int>(valid))
                 : "memory");
  }
}

/// Element j of a slot from or to memory; j must be a constant after unrolling.
template <class T>
KF_DEVICE void load_element(Slot& s, int j, const void* p, bool valid) {
  if constexpr (sizeof(T) == 2) {
    u16 bits = 0;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.u16 %0, [%1]; }"
                 : "+h"(bits)
                 : "l"(p), "r"(static_cast<int>(valid)));
    s.word[j / 2] = j % 2 ? s.word[j / 2] | static_cast<u32>(bits) << 16 : bits;
  } else if constexpr (sizeof(T) == 4) {
    s.word[j] = 0;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.u32 %0, [%1]; }"
                 : "+r"(s.word[j])
                 : "l"(p), "r"(static_cast<int>(valid)));
  } else {
    u64 bits = 0;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.u64 %0, [%1]; }"
                 : "+l"(bits)
                 : "l"(p), "r"(static_cast<int>(valid)));
    s.word[2 * j] = static_cast<u32>(bits);
    s.word[2 * j + 1] = static_cast<u32>(bits >> 32);
  }
}
template <class T>
KF_DEVICE void store_element(const Slot& s, int j, void* p) {
  if constexpr (sizeof(T) == 2) {
    *static_cast<u16*>(p) = static_cast<u16>(s.word[j / 2] >> (16 * (j % 2)));
  } else if constexpr (sizeof(T) == 4) {
    *static_cast<u32*>(p) = s.word[j];
  } else {
    *static_cast<u64*>(p) = static_cast<u64>(s.word[2 * j + 1]) << 32 | s.word[2 * j];
  }
}

/// 16 bytes that other rows read too (from L1 or shared memory), or zeros where not `valid`.
KF_DEVICE Slot load_parameter_slot(const void* p, bool valid) {
  Slot s{{0, 0, 0, 0}};
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.v4.u32 {%0, %1, %2, %3}, [%4]; }"
               : "+r"(s.word[0]), "+r"(s.word[1]), "+r"(s.word[2]), "+r"(s.word[3])
               : "l"(p), "r"(static_cast<int>(valid)));
  return s;
}
template <class T>
KF_DEVICE Compute<T> load_value(const void* p) {
  if constexpr (sizeof(T) == 2) {
    float lo, hi;
    unpack_pair<T>(*static_cast<const u16*>(p), lo, hi);
    return lo;
  } else {
    return *static_cast<const T*>(p);
  }
}

/// Starts copying 16 bytes from global to shared memory; there for this thread after wait_for_copies().
KF_DEVICE void copy_to_shared(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(static_cast<u32>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  *static_cast<Slot*>(to) = *static_cast<const Slot*>(from);
#endif
}
KF_DEVICE void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/// Starts bringing `bytes` (a multiple of 16) into L2. One thread asks for all of them.
KF_DEVICE void prefetch_to_l2([[maybe_unused]] const void* p, [[maybe_unused]] u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes));
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
