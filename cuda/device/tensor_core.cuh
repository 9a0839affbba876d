// The instructions of a product on Hopper (sm_90a), one function each: barriers in shared memory, boxes of matrices
// that the copy engine moves, and products of warpgroups. Source of their meaning: NVIDIA, PTX ISA, "mbarrier",
// "cp.async.bulk.tensor", "wgmma".
#pragma once
#include "device/prelude.cuh"

namespace kfusion::device {

/// A CUtensorMap as the driver encodes it on the host; opaque here, so that no driver header is needed.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

KF_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// ---- barriers -------------------------------------------------------------------------------------------------------

KF_DEVICE void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// Arrives, and says how many bytes copies will bring.
KF_DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
KF_DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives on the barrier at the same place of block `rank` of the cluster. Relaxed: only products read the slice, and
/// they have been waited for. A release at cluster scope would put a fence over all the thread's loads and stores into
/// every slice.
KF_DEVICE void barrier_arrive(u32 barrier, u32 rank) {
  asm volatile(
      "{ .reg .b32 far; mapa.shared::cluster.u32 far, %0, %1; "
      "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [far]; }" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
KF_DEVICE void barrier_wait(u32 barrier, u32 parity) {
  u32 done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
}
/// Meets the cluster without an order of memory: shared memory of a block is there before, or not used after.
KF_DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// A barrier of the first `kThreads` threads of a block that come by.
template <int kBarrier, int kThreads>
KF_DEVICE void threads_meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// ---- boxes ----------------------------------------------------------------------------------------------------------

KF_DEVICE void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
KF_DEVICE void load_box(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// Loads a box of a matrix with three axes of batches.
KF_DEVICE void load_box(u32 to, const TensorMap* map, u32 barrier, int x, int y, const int (&batch)[3]) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(batch[2]), "r"(batch[1]), "r"(batch[0])
      : "memory");
}
/// The box lands at the same place in every block of `mask`, and completes on that block's own barrier.
KF_DEVICE void load_box(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u16 mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, "
      "{%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(mask)
      : "memory");
}
KF_DEVICE void store_box(const TensorMap* map, u32 from, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(from), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// Waits until none of the thread's stores reads shared memory any more.
KF_DEVICE void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
KF_DEVICE void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
/// What the thread wrote to shared memory is there for the copy engine, and what it read may be written over.
KF_DEVICE void release_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

KF_DEVICE u32 load_shared(u32 from) {
  u32 v;
  asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
  return v;
}
/// Four 8 x 8 matrices of half types, as a warp holds accumulators.
KF_DEVICE void load_matrices(u32 (&r)[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(from)
               : "memory");
}
KF_DEVICE void store_matrices(u32 to, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

// ---- products -------------------------------------------------------------------------------------------------------

KF_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KF_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until no more than `kPending` groups of the latest products are in flight.
template <int kPending = 0>
KF_DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving reads of the accumulators above the wait.
template <int kCount>
KF_DEVICE void settle(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

/// Where a product finds a factor's slice: 8 rows of 128 bytes are an atom of 1024 bytes, whose 16-byte words are
/// permuted (128-byte swizzle). Where the factor's memory runs across the depth, an atom is 64 of these x 8 of depth.
template <bool kAcross>
KF_DEVICE u64 slice_at(u32 address) {
  return u64(address >> 4 & 0x3fff) | u64(kAcross ? 512 : 1) << 16 | u64(64) << 32 | u64(1) << 62;
}
/// What is added for 16 more of depth.
template <bool kAcross>
inline constexpr u64 kSixteenDeeper = kAcross ? 128 : 2;

/// c += A(64 x 16) B(kN x 16)^T; c starts from zero where keep is 0. Across: A's memory runs along its rows, B's along
/// its own.
template <class T, int kN, bool kAcrossA, bool kAcrossB>
struct Multiply;

// clang-format off
#define KF_R8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define KF_R16 KF_R8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define KF_R24 KF_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KF_R48 KF_R24 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define KF_R80 KF_R0 KF_R32 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define KF_R88 KF_R80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define KF_R0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define KF_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define KF_R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define KF_R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// clang-format on
#define KF_C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define KF_C16(i) KF_C4(i), KF_C4(i + 4), KF_C4(i + 8), KF_C4(i + 12)
#define KF_C32(i) KF_C16(i), KF_C16(i + 16)
#define KF_MULTIPLY(TYPE, NAME, N, REGISTERS, A, B, KEEP, ACROSS_A, ACROSS_B, ...)                                 \
  template <bool kAcrossA, bool kAcrossB>                                                                          \
  struct Multiply<TYPE, N, kAcrossA, kAcrossB> {                                                                   \
    static KF_DEVICE void issue(float (&c)[N / 2], u64 a, u64 b, int keep) {                                       \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N            \
                   "k16.f32." NAME "." NAME " {" REGISTERS "}, %" A ", %" B ", p, 1, 1, %" ACROSS_A ", %" ACROSS_B \
                   "; }"                                                                                           \
                   : __VA_ARGS__                                                                                   \
                   : "l"(a), "l"(b), "r"(keep), "n"(int(kAcrossA)), "n"(int(kAcrossB)));                           \
    }                                                                                                              \
  };
#define KF_MULTIPLY_ALL(TYPE, NAME)                                                                                   \
  KF_MULTIPLY(TYPE, NAME, 16, KF_R8, "8", "9", "10", "11", "12", KF_C4(0), KF_C4(4))                                  \
  KF_MULTIPLY(TYPE, NAME, 32, KF_R16, "16", "17", "18", "19", "20", KF_C16(0))                                        \
  KF_MULTIPLY(TYPE, NAME, 64, KF_R24, "32", "33", "34", "35", "36", KF_C32(0))                                        \
  KF_MULTIPLY(TYPE, NAME, 96, KF_R48, "48", "49", "50", "51", "52", KF_C32(0), KF_C16(32))                            \
  KF_MULTIPLY(TYPE, NAME, 128, KF_R0 KF_R32, "64", "65", "66", "67", "68", KF_C32(0), KF_C32(32))                     \
  KF_MULTIPLY(TYPE, NAME, 160, KF_R80, "80", "81", "82", "83", "84", KF_C32(0), KF_C32(32), KF_C16(64))               \
  KF_MULTIPLY(TYPE, NAME, 176, KF_R88, "88", "89", "90", "91", "92", KF_C32(0), KF_C32(32), KF_C16(64), KF_C4(80),    \
              KF_C4(84))                                                                                              \
  KF_MULTIPLY(TYPE, NAME, 192, KF_R0 KF_R32 KF_R64, "96", "97", "98", "99", "100", KF_C32(0), KF_C32(32), KF_C32(64)) \
  KF_MULTIPLY(TYPE, NAME, 256, KF_R0 KF_R32 KF_R64 KF_R96, "128", "129", "130", "131", "132", KF_C32(0), KF_C32(32),  \
              KF_C32(64), KF_C32(96))
KF_MULTIPLY_ALL(bfloat16_t, "bf16")
KF_MULTIPLY_ALL(half_t, "f16")
#undef KF_MULTIPLY_ALL
#undef KF_MULTIPLY

/// Multiplies an A in registers, as a warp holds accumulators, by a B whose memory runs across the depth.
template <class T, int kN>
struct MultiplyHeld;

#define KF_MULTIPLY_HELD(TYPE, NAME, N, REGISTERS, A0, A1, A2, A3, B, KEEP, ...)                          \
  template <>                                                                                             \
  struct MultiplyHeld<TYPE, N> {                                                                          \
    static KF_DEVICE void issue(float (&c)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int keep) {     \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" KEEP ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N   \
                   "k16.f32." NAME "." NAME " {" REGISTERS "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B \
                   ", p, 1, 1, 1; }"                                                                      \
                   : __VA_ARGS__                                                                          \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));                              \
    }                                                                                                     \
  };
#define KF_MULTIPLY_HELD_ALL(TYPE, NAME)                                                                              \
  KF_MULTIPLY_HELD(TYPE, NAME, 32, KF_R16, "16", "17", "18", "19", "20", "21", KF_C16(0))                             \
  KF_MULTIPLY_HELD(TYPE, NAME, 64, KF_R24, "32", "33", "34", "35", "36", "37", KF_C32(0))                             \
  KF_MULTIPLY_HELD(TYPE, NAME, 128, KF_R0 KF_R32, "64", "65", "66", "67", "68", "69", KF_C32(0), KF_C32(32))          \
  KF_MULTIPLY_HELD(TYPE, NAME, 192, KF_R0 KF_R32 KF_R64, "96", "97", "98", "99", "100", "101", KF_C32(0), KF_C32(32), \
                   KF_C32(64))                                                                                        \
  KF_MULTIPLY_HELD(TYPE, NAME, 256, KF_R0 KF_R32 KF_R64 KF_R96, "128", "129", "130", "131", "132", "133", KF_C32(0),  \
                   KF_C32(32), KF_C32(64), KF_C32(96))
KF_MULTIPLY_HELD_ALL(bfloat16_t, "bf16")
KF_MULTIPLY_HELD_ALL(half_t, "f16")
#undef KF_MULTIPLY_HELD_ALL
#undef KF_MULTIPLY_HELD

/// Position in a ring of `kStages` buffers, and the parity of the barriers there.
template <class T>
struct Ring {
  int stage = 0;
  u32 parity = 0;
  KF_DEVICE void advance() {
    if (++stage == T::kStages) stage = 0, parity ^= 1;
  }
};

}  // namespace kfusion::device
