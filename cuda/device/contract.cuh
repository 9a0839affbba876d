// Products of matrices on Hopper (sm_90a): D = epilogue(A B^T), A of rows x depth, B of columns x depth, either of them
// with its depth or across it in neighbouring memory, sums in float32.
//
// Persistent clusters of blocks. In a block, one thread loads slices of A and B into a ring in shared memory (blocks of
// a cluster share them), two warpgroups multiply, and two more threads move what the epilogue reads and stores. The
// epilogue is one of contract_stored.cuh or contract_reduced.cuh around a generated struct.
//
// Measured on an H200, in bfloat16: the loop runs at the arithmetic limit (65.3 to 65.6 thousand cycles of 65.5 for a
// depth of 4096). A multiprocessor takes in 58 to 64 bytes a cycle at most, multicast or not: tiles of 128 x 256 need
// 48, of 256 x 192 37, of 128 x 128 64. See results/kernels.md.
#pragma once
#include "device/tensor_core.cuh"

namespace kfusion::device {

enum Option : u32 {
  kAcrossA = 1,  ///< A's memory runs along its rows: a[depth, row]
  kAcrossB = 2,  ///< B's along its columns: b[depth, column]
  kLag = 4,     ///< the second warpgroup stays a slice behind the first: one's epilogue runs under the other's products
  kTurned = 8,  ///< the factors have changed places: products that lie beside one another do so along the rows
  kSums = 16,   ///< the warps that send results sum columns of these
  kApart = 32   ///< products beside one another have a left factor each, and any rows: their tiles follow one another
};

/// How a block works: M x N elements at a time, depth in slices of 64, Stages of them in flight, Down x Across blocks
/// of a cluster that share slices (of B down the rows, of A across the columns), and for each multiplying warpgroup
/// Slots boxes of 64 x 64 elements on their way to memory.
template <class Item, int M, int N, int Stages, int Down, int Across, int Slots, u32 Options = 0>
struct Tile {
  using T = Item;
  static constexpr int kM = M, kN = N, kK = 64, kStages = Stages, kDown = Down, kAcross = Across;
  static constexpr int kCluster = Down * Across, kSlots = Slots;
  static constexpr bool kAcrossA = Options & device::kAcrossA, kAcrossB = Options & device::kAcrossB;
  static constexpr bool kLag = Options & device::kLag, kTurned = Options & device::kTurned;
  static constexpr bool kApart = Options & device::kApart;
  static constexpr int kMma = M / 128;  ///< 64-row products of one of the two multiplying warpgroups
  static constexpr int kWarps = 8, kThreads = 32 * kWarps + 128;  ///< that multiply; and a warpgroup that moves data
  static constexpr int kFewRegisters = Options & kSums ? 40 : 24, kRegisters = 252 - kFewRegisters / 2;
  static_assert(2 * kRegisters + kFewRegisters == 3 * 168);  // what threads start with
  static constexpr int kReaders = Down + Across - 1;         ///< blocks whose copies a block's products read
  static constexpr u32 kABytes = M * 128, kBBytes = N * 128, kStageBytes = kABytes + kBBytes, kBoxBytes = 64 * 128;
  /// Buffers of a vector along the columns: before one is filled again, a slice after its last reading was given back.
  static constexpr int kVectors = Stages + 1;
  static constexpr u32 kVectorBytes = (N * 2 + 127) / 128 * 128;
  static_assert(M % 128 == 0 && M * N <= 256 * 192 && Across <= 2);
};

/// The kernel's one parameter. `kBeside` products of one factor may lie beside one another, along the columns (or the
/// rows, where the tile is turned), each with a factor, a result and an epilogue of its own. Those of one depth only
/// lie apart: `units_m` are all their tiles, and `units_n` is 1. Else there may be `kBoxes` results, and as many
/// matrices that the epilogue reads.
template <class Parameters, int kBeside = 1, int kBoxes = 1>
struct Contraction {
  TensorMap a[kBeside], b[kBeside > 1 ? kBeside : 2], result[kBeside * kBoxes], operands[kBoxes], vectors[kBeside][2];
  int rows, cols, depth;                               ///< of one batch
  int a_batched, b_batched, operands_batched[kBoxes];  ///< 1 where each batch has a matrix of its own
  int units_m, units_n, parts;  ///< work: cluster tiles along the rows, batches x parts of the columns
  int steps, group;             ///< cluster tiles along the columns in a part; along the rows that are walked together
  int first[kBeside], extent[kBeside];  ///< of those beside one another: the first tile, columns (or rows)
  int height[kBeside];                  ///< rows of those that lie apart
  Parameters epilogue;
};

struct Unit {
  int m, batch, part, steps;
  int which = 0;  ///< of the products beside one another: `m` and `part` are counted from its first tile
};
/// Neighbours in time share rows or columns, which so stay in L2.
template <class T, class E>
KF_DEVICE Unit unit_at(const typename E::Given& g, int t) {
  constexpr int kTall = T::kM * T::kDown, kWide = E::kOut * T::kAcross;
  int which = 0, units_m = g.units_m, units_n = g.units_n, parts = g.parts;
  if constexpr (T::kApart) {
#pragma unroll
    for (int i = 1; i < E::kBeside; ++i)
      if (t >= g.first[i]) which = i;
    t -= g.first[which];
    units_m = (g.height[which] + kTall - 1) / kTall, units_n = parts = (g.extent[which] + kWide - 1) / kWide;
  }
  const int span = g.group * units_n, first = t / span * g.group, size = min(units_m - first, g.group);
  const int rest = t % span, n = rest / size, part = n % parts;
  const int tiles = (g.cols + kWide - 1) / kWide;
  Unit u{first + rest % size, n / parts, part, min(g.steps, tiles - part * g.steps)};
  if constexpr (T::kApart) {
    u.which = which, u.steps = 1;
  } else if constexpr (E::kBeside > 1) {
    int& tile = T::kTurned ? u.m : u.part;
#pragma unroll
    for (int i = 1; i < E::kBeside; ++i)
      if (tile >= g.first[i]) u.which = i;
    tile -= g.first[u.which];
    u.steps = 1;
  }
  return u;
}
/// Rows of the product that a unit belongs to.
template <class T, class E>
KF_DEVICE int rows_of(const typename E::Given& g, const Unit& u) {
  if constexpr (T::kApart) return g.height[u.which];
  return E::kBeside > 1 && T::kTurned ? g.extent[u.which] : g.rows;
}
template <class T, class E>
KF_DEVICE int cols_of(const typename E::Given& g, const Unit& u) {
  return E::kBeside > 1 && !T::kTurned ? g.extent[u.which] : g.cols;
}

/// Where things lie in shared memory. `kColumnBytes`: of what a warpgroup computes of columns.
template <class T, int kColumns, u32 kColumnBytes = 0>
struct Shared {
  u32 slices, boxes, vectors, columns, full, empty, ready, filled, flag;  // full to filled: of slices and boxes

  static constexpr u32 kBytes = T::kStages * (T::kStageBytes + 16) + 2 * T::kSlots * (T::kBoxBytes + 16) +
                                kColumns * T::kVectors * T::kVectorBytes + 2 * kColumnBytes + 16;
  KF_DEVICE explicit Shared(unsigned char* raw) {
    slices = shared_address(raw);
    if (slices & 1023) __trap();  // the swizzle is a function of the address
    boxes = slices + T::kStages * T::kStageBytes;
    vectors = boxes + 2 * T::kSlots * T::kBoxBytes;
    columns = vectors + kColumns * T::kVectors * T::kVectorBytes;
    full = columns + 2 * kColumnBytes;
    empty = full + 8 * T::kStages;
    ready = empty + 8 * T::kStages;
    filled = ready + 8 * 2 * T::kSlots;
    flag = filled + 8 * 2 * T::kSlots;
  }
  KF_DEVICE u32 a(int stage) const { return slices + stage * T::kStageBytes; }
  KF_DEVICE u32 b(int stage) const { return a(stage) + T::kABytes; }
};

/// The first column of a block's tile.
template <class T, class E>
KF_DEVICE int column_at(const typename E::Given& g, const Unit& u, int step, int rank) {
  return ((u.part * g.steps + step) * T::kAcross + rank / T::kDown) * E::kOut;
}

template <bool kShared>
KF_DEVICE void load(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z, u16 mask) {
  if constexpr (kShared)
    load_box(to, map, barrier, x, y, z, mask);
  else
    load_box(to, map, barrier, x, y, z);
}
/// `kRows` of 64 of depth at (outer, depth).
template <int kRows, bool kAcross, bool kShared>
KF_DEVICE void load_slice(u32 to, const TensorMap* map, u32 barrier, int outer, int depth, int batch, u16 mask) {
  if constexpr (kAcross) {
    static_assert(kRows % 64 == 0);
#pragma unroll
    for (int c = 0; c < kRows / 64; ++c) load<kShared>(to + c * 8192, map, barrier, outer + c * 64, depth, batch, mask);
  } else {
    load<kShared>(to, map, barrier, depth, outer, batch, mask);
  }
}

/// One thread keeps the ring full. Every block loads its share of A's slice for its row of the cluster and its share of
/// B's for its column.
template <class T, class E>
KF_DEVICE void produce(const typename E::Given& g, const typename E::SharedMemory& s, int rank, int cluster,
                       int clusters) {
  constexpr int kParts = E::kProducts > T::kDown ? E::kProducts : T::kDown, kPart = T::kN / kParts;
  constexpr int kRows = T::kM / T::kAcross;
  const int down = rank % T::kDown, across = rank / T::kDown;
  const u16 column = ((1 << T::kDown) - 1) << across * T::kDown;
  const u16 row_mask = (T::kAcross > 1 ? 1 | 1 << T::kDown : 1) << down;
  Ring<T> ring;
  int vector = 0;
  const int blocks = (g.depth + T::kK - 1) / T::kK;
  for (int t = cluster; t < g.units_m * g.units_n; t += clusters) {
    const Unit u = unit_at<T, E>(g, t);
    const int row = (u.m * T::kDown + down) * T::kM, a_batch = u.batch * g.a_batched, b_batch = u.batch * g.b_batched;
    for (int step = 0; step < u.steps; ++step) {
      const int col = column_at<T, E>(g, u, step, rank);
      for (int k = 0; k < blocks; ++k, ring.advance()) {
        const u32 barrier = s.full + 8 * ring.stage;
        barrier_wait(s.empty + 8 * ring.stage, ring.parity ^ 1);
        const int columns = E::columns(u.which);
        barrier_expect(barrier, T::kStageBytes + (k == 0 ? columns * E::kOut * 2 : 0));
        if (E::kColumns > 0 && k == 0) {
#pragma unroll
          for (int i = 0; i < E::kColumns; ++i)
            if (i < columns)
              load_box(s.vectors + (i * T::kVectors + vector) * T::kVectorBytes, &g.vectors[u.which][i], barrier, col,
                       0, 0);
          vector = vector + 1 == T::kVectors ? 0 : vector + 1;
        }
        load_slice<kRows, T::kAcrossA, (T::kAcross > 1)>(s.a(ring.stage) + across * kRows * 128,
                                                         &g.a[T::kTurned || T::kApart ? u.which : 0], barrier,
                                                         row + across * kRows, k * T::kK, a_batch, row_mask);
#pragma unroll
        for (int i = 0; i < kParts / T::kDown; ++i) {
          const int part = i * T::kDown + down;
          const int which = E::kBeside == 1 ? part * E::kProducts / kParts : T::kTurned ? 0 : u.which;
          const int from = col + part % (kParts / E::kProducts) * kPart;
          load_slice<kPart, T::kAcrossB, (T::kDown > 1)>(s.b(ring.stage) + part * kPart * 128, &g.b[which], barrier,
                                                         from, k * T::kK, b_batch, column);
        }
      }
    }
  }
}

/// acc = A B^T over the whole depth.
template <class T, class S>
KF_DEVICE void accumulate(float (&acc)[T::kMma][T::kN / 2], Ring<T>& ring, const S& s, int blocks, int group,
                          int rank) {
  const bool lag = T::kLag && blocks >= T::kStages;  // with fewer slices the first could arrive twice
  const int lane = threadIdx.x & 31;
  const int writer = lane < T::kDown ? rank / T::kDown * T::kDown + lane  // whose copies fill this block's slices
                                     : (rank + T::kDown) % T::kCluster;
  const auto give_back = [&](int stage) {
    if (lane < T::kReaders) barrier_arrive(s.empty + 8 * stage, writer);
  };
  const auto issue = [&](int k) {
    barrier_wait(s.full + 8 * ring.stage, ring.parity);
    products_begin();
    const u64 a = slice_at<T::kAcrossA>(s.a(ring.stage) + group * T::kMma * 8192);
    const u64 b = slice_at<T::kAcrossB>(s.b(ring.stage));
#pragma unroll
    for (int i = 0; i < T::kMma; ++i)
#pragma unroll
      for (int q = 0; q < 4; ++q)
        Multiply<typename T::T, T::kN, T::kAcrossA, T::kAcrossB>::issue(
            acc[i], a + i * 512 + q * kSixteenDeeper<T::kAcrossA>, b + q * kSixteenDeeper<T::kAcrossB>, k | q);
    products_commit();
    if (lag && group == 0 && k == 1) asm volatile("bar.arrive 1, 256;" ::: "memory");
  };
  if (lag && group == 1) threads_meet<1, 256>();
  for (int k = 0; k < blocks - 1; ++k, ring.advance())
    issue(k), products_wait(), give_back(ring.stage);  // the other warpgroup's products fill the gap
  issue(blocks - 1);
  products_wait();
  give_back(ring.stage);
  ring.advance();
#pragma unroll
  for (int i = 0; i < T::kMma; ++i) settle(acc[i]);
}

/// Where a lane's elements lie: acc[i][4 * j + 2 * h] and the next are of row `row + 64 * i + 8 * h`, columns
/// `col + 8 * j` and the next.
struct Lane {
  int row, col, warp, lane;
};

/// Two neighbouring columns of one row; beyond the end they are not stored, and nothing is read for them.
struct Point {
  int batch, row, col, rows, cols;
  KF_DEVICE bool first() const { return row < rows && col < cols; }
  KF_DEVICE bool second() const { return row < rows && col + 1 < cols; }
};

/// The kernel's body. E: the epilogue; its Params are the generated ones.
template <class T, class E>
KF_DEVICE void contract(const typename E::Given& g) {
  extern __shared__ __align__(1024) unsigned char raw[];
  const typename E::SharedMemory s(raw);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x & 31;
  const int rank = T::kCluster > 1 ? blockIdx.x % T::kCluster : 0, cluster = blockIdx.x / T::kCluster;
  const int clusters = gridDim.x / T::kCluster;
  if (warp == T::kWarps && lane == 0) prefetch_map(&g.a[0]), prefetch_map(&g.b[0]);
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      barrier_init(s.full + 8 * i, 1);
      barrier_init(s.empty + 8 * i, T::kWarps * T::kReaders);
    }
    for (int i = 0; i < 2 * T::kSlots; ++i) {
      barrier_init(s.ready + 8 * i, 1);
      barrier_init(s.filled + 8 * i, 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if constexpr (T::kCluster > 1)
    cluster_meet();
  else
    __syncthreads();
  if (warp >= T::kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::kFewRegisters));
    const int helper = warp - T::kWarps;
    if (lane == 0 && helper == 0) produce<T, E>(g, s, rank, cluster, clusters);
    if (helper == 1 || helper == 2) E::deliver(g, s, helper - 1, rank, cluster, clusters, lane);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::kRegisters));
    const int group = warp / 4, blocks = (g.depth + T::kK - 1) / T::kK;
    Ring<T> ring;
    E epilogue;
    for (int t = cluster; t < g.units_m * g.units_n; t += clusters) {
      const Unit u = unit_at<T, E>(g, t);
      Lane at{(u.m * T::kDown + rank % T::kDown) * T::kM + group * 64 * T::kMma + warp % 4 * 16 + lane / 4, 0, warp,
              lane};
      epilogue.begin();
      for (int step = 0; step < u.steps; ++step) {
        const int col = column_at<T, E>(g, u, step, rank);
        at.col = col + lane % 4 * 2;
        epilogue.prepare(g, s, u, col);
        float acc[T::kMma][T::kN / 2];
        accumulate<T>(acc, ring, s, blocks, group, rank);
        epilogue.step(g, s, u, at, acc);
      }
      epilogue.end(g, s, u, at);
    }
  }
  if constexpr (T::kCluster > 1) cluster_meet();  // a block's shared memory outlives what its peers send to it
}

}  // namespace kfusion::device
