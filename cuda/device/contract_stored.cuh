// Products whose elements are stored, each after a generated function of it (contract.cuh).
//
// Elements leave as boxes of 64 rows through shared memory while the next products run. A vector along the columns
// arrives with a tile's first slice. A matrix that is read comes into the boxes while the products run, and the results
// replace it there. One thread for each multiplying warpgroup sends boxes and fetches matrices: a warp that did it
// itself would wait for the copy engine's queue, which the next tile's slices fill at this very time.
//
// The generated struct F:
//   Params, kProducts (1 or 2), kColumns (vectors that arrive with slices, at most 2),
//   kOperand (a matrix comes by boxes), kBoxed (results leave by boxes; else F stores all of them itself),
//   kColumnValues; if there are any,
//   static void column(const Params&, const Point&, float (&of)[kColumnValues]), and
//   static u32 map(const Params&, const Pair (&v)[kProducts], const u32 (&along)[2], const Pair* columns, u32 operand,
//       const Point&)
// which gives the two elements of a box, and stores what else there is. along, operand: two elements as they lie.
// columns: of both columns what column() gave, which is called once for each column of a tile.
//
// Products of one factor may lie beside one another (q, k and v): each tile is of one of them, with a struct of its
// own.
#pragma once
#include "device/contract.cuh"

namespace kfusion::device {

/// Two neighbouring columns of one row, as a lane holds them.
struct Pair {
  float x, y;
};

/// The parameters of one struct; of several beside one another, one after the other.
template <class... P>
struct ParametersOf;
template <class P>
struct ParametersOf<P> {
  using Type = P;
};
template <class P, class Q, class... R>
struct ParametersOf<P, Q, R...> : P, Q, R... {
  using Type = ParametersOf;
};

template <class... N>
constexpr int most(int first, N... further) {
  ((first = further > first ? further : first), ...);
  return first;
}

/// `More`: of products that lie beside the first.
template <class T, class F, class... More>
struct Stored {
  using Params = typename ParametersOf<typename F::Params, typename More::Params...>::Type;
  static constexpr int kBeside = 1 + sizeof...(More);
  using Given = Contraction<Params, kBeside>;
  static constexpr int kProducts = F::kProducts, kOut = T::kN / kProducts;
  static constexpr int kColumns = most(F::kColumns, More::kColumns...);
  static constexpr int kChunk = kOut % 64 == 0 ? 64 : 32, kChunks = kOut / kChunk;
  static_assert(F::kColumns <= 2 && (F::kBoxed || !F::kOperand));
  static_assert(kBeside == 1 || (kProducts == 1 && !F::kOperand));
  static_assert((... && (More::kProducts == 1 && !More::kOperand && More::kBoxed == F::kBoxed)));
  static constexpr int kColumnValues = most(F::kColumnValues, More::kColumnValues...);
  static constexpr u32 kColumnBytes = kColumnValues * kOut * 4;
  using SharedMemory = Shared<T, kColumns, kColumnBytes>;

  int slot = 0, vector = 0;
  u32 parity = 0;

  /// Vectors that arrive with the slices of a product.
  static KF_DEVICE int columns(int which) {
    int i = 0, count = F::kColumns;
    ((which == ++i ? void(count = More::kColumns) : void()), ...);
    return count;
  }

  /// The boxes of a warpgroup in the order in which it fills them.
  struct Walk {
    int t, box, row, col, batch, which;
    KF_DEVICE void locate(const Given& g, int group, int rank) {
      if (!valid(g)) return;
      const Unit u = unit_at<T, Stored>(g, t);
      row = (u.m * T::kDown + rank % T::kDown) * T::kM + group * 64 * T::kMma;
      col = column_at<T, Stored>(g, u, 0, rank);
      batch = u.batch, which = u.which;
    }
    KF_DEVICE bool valid(const Given& g) const { return t < g.units_m * g.units_n; }
    KF_DEVICE void advance(const Given& g, int group, int rank, int clusters) {
      if (++box < T::kMma * kChunks) return;
      box = 0, t += clusters;
      locate(g, group, rank);
    }
    KF_DEVICE int x() const { return col + box % kChunks * kChunk; }
    KF_DEVICE int y() const { return row + box / kChunks * 64; }
  };

  static KF_DEVICE void deliver(const Given& g, const SharedMemory& s, int group, int rank, int cluster, int clusters) {
    if constexpr (F::kBoxed) move_boxes(g, s, group, rank, cluster, clusters);
  }

  static KF_DEVICE void move_boxes(const Given& g, const SharedMemory& s, int group, int rank, int cluster,
                                   int clusters) {
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
      store_box(&g.result[now.which], boxes + slot * T::kBoxBytes, now.x(), now.y(), now.batch);
      stores_read();
      prepare(slot);
      if (++slot == T::kSlots) slot = 0, parity ^= 1;
    }
    stores_done();
  }

  KF_DEVICE void begin() {}
  KF_DEVICE void end(const Given&, const SharedMemory&, const Unit&, const Lane&) {}

  /// Of row i, h and pair j of columns.
  template <class Of>
  static KF_DEVICE u32 elements(const Given& g, const Unit& u, const Lane& at, const float (&acc)[T::kN / 2], int i,
                                int j, int h, const u32 (&along)[2], const Pair* columns, u32 operand) {
    Pair v[kProducts];
#pragma unroll
    for (int b = 0; b < kProducts; ++b) {
      const int from = 4 * (j + b * kOut / 8) + 2 * h;
      v[b] = {acc[from], acc[from + 1]};
    }
    const Point point{u.batch, at.row + 64 * i + 8 * h, at.col + 8 * j, rows_of<T, Stored>(g, u),
                      cols_of<T, Stored>(g, u)};
    return Of::map(g.epilogue, v, along, columns, operand, point);
  }

  KF_DEVICE u32 next_vector(const SharedMemory& s, const Lane& at) {
    u32 from = s.vectors + vector * T::kVectorBytes + at.lane % 4 * 4;
    asm volatile("" : "+r"(from)::"memory");  // nothing is read from there before this point
    vector = vector + 1 == T::kVectors ? 0 : vector + 1;
    return from;
  }

  /// Of the columns from `col` on; a warpgroup computes its own while the first slices arrive.
  KF_DEVICE void prepare(const Given& g, const SharedMemory& s, const Unit& u, int col) {
    if constexpr (kColumnValues > 0) {
      columns_meet();  // those of the last tile have been read
      int i = 0;
      if (kBeside == 1 || u.which == 0) compute_columns<F>(g, s, u, col);
      ((u.which == ++i ? compute_columns<More>(g, s, u, col) : void()), ...);
      columns_meet();
    }
  }
  static KF_DEVICE void columns_meet() {
    if (threadIdx.x < 128)
      threads_meet<3, 128>();
    else
      threads_meet<4, 128>();
  }
  static KF_DEVICE u32 columns_at(const SharedMemory& s) { return s.columns + threadIdx.x / 128 * kColumnBytes; }
  template <class Of>
  static KF_DEVICE void compute_columns(const Given& g, const SharedMemory& s, const Unit& u, int col) {
    if constexpr (Of::kColumnValues > 0) {
      for (int c = threadIdx.x % 128; c < kOut; c += 128) {
        float of[Of::kColumnValues];
        Of::column(g.epilogue, {u.batch, 0, col + c, rows_of<T, Stored>(g, u), cols_of<T, Stored>(g, u)}, of);
#pragma unroll
        for (int i = 0; i < Of::kColumnValues; ++i)
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(columns_at(s) + (i * kOut + c) * 4), "f"(of[i]) : "memory");
      }
    }
  }
  template <class Of, int kCount>
  static KF_DEVICE void read_columns(Pair (&columns)[kCount], const SharedMemory& s, const Lane& at, int j) {
#pragma unroll
    for (int i = 0; i < Of::kColumnValues; ++i)
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(columns[i].x), "=f"(columns[i].y)
                   : "r"(columns_at(s) + (i * kOut + at.lane % 4 * 2 + 8 * j) * 4));
  }
  template <class Of>
  static KF_DEVICE void read_vectors(u32 (&along)[2], u32 from, int j) {
#pragma unroll
    for (int i = 0; i < Of::kColumns; ++i) along[i] = load_shared(from + i * T::kVectors * T::kVectorBytes + 16 * j);
  }

  KF_DEVICE void step(const Given& g, const SharedMemory& s, const Unit& u, const Lane& at,
                      float (&acc)[T::kMma][T::kN / 2]) {
    const u32 vectors = next_vector(s, at);
    int i = 0;
    if (kBeside == 1 || u.which == 0) store<F>(g, s, u, at, acc, vectors);
    ((u.which == ++i ? store<More>(g, s, u, at, acc, vectors) : void()), ...);
  }

  template <class Of>
  KF_DEVICE void store(const Given& g, const SharedMemory& s, const Unit& u, const Lane& at,
                       float (&acc)[T::kMma][T::kN / 2], u32 vectors) {
    if constexpr (Of::kBoxed)
      to_boxes<Of>(g, s, u, at, acc, vectors);
    else
      to_memory<Of>(g, s, u, at, acc, vectors);
  }

  template <class Of>
  KF_DEVICE void to_boxes(const Given& g, const SharedMemory& s, const Unit& u, const Lane& at,
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
          Pair columns[Of::kColumnValues + 1] = {};
          read_vectors<Of>(along, vectors, j);
          read_columns<Of>(columns, s, at, j);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            u32& two = r[q / 2][q % 2 * 2 + h];
            two = elements<Of>(g, u, at, acc[i], i, j, h, along, columns, two);
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

  template <class Of>
  KF_DEVICE void to_memory(const Given& g, const SharedMemory& s, const Unit& u, const Lane& at,
                           float (&acc)[T::kMma][T::kN / 2], u32 vectors) {
#pragma unroll
    for (int i = 0; i < T::kMma; ++i)
#pragma unroll
      for (int j = 0; j < kOut / 8; ++j) {
        u32 along[2] = {};
        Pair columns[Of::kColumnValues + 1] = {};
        read_vectors<Of>(along, vectors, j);
        read_columns<Of>(columns, s, at, j);
#pragma unroll
        for (int h = 0; h < 2; ++h) elements<Of>(g, u, at, acc[i], i, j, h, along, columns, 0);
      }
  }
};

}  // namespace kfusion::device
