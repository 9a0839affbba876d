// Copies from global to shared memory that a barrier in shared memory counts, and messages between the blocks of a
// cluster that such a barrier counts (compute capability 9). Elsewhere copies are done at once, by who starts them.
#pragma once
#include "device/prelude.cuh"

namespace kfusion::device {

/// A barrier in shared memory, which counts the bytes of copies and messages that end, phase after phase.
struct alignas(8) Barrier {
  u64 state;
};

KF_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

#if __CUDA_ARCH__ >= 800
/// Copies 4, 8 or 16 bytes, for the thread that starts it; zeros where not `valid`.
template <int kBytes>
KF_DEVICE void start_own_copy(void* to, const void* from, bool valid) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(kBytes),
                 "r"(valid ? kBytes : 0)
                 : "memory");
  }
}
/// Those that were started since the last call are a group; all groups but the last kGroups have ended after waiting.
KF_DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
KF_DEVICE void wait_for_own_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
#else
template <int kBytes>
KF_DEVICE void start_own_copy(void* to, const void* from, bool valid) {
  if (valid) memcpy(to, from, kBytes);
}
KF_DEVICE void end_copies() {}
template <int kGroups>
KF_DEVICE void wait_for_own_copies() {}
#endif

#if __CUDA_ARCH__ >= 900
/// One arrival a phase. One thread does this; other threads see it after fence_barriers() and a barrier.
KF_DEVICE void make_barrier(Barrier* b) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(b)) : "memory");
}
/// Makes a barrier whose phases have so many arrivals of threads.
KF_DEVICE void make_meeting(Barrier* b, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
KF_DEVICE void arrive(Barrier* b) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
KF_DEVICE void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// The phase that runs ends when `bytes` bytes have come. One thread, once a phase.
KF_DEVICE void expect(Barrier* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
#define KF_WAIT(scope)                                \
  asm volatile(                                       \
      "{ .reg .pred done;\n"                          \
      "again: mbarrier.try_wait.parity" scope         \
      ".b64 done, [%0], %1;\n"                        \
      "@!done bra again; }" ::"r"(shared_address(b)), \
      "r"(parity)                                     \
      : "memory")
/// Waits until the phase of this parity (0, 1, 0, ...) has ended: of copies, of arrivals, or of messages from other
/// blocks.
KF_DEVICE void wait_for_copies(Barrier* b, u32 parity) { KF_WAIT(".shared::cta"); }
KF_DEVICE void wait_for_all(Barrier* b, u32 parity) { KF_WAIT(".shared::cta"); }
KF_DEVICE void wait_for_messages(Barrier* b, u32 parity) { KF_WAIT(".acquire.cluster.shared::cta"); }
#undef KF_WAIT
/// Copies a multiple of 16 bytes, both ends so aligned.
KF_DEVICE void start_copy(void* to, const void* from, u32 bytes, Barrier* counts) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(counts))
               : "memory");
}
/// What the thread read and wrote in shared memory comes before copies, which pass what is under way by another path:
/// those that it starts then, and after a barrier those of others.
KF_DEVICE void fence_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The address of this place of shared memory in block `rank` of the cluster.
KF_DEVICE u32 address_in_block(const void* p, u32 rank) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}
/// Writes `message` to the same place in block `rank` of the cluster, where the same barrier counts its 16 bytes.
KF_DEVICE void send(Slot* to, const Slot& message, Barrier* counts, u32 rank) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   address_in_block(to, rank)),
               "r"(message.word[0]), "r"(message.word[1]), "r"(message.word[2]), "r"(message.word[3]),
               "r"(address_in_block(counts, rank))
               : "memory");
}
#else
KF_DEVICE void make_barrier(Barrier*) {}
KF_DEVICE void make_meeting(Barrier*, u32) {}
KF_DEVICE void arrive(Barrier*) {}
KF_DEVICE void fence_barriers() {}
KF_DEVICE void expect(Barrier*, u32) {}
KF_DEVICE void wait_for_copies(Barrier*, u32) {}
KF_DEVICE void wait_for_all(Barrier*, u32) {}
KF_DEVICE void wait_for_messages(Barrier*, u32) {}
KF_DEVICE void start_copy(void* to, const void* from, u32 bytes, Barrier*) { memcpy(to, from, bytes); }
KF_DEVICE void fence_before_copies() {}
KF_DEVICE void send(Slot* to, const Slot& message, Barrier*, u32) { *to = message; }
#endif

}  // namespace kfusion::device
