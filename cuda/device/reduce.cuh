// Sums and moments of a row, from lanes to a warp to all warps of a team (of one block or of a cluster).
// No atomics: every sum has one fixed tree, so results are the same from run to run.
#pragma once
#include "device/prelude.cuh"

namespace kfusion::device {

/// Mean and M2 = sum of (v - mean)^2 of some elements. How many they are follows from who holds them.
template <class C>
struct Moments {
  C mean, m2;
};

/// The sum over each group of `lanes` (a power of two up to 32) neighbouring lanes, the same bits in all of them.
/// All 32 lanes must call it.
template <class C>
KF_DEVICE C group_sum(C v, int lanes = 32) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

/// Moments of all the parts of a row, by the multi-way form of Chan's formula (two sums, one exchange):
///   mean = sum(n_i mean_i) / N,   M2 = sum(M2_i + n_i (mean_i - mean)^2)
/// T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
/// `count(i)` is n_i. Called by whole warps; every lane of every warp gets the same bits.
template <class C, class Count>
KF_DEVICE Moments<C> combine(const Moments<C>* parts, int size, C n, Count count) {
  const int lane = threadIdx.x % 32;
  C sum = 0, m2 = 0;
  for (int i = lane; i < size; i += 32) sum += count(i) * parts[i].mean;
  const C mean = group_sum(sum) / n;
  for (int i = lane; i < size; i += 32) {
    const C d = parts[i].mean - mean;
    m2 += parts[i].m2 + count(i) * d * d;  // in this order: of no columns it is 0 however large d is
  }
  return {mean, group_sum(m2)};
}

/// The moments of chunks that pass one after the other through the registers of a group of lanes. `within` is this
/// lane's own share of the squares, so that only means are exchanged per chunk; `between` is the group's.
template <class C>
struct RunningMoments {
  C n = 0, mean = 0, within = 0, between = 0;

  /// `chunk.m2`: this lane's share.
  KF_DEVICE void merge(C chunk_n, const Moments<C>& chunk) {
    if (chunk_n == 0) return;
    if (n == 0) {
      mean = chunk.mean;
    } else {
      const C d = chunk.mean - mean, share = chunk_n / (n + chunk_n);
      between += d * d * (n * share);
      mean += d * share;
    }
    within += chunk.m2;
    n += chunk_n;
  }
};

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

}  // namespace kfusion::device
