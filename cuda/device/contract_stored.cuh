// Products whose elements are stored, each after a generated function of it (contract.cuh).
//
// Elements leave as boxes of 64 rows through shared memory while the next products run. A vector along the columns
// arrives with a tile's first slice. A matrix that is read comes into the boxes while the products run, and the results
// replace it there. One thread for each multiplying warpgroup sends boxes and fetches matrices: a warp that did it
// itself would wait for the copy engine's queue, which the next tile's slices fill at this very time.
//
// The generated struct F:
//   Params, kProducts (1 or 2), kColumns (vectors that arrive with slices, at most 2),
//   kOperand (a matrix comes by boxes), kBoxed (results leave by boxes; else F stores all of them itself), and
//   static u32 map(const Params&, const Pair (&v)[kProducts], const u32 (&along)[2], u32 operand, const Point&)
// which gives the two elements of a box, and stores what else there is. along, operand: two elements as they lie.
#pragma once
#include "device/contract.cuh"

namespace kfusion::device {

/// Two neighbouring columns of one row, as a lane holds them.
struct Pair {
  float x, y;
};

template <class T, class F>
struct Stored {
  using Params = typename F::Params;
  static constexpr int kProducts = F::kProducts, kColumns = F::kColumns, kOut = T::kN / kProducts;
  static constexpr int kChunk = kOut % 64 == 0 ? 64 : 32, kChunks = kOut / kChunk;
  static_assert(kColumns <= 2 && (F::kBoxed || !F::kOperand));
  using SharedMemory = Shared<T, kColumns>;

  int slot = 0, vector = 0;
  u32 parity = 0;

  /// The boxes of a warpgroup in the order in which it fills them.
  struct Walk {
    int t, box, row, col, batch;
    KF_DEVICE void locate(const Contraction<Params>& g, int group, int rank) {
      if (!valid(g)) return;
      const Unit u = unit_at<T, Stored>(g, t);
      row = (u.m * T::kDown + rank % T::kDown) * T::kM + group * 64 * T::kMma;
      col = column_at<T, Stored>(g, u, 0, rank);
      batch = u.batch;
    }
    KF_DEVICE bool valid(const Contraction<Params>& g) const { return t < g.units_m * g.units_n; }
    KF_DEVICE void advance(const Contraction<Params>& g, int group, int rank, int clusters) {
      if (++box < T::kMma * kChunks) return;
      box = 0, t += clusters;
      locate(g, group, rank);
    }
    KF_DEVICE int x() const { return col + box % kChunks * kChunk; }
    KF_DEVICE int y() const { return row + box / kChunks * 64; }
  };

  static KF_DEVICE void deliver(const Contraction<Params>& g, const SharedMemory& s, int group, int rank, int cluster,
                                int clusters) {
    if constexpr (F::kBoxed) move_boxes(g, s, group, rank, cluster, clusters);
  }

  static KF_DEVICE void move_boxes(const Contraction<Params>& g, const SharedMemory& s, int group, int rank,
                                   int cluster, int clusters) {
    Walk now{cluster, 0}, ahead{cluster, 0};
    now.locate(g, group, rank), ahead.locate(g, group, rank);
    const u32 boxes = s.boxes + group * T::kSlots * T::kBoxBytes;
    const u32 ready = s.ready + 8 * group * T::kSlots, filled = s.filled + 8 * group * T::kSlots;
    const auto prepare = [&](int slot) {
      if constexpr (F::kOperand) {
        if (!ahead.valid(g)) return;
        barrier_expect(ready + 8 * slot, 64 * kChunk * 2);
        load_box(boxes + slot * T::kBoxBytes, &g.operand, ready + 8 * slot, ahead.x(), ahead.y(),
                 ahead.batch * g.operand_batched);
        ahead.advance(g, group, rank, clusters);
      } else {
        barrier_arrive(ready + 8 * slot);
      }
    };
    for (int i = 0; i < T::kSlots; ++i) prepare(i);
    u32 parity = 0;
    for (int slot = 0; now.valid(g); now.advance(g, group, rank, clusters)) {
      barrier_wait(filled + 8 * slot, parity);
      store_box(&g.result, boxes + slot * T::kBoxBytes, now.x(), now.y(), now.batch);
      stores_read();
      prepare(slot);
      if (++slot == T::kSlots) slot = 0, parity ^= 1;
    }
    stores_done();
  }

  KF_DEVICE void begin() {}
  KF_DEVICE void end(const Contraction<Params>&, const SharedMemory&, const Unit&, const Lane&) {}

  /// Of row i, h and pair j of columns.
  static KF_DEVICE u32 elements(const Contraction<Params>& g, const Unit& u, const Lane& at,
                                const float (&acc)[T::kN / 2], int i, int j, int h, const u32 (&along)[2],
                                u32 operand) {
    Pair v[kProducts];
#pragma unroll
    for (int b = 0; b < kProducts; ++b) {
      const int from = 4 * (j + b * kOut / 8) + 2 * h;
      v[b] = {acc[from], acc[from + 1]};
    }
    return F::map(g.epilogue, v, along, operand, {u.batch, at.row + 64 * i + 8 * h, at.col + 8 * j, g.rows, g.cols});
  }

  KF_DEVICE u32 next_vector(const SharedMemory& s, const Lane& at) {
    u32 from = s.vectors + vector * T::kVectorBytes + at.lane % 4 * 4;
    asm volatile("" : "+r"(from)::"memory");  // nothing is read from there before this point
    vector = vector + 1 == T::kVectors ? 0 : vector + 1;
    return from;
  }
  static KF_DEVICE void read_vectors(u32 (&along)[2], u32 from, int j) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) along[i] = load_shared(from + i * T::kVectors * T::kVectorBytes + 16 * j);
  }

  KF_DEVICE void step(const Contraction<Params>& g, const SharedMemory& s, const Unit& u, const Lane& at,
                      float (&acc)[T::kMma][T::kN / 2]) {
    const u32 vectors = next_vector(s, at);
    if constexpr (F::kBoxed)
      to_boxes(g, s, u, at, acc, vectors);
    else
      to_memory(g, u, at, acc, vectors);
  }

  KF_DEVICE void to_boxes(const Contraction<Params>& g, const SharedMemory& s, const Unit& u, const Lane& at,
                          float (&acc)[T::kMma][T::kN / 2], u32 vectors) {
    const int group = at.warp / 4, box_row = at.warp % 4 * 16 + at.lane % 16, half = at.lane / 16;
    const int twist = kChunk == 64 ? box_row & 7 : box_row >> 1 & 3;  // of the 16-byte words of a row
#pragma unroll
    for (int i = 0; i < T::kMma; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int at_slot = group * T::kSlots + slot;
        const u32 row = s.boxes + at_slot * T::kBoxBytes + box_row * (kChunk * 2);
        u32 r[kChunk / 16][4] = {};
        barrier_wait(s.ready + 8 * at_slot, parity);
        if constexpr (F::kOperand) {
#pragma unroll
          for (int p = 0; p < kChunk / 16; ++p) load_matrices(r[p], row + ((2 * p + half ^ twist) << 4));
        }
#pragma unroll
        for (int q = 0; q < kChunk / 8; ++q) {
          const int j = c * (kChunk / 8) + q;
          u32 along[2] = {};
          read_vectors(along, vectors, j);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            u32& two = r[q / 2][q % 2 * 2 + h];
            two = elements(g, u, at, acc[i], i, j, h, along, two);
          }
        }
#pragma unroll
        for (int p = 0; p < kChunk / 16; ++p) store_matrices(row + ((2 * p + half ^ twist) << 4), r[p]);
        release_to_copies();
        __syncwarp();
        if (at.lane == 0) barrier_arrive(s.filled + 8 * at_slot);
        if (++slot == T::kSlots) slot = 0, parity ^= 1;
      }
    }
  }

  KF_DEVICE void to_memory(const Contraction<Params>& g, const Unit& u, const Lane& at,
                           float (&acc)[T::kMma][T::kN / 2], u32 vectors) {
#pragma unroll
    for (int i = 0; i < T::kMma; ++i)
#pragma unroll
      for (int j = 0; j < kOut / 8; ++j) {
        u32 along[2] = {};
        read_vectors(along, vectors, j);
#pragma unroll
        for (int h = 0; h < 2; ++h) elements(g, u, at, acc[i], i, j, h, along, 0);
      }
  }
};

}  // namespace kfusion::device
