// Sums from lanes to a warp, and exchanges between all warps of a team (of one block or of a cluster).
// No atomics: every sum has one fixed tree, so results are the same from run to run.
#pragma once
#include "device/prelude.cuh"

namespace kfusion::device {

/// Exchanges between the warps of a team. Each warp writes its part into every block of the team, a barrier
/// follows, and then each warp reads all parts: no second barrier, since exchanges alternate between two boxes.
class Exchange {
 public:
  /// `memory`: two boxes of `box_bytes` in shared memory, each with room for a value of every warp of the team.
  KF_DEVICE Exchange(char* memory, int box_bytes) : memory_(memory), box_bytes_(box_bytes) {
    if (block_count() > 1)
      cluster_arrive();  // completed at the first share(): a block must run before it is written to
  }

  /// The parts of all warps of the team, in warp order.
  template <class V>
  KF_DEVICE const V* share(const V& own, int warp) {
    V* parts = reinterpret_cast<V*>(memory_ + (rounds_ % 2) * box_bytes_);
    const u32 lane = threadIdx.x % 32, blocks = block_count();
    if (blocks == 1) {
      if (lane == 0) parts[warp] = own;
      __syncthreads();
    } else {
      if (rounds_ == 0) cluster_wait();
      if (lane < blocks) store_to_block(parts + warp, own, lane);
      cluster_arrive();
      cluster_wait();
    }
    ++rounds_;
    return parts;
  }

  KF_DEVICE void finish() {
    if (block_count() > 1 && rounds_ == 0) cluster_wait();
  }

 private:
  char* memory_;
  int box_bytes_;
  u32 rounds_ = 0;
};

/// The warps of a block that share a row: a barrier of their own.
struct TeamBarrier {
  int number, threads;
  KF_DEVICE void wait() const {
#ifdef __CUDA_ARCH__
    asm volatile("bar.sync %0, %1;" ::"r"(number + 1), "r"(threads) : "memory");
#else
    host::wait_for_team(static_cast<unsigned>(threads));
#endif
  }
};

/// Exchanges between the warps of one of a block's teams.
class TeamExchange {
 public:
  KF_DEVICE TeamExchange(char* memory, int box_bytes, TeamBarrier barrier)
      : memory_(memory), box_bytes_(box_bytes), barrier_(barrier) {}
  template <class V>
  KF_DEVICE const V* share(const V& own, int warp) {
    V* parts = reinterpret_cast<V*>(memory_ + rounds_ % 2 * box_bytes_);
    if (threadIdx.x % 32 == 0) parts[warp] = own;
    barrier_.wait();
    ++rounds_;
    return parts;
  }

 protected:
  u32 rounds_ = 0;

 private:
  char* memory_;
  int box_bytes_;
  TeamBarrier barrier_;
};

}  // namespace kfusion::device
