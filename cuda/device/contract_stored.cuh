// Products whose elements are stored, each after a generated function of it (contract.cuh).
//
// Elements leave as boxes of 64 rows through shared memory while the next products run. A vector along the columns
// arrives with a tile's first slice. Matrices that are read come into the boxes while the products run, and the results
// replace them there. One warp for each multiplying warpgroup sends boxes and fetches matrices: a warp that multiplies
// would wait for the copy engine's queue, which the next tile's slices fill at this very time. While a box leaves, that
// warp sums its columns where F asks for it, as gradients of biases are: a part of the rows for each box.
//
// The generated struct F:
//   Params, kProducts (1 or 2), kColumns (vectors that arrive with slices, at most 2),
//   kOperands, kResults (matrices that come and leave by boxes, at most 2; without results F stores all itself),
//   kSums (bit i: the columns of result i are summed); if there are any,
//   static float *sums(const Params&, int result)      parts x columns, dense
//   kColumnValues; if there are any,
//   static void column(const Params&, const Point&, float (&of)[kColumnValues]), and
//   static void map(const Params&, const Pair (&v)[kProducts], const u32 (&along)[2], const Pair* columns,
//       const u32* operands, u32* results, const Point&)
// which gives two elements of each box, and stores what else there is. along, operands: two elements as they lie.
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
  static constexpr int kProducts = F::kProducts, kOut = T::kN / kProducts;
  static constexpr int kColumns = most(F::kColumns, More::kColumns...);
  static constexpr int kChunk = kOut % 64 == 0 ? 64 : 32, kChunks = kOut / kChunk;
  static constexpr int kOperands = F::kOperands, kResults = F::kResults, kBoxes = kOperands > 1 || kResults > 1 ? 2 : 1;
  static_assert(F::kColumns <= 2 && kOperands <= 2 && kResults <= 2 && (kResults > 0 || kOperands == 0));
  static_assert(kResults == 0 || T::kSlots >= kBoxes);
  static_assert(kBeside == 1 || (kProducts == 1 && kOperands == 0 && kResults <= 1 && F::kSums == 0));
  static_assert((... && (More::kProducts == 1 && More::kOperands == 0 && More::kResults == kResults)));
  using Given = Contraction<Params, kBeside, kBoxes>;
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

  /// The boxes of a warpgroup in the order in which it fills them: at each place one of each matrix.
  struct Walk {
    int t, box, row, col, batch, which, matrix = 0;
    KF_DEVICE void locate(const Given& g, int group, int rank) {
      if (!valid(g)) return;
      const Unit u = unit_at<T, Stored>(g, t);
      row = (u.m * T::kDown + rank % T::kDown) * T::kM + group * 64 * T::kMma;
      col = column_at<T, Stored>(g, u, 0, rank);
      batch = u.batch, which = u.which;
    }
    KF_DEVICE bool valid(const Given& g) const { return t < g.units_m * g.units_n; }
    KF_DEVICE void advance(const Given& g, int group, int rank, int clusters) {
      if (++matrix < kBoxes) return;
      matrix = 0;
      if (++box < T::kMma * kChunks) return;
      box = 0, t += clusters;
      locate(g, group, rank);
    }
    KF_DEVICE int x() const { return col + box % kChunks * kChunk; }
    KF_DEVICE int y() const { return row + box / kChunks * 64; }
  };

  static KF_DEVICE void deliver(const Given& g, const SharedMemory& s, int group, int rank, int cluster, int clusters,
                                int lane) {
    if constexpr (F::kSums != 0)
      move_boxes(g, s, group, rank, cluster, clusters, lane);
    else if constexpr (kResults > 0)
      if (lane == 0) move_boxes(g, s, group, rank, cluster, clusters, 0);
  }

  /// Moves boxes. A warp does this where columns are summed, else one thread.
  static KF_DEVICE void move_boxes(const Given& g, const SharedMemory& s, int group, int rank, int cluster,
                                   int clusters, int lane) {
    Walk now{cluster, 0}, ahead{cluster, 0};
    now.locate(g, group, rank), ahead.locate(g, group, rank);
    const u32 boxes = s.boxes + group * T::kSlots * T::kBoxBytes;
    const u32 ready = s.ready + 8 * group * T::kSlots, filled = s.filled + 8 * group * T::kSlots;
    const auto prepare = [&](int slot) {
      if constexpr (kOperands > 0) {
        if (!ahead.valid(g)) return;
        if (ahead.matrix < kOperands) {
          barrier_expect(ready + 8 * slot, 64 * kChunk * 2);
          load_box(boxes + slot * T::kBoxBytes, &g.operands[ahead.matrix], ready + 8 * slot, ahead.x(), ahead.y(),
                   ahead.batch * g.operands_batched[ahead.matrix]);
        } else {
          barrier_arrive(ready + 8 * slot);
        }
        ahead.advance(g, group, rank, clusters);
      } else {
        barrier_arrive(ready + 8 * slot);
      }
    };
    for (int i = 0; i < T::kSlots; ++i)
      if (lane == 0) prepare(i);
    u32 parity = 0;
    for (int slot = 0; now.valid(g); now.advance(g, group, rank, clusters)) {
      barrier_wait(filled + 8 * slot, parity);
      const u32 box = boxes + slot * T::kBoxBytes;
      if (lane == 0 && now.matrix < kResults)
        store_box(&g.result[kBoxes > 1 ? now.matrix : now.which], box, now.x(), now.y(), now.batch);
      if constexpr (F::kSums != 0) {
        if (F::kSums >> now.matrix & 1) sum_columns(g, box, now, lane), release_to_copies();
        __syncwarp();
      }
      if (lane == 0) stores_read(), prepare(slot);
      if (++slot == T::kSlots) slot = 0, parity ^= 1;
    }
    stores_done();
  }

  /// A warp sums the columns of a box, which is a whole part of the rows. A lane has two neighbouring columns; in boxes
  /// of 32 columns it has every other row.
  static KF_DEVICE void sum_columns(const Given& g, u32 box, const Walk& at, int lane) {
    if (at.y() >= g.rows) return;
    constexpr int kLanes = kChunk / 2, kTogether = 32 / kLanes, kRowBytes = kChunk * 2;
    const int column = lane % kLanes * 2;
    const u32 first = box + column * 2 + lane / kLanes * kRowBytes;
    Pair sum{0, 0};
    for (u32 row = first; row < first + 64 * kRowBytes; row += 8 * kTogether * kRowBytes)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        u32 two;
        const u32 twist =
            kChunk == 64 ? i : (kTogether * i) >> 1 & 3;  // as to_boxes() has it: of a row's 16-byte words
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(two)
                     : "r"((row ^ twist << 4) + i * kTogether * kRowBytes)
                     : "memory");
        float x, y;
        unpack_pair<typename T::T>(two, x, y);
        sum.x += x, sum.y += y;
      }
    if constexpr (kTogether == 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, kLanes);
      sum.y += __shfl_xor_sync(~0u, sum.y, kLanes);
      if (lane >= kLanes) return;
    }
    float* const to = F::sums(g.epilogue, at.matrix) + static_cast<i64>(at.y() / 64) * g.cols + at.x() + column;
    if (at.x() + column < g.cols) to[0] = sum.x;
    if (at.x() + column + 1 < g.cols) to[1] = sum.y;
  }

  KF_DEVICE void begin() {}
  KF_DEVICE void end(const Given&, const SharedMemory&, const Unit&, const Lane&) {}

  /// Computes the results of row i, h and pair j of columns.
  template <class Of>
  static KF_DEVICE void elements(const Given& g, const Unit& u, const Lane& at, const float (&acc)[T::kN / 2], int i,
                                 int j, int h, const u32 (&along)[2], const Pair* columns, const u32* operands,
                                 u32* results) {
    Pair v[kProducts];
#pragma unroll
    for (int b = 0; b < kProducts; ++b) {
      const int from = 4 * (j + b * kOut / 8) + 2 * h;
      v[b] = {acc[from], acc[from + 1]};
    }
    const Point point{u.batch, at.row + 64 * i + 8 * h, at.col + 8 * j, rows_of<T, Stored>(g, u),
                      cols_of<T, Stored>(g, u)};
    Of::map(g.epilogue, v, along, columns, operands, results, point);
  }

  KF_DEVICE u32 next_vector(const SharedMemory& s, const Lane& at) {
    u32 from = s.vectors + vector * T::kVectorBytes + at.lane % 4 * 4;
    asm volatile("" : "+r"(from)::"memory");  // nothing is read from there before this point
    vector = vector + 1 == T::kVectors ? 0 : vector + 1;
    return from;
  }

  /// Computes the values of the columns from `col` on; a warpgroup computes its own while the first slices arrive.
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
    if constexpr (kResults > 0)
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
        u32 r[kBoxes][kChunk / 16][4] = {}, slots[kBoxes];
#pragma unroll
        for (int m = 0; m < kBoxes; ++m) {
          slots[m] = group * T::kSlots + slot;
          barrier_wait(s.ready + 8 * slots[m], parity);
          if (++slot == T::kSlots) slot = 0, parity ^= 1;
#pragma unroll
          for (int p = 0; p < kChunk / 16 && m < kOperands; ++p)
            load_matrices(r[m][p], word_at(s, slots[m], box_row, 2 * p + half ^ twist));
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
            u32 operands[kBoxes], results[kBoxes] = {};
#pragma unroll
            for (int m = 0; m < kBoxes; ++m) operands[m] = r[m][q / 2][q % 2 * 2 + h];
            elements<Of>(g, u, at, acc[i], i, j, h, along, columns, operands, results);
#pragma unroll
            for (int m = 0; m < kBoxes; ++m) r[m][q / 2][q % 2 * 2 + h] = results[m];
          }
        }
#pragma unroll
        for (int m = 0; m < kResults; ++m)
#pragma unroll
          for (int p = 0; p < kChunk / 16; ++p)
            store_matrices(word_at(s, slots[m], box_row, 2 * p + half ^ twist), r[m][p]);
        release_to_copies();
        __syncwarp();
#pragma unroll
        for (int m = 0; m < kBoxes; ++m)
          if (at.lane == 0) barrier_arrive(s.filled + 8 * slots[m]);
      }
    }
  }
  /// The address of 16 bytes of a row of a box.
  static KF_DEVICE u32 word_at(const SharedMemory& s, u32 slot, int row, int word) {
    return s.boxes + slot * T::kBoxBytes + row * (kChunk * 2) + (word << 4);
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
        for (int h = 0; h < 2; ++h) elements<Of>(g, u, at, acc[i], i, j, h, along, columns, nullptr, nullptr);
      }
  }
};

}  // namespace kfusion::device
