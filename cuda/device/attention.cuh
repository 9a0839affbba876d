// softmax(score(q k^T)) v on Hopper (sm_90a), scores never stored: queries of a block stay in shared memory, keys and
// values pass by, and each row keeps its largest score and its sum (online softmax). Sums in float32; weights are
// rounded to the half type before they multiply the values.
//
// Persistent blocks take tiles of queries in the order in which they get to them. In a block, one thread loads; each of
// `Groups` warpgroups has 64 queries. Its products with the next keys run while it takes the exponentials of the last
// ones, and warpgroups take turns, so that one's exponentials run under the other's products.
//
// The generated struct F (scores):
//   Params, and struct Row { ... }: what it needs of a row;  static Row row(const Params&, const Query&)
//   template <bool kEdge> static void map(const Params&, const Row&, float (&s)[...], int h, int j0, const Pairs&,
//       const Query&)    scores of columns col + 8 j and the next, j0 and j0 + 1, in place, but for a factor:
//   template <bool kEdge> static float factor(const Params&)    positive
//   static Span keys(const Params&, int first, int last, int cols)    that queries `first` to `last` see
// kEdge: also where not all of the keys are seen. The generated struct O (output) is as F of contract_stored.cuh.
#pragma once
#include "device/contract_memory.cuh"
#include "device/quick.cuh"
#include "device/tensor_core.cuh"

namespace kfusion::device {

/// How a block works: `Groups` x 64 queries, `Keys` keys at a time, `Stages` times as many on their way. Depth: numbers
/// of a key, in sixteens; Values: of a value, as products have them. Operand: a matrix of the scores' shape comes by
/// boxes beside the keys.
template <class Item, int Depth, int Values, int Keys, int Stages, int Groups, bool Operand = false>
struct AttentionTile {
  using T = Item;
  static constexpr int kDepth = Depth, kValues = Values, kKeys = Keys, kStages = Stages, kGroups = Groups;
  static constexpr int kRows = 64 * Groups, kThreads = 128 * (Groups + 1);
  static constexpr int kRegisters = Groups == 3 ? 160 : 240, kFewRegisters = Groups == 3 ? 32 : 24;
  static constexpr int kDepthBoxes = (Depth + 63) / 64, kValueBoxes = (Values + 63) / 64;
  static constexpr u32 kQueryBytes = kRows * 128 * kDepthBoxes, kKeyBytes = Keys * 128 * kDepthBoxes;
  static constexpr u32 kValueBytes = Keys * 128 * kValueBoxes;
  static constexpr bool kOperand = Operand;
  static constexpr int kOperandBoxes = Operand ? (Keys + 63) / 64 : 0;
  static constexpr u32 kOperandBytes = kRows * 128 * kOperandBoxes;
  static constexpr u32 kBytes = kQueryBytes + Stages * (kKeyBytes + kValueBytes + kOperandBytes) + 32 * Stages + 32;
  static_assert(Depth % 16 == 0 && Keys % 16 == 0 && Groups >= 1 && Groups <= 3);
};

/// A query, and the first of the keys that a lane has.
struct Query {
  int batch[3], row, col, rows, cols;
  KF_DEVICE bool first() const { return row < rows && col < cols; }
  KF_DEVICE bool second() const { return row < rows && col + 1 < cols; }
};
/// Keys that some of the queries see, and those that all of them see.
struct Span {
  int begin, end, whole_begin, whole_end;
};

/// What the operand has for the pairs j0 and j0 + 1 of a row.
struct Pairs {
  u32 word[2];
};

/// Two neighbouring columns of one row, as a lane holds them.
struct Pair {
  float x, y;
};

/// The kernel's one parameter.
template <class ScoreParameters, class OutputParameters>
struct Attention {
  TensorMap queries, keys, values, operand;
  void* result;           ///< where the output leaves by 16 bytes
  void* workspace;        ///< of parts
  u32* standing;          ///< tiles taken, blocks done; then, where there are parts, those done by rows
  i64 result_strides[4];  ///< of its three axes of batches and its rows, in elements
  int rows, cols, values_cols, batches[3];
  int queries_batched[3], keys_batched[3], values_batched[3],
      operand_batched[3];  ///< 1 where each batch has a matrix of its own
  int row_tiles, parts, tiles, unused[3];
  ScoreParameters scores;
  OutputParameters output;
};

namespace attention {

/// The score of a position that is not seen.
inline constexpr float kUnseen = __builtin_bit_cast(float, 0xff800000u);  // a literal that every NVRTC takes

/// tanh to 2^-11 of itself.
KF_DEVICE float rough_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// tanh to 2^-21 of 1.
KF_DEVICE float level_tanh(float x) {
  return fmaf(-2.0f, scalar::quick_reciprocal(1.0f + scalar::quick_exp2(2.8853900817779268f * x)), 1.0f);
}

/// Two neighbours at once, or up to `left` of them one by one.
template <bool kAtOnce, class T>
KF_DEVICE void load_two(Compute<T> (&v)[2], const T* p, int left) {
  if constexpr (kAtOnce && sizeof(T) == 2) {
    unpack_pair<T>(*reinterpret_cast<const u32*>(p), v[0], v[1]);
  } else if constexpr (kAtOnce && sizeof(T) == 1) {
    const u16 two = *reinterpret_cast<const u16*>(p);
    v[0] = (two & 0xff) != 0, v[1] = two >> 8 != 0;
  } else if constexpr (kAtOnce) {
    struct alignas(2 * sizeof(T)) Two {
      T x, y;
    };
    const Two two = *reinterpret_cast<const Two*>(p);
    v[0] = two.x, v[1] = two.y;
  } else {
    v[0] = element(p, left > 0), v[1] = element(p + 1, left > 1);
  }
}

/// Shared memory.
template <class T>
struct Shared {
  u32 queries, keys, values, operands, full_keys, empty_keys, full_values, empty_values, full, empty, tile, flag;
  KF_DEVICE explicit Shared(unsigned char* raw) {
    queries = shared_address(raw);
    if (queries & 1023) __trap();  // the swizzle is a function of the address
    keys = queries + T::kQueryBytes;
    values = keys + T::kStages * T::kKeyBytes;
    operands = values + T::kStages * T::kValueBytes;
    full_keys = operands + T::kStages * T::kOperandBytes;
    empty_keys = full_keys + 8 * T::kStages;
    full_values = empty_keys + 8 * T::kStages;
    empty_values = full_values + 8 * T::kStages;
    full = empty_values + 8 * T::kStages;
    empty = full + 8, tile = full + 16, flag = full + 20;
  }
};

/// What a block does at a time: blocks of keys from `begin` to `end`.
struct Unit {
  int batch[3], row_tile, line, part, begin, end;  ///< line: of rows of a batch, counted over all
  Span span;
};

template <class T, class F, class G>
KF_DEVICE Unit unit_at(const G& g, int t) {
  Unit u;
  u.row_tile = g.row_tiles - 1 - t % g.row_tiles;  // those that see most first, if they see what is before them
  u.part = t / g.row_tiles % g.parts;
  int batch = t / g.row_tiles / g.parts;
  u.line = batch * g.row_tiles + u.row_tile;
  u.batch[2] = batch % g.batches[2], batch /= g.batches[2];
  u.batch[1] = batch % g.batches[1], u.batch[0] = batch / g.batches[1];
  const int first = u.row_tile * T::kRows, last = min(first + T::kRows, g.rows) - 1;
  u.span = F::keys(g.scores, first, last, g.cols);
  u.span.begin = max(u.span.begin, 0), u.span.end = min(u.span.end, g.cols);
  u.begin = u.span.begin / T::kKeys, u.end = (u.span.end + T::kKeys - 1) / T::kKeys;
  u.end = max(u.begin, u.end);
  if (g.parts > 1) {
    const int each = (u.end - u.begin + g.parts - 1) / g.parts, end = u.end;
    u.begin = min(u.begin + u.part * each, end);
    u.end = min(u.begin + each, end);
  }
  return u;
}

/// Boxes of 64 columns side by side; the barrier knows of their bytes.
template <int kBoxes, int kRows>
KF_DEVICE void load(u32 to, const TensorMap* map, u32 barrier, int col, int row, const int (&batch)[3],
                    const int (&batched)[3]) {
  const int at[3] = {batch[0] * batched[0], batch[1] * batched[1], batch[2] * batched[2]};
#pragma unroll
  for (int i = 0; i < kBoxes; ++i) load_box(to + i * kRows * 128, map, barrier, col + 64 * i, row, at);
}

template <class T, class F, class G>
KF_DEVICE void produce(const G& g, const Shared<T>& s) {
  Ring<T> keys, values;
  u32 parity = 1;
  for (int t = blockIdx.x;; parity ^= 1) {
    barrier_wait(s.empty, parity);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(s.tile), "r"(t) : "memory");
    if (t >= g.tiles) break;
    const Unit u = unit_at<T, F>(g, t);
    const int row = u.row_tile * T::kRows;
    barrier_expect(s.full, T::kQueryBytes);
    load<T::kDepthBoxes, T::kRows>(s.queries, &g.queries, s.full, 0, row, u.batch, g.queries_batched);
    t = gridDim.x + atomicAdd(g.standing, 1u);
    for (int i = u.begin; i <= u.end; ++i) {  // values a step behind keys
      if (i < u.end) {
        barrier_wait(s.empty_keys + 8 * keys.stage, keys.parity ^ 1);
        const u32 full = s.full_keys + 8 * keys.stage;
        barrier_expect(full, T::kKeyBytes + T::kOperandBytes);
        load<T::kDepthBoxes, T::kKeys>(s.keys + keys.stage * T::kKeyBytes, &g.keys, full, 0, i * T::kKeys, u.batch,
                                       g.keys_batched);
        if constexpr (T::kOperand)
          load<T::kOperandBoxes, T::kRows>(s.operands + keys.stage * T::kOperandBytes, &g.operand, full, i * T::kKeys,
                                           row, u.batch, g.operand_batched);
        keys.advance();
      }
      if (i > u.begin) {
        barrier_wait(s.empty_values + 8 * values.stage, values.parity ^ 1);
        const u32 full = s.full_values + 8 * values.stage;
        barrier_expect(full, T::kValueBytes);
        load<T::kValueBoxes, T::kKeys>(s.values + values.stage * T::kValueBytes, &g.values, full, 0, (i - 1) * T::kKeys,
                                       u.batch, g.values_batched);
        values.advance();
      }
    }
  }
  barrier_arrive(s.full);
  if (atomicAdd(g.standing + 1, 1u) + 1 == gridDim.x) g.standing[0] = g.standing[1] = 0;  // for the next launch
}

/// A slice of keys or queries, 16 of depth from `k`.
template <int kRows>
KF_DEVICE u64 along(u32 address, int k) {
  return slice_at<false>(address + k / 64 * kRows * 128) + k % 64 / 16 * kSixteenDeeper<false>;
}
/// 16 values of all from `k`: 64 numbers of one lie side by side, the next 64 kKeys x 128 bytes further.
template <int kKeys>
KF_DEVICE u64 across(u32 address, int k) {
  return (u64((address + k * 128) >> 4 & 0x3fff) | u64(kKeys * 8) << 16 | u64(64) << 32 | u64(1) << 62);
}

/// 0 in the place of -inf, from which nothing can be taken.
KF_DEVICE float finite_floor(float largest) { return largest == kUnseen ? 0.0f : largest; }

/// Words of four neighbours change places: of word i of lane t becomes word t of lane i.
KF_DEVICE void turn(u32 (&w)[4], int t) {
#pragma unroll
  for (int d = 1; d <= 2; d *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & d) continue;
      const bool high = t & d;
      const u32 got = __shfl_xor_sync(~0u, high ? w[i] : w[i | d], d);
      if (high)
        w[i] = got;
      else
        w[i | d] = got;
    }
  }
}

/// One warpgroup's 64 queries, of which a lane has two rows, of each every fourth pair of columns.
template <class T, class F, class O, class G>
struct Consumer {
  static constexpr float kLog2OfE = 1.4426950408889634f;
  static constexpr float kSlack = 5.0f;  ///< by which scores may be larger than `largest`: exp(5) fits all types
  static constexpr float kHuge = 0x1p100f;

  const G& g;
  const Shared<T>& shared;
  const int group, lane;
  Ring<T> keys, values;
  u32 parity = 0;
  float s[T::kKeys / 2], o[T::kValues / 2], largest[2], sum[2];
  u32 weights[T::kKeys / 4];
  typename F::Row row[2];
  Query at;

  KF_DEVICE void my_turn() {
    if constexpr (T::kGroups > 1) asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
  }
  KF_DEVICE void next_turn() {
    if constexpr (T::kGroups > 1)
      asm volatile("bar.arrive %0, 256;" ::"r"(1 + (group + 1 == T::kGroups ? 0 : group + 1)) : "memory");
  }
  KF_DEVICE void give_back(u32 barrier) {
    if (lane == 0) barrier_arrive(barrier);
  }

  KF_DEVICE void multiply_keys() {
    barrier_wait(shared.full_keys + 8 * keys.stage, keys.parity);
    const u32 a = shared.queries + group * 64 * 128, b = shared.keys + keys.stage * T::kKeyBytes;
    products_begin();
#pragma unroll
    for (int k = 0; k < T::kDepth; k += 16)
      Multiply<typename T::T, T::kKeys, false, false>::issue(s, along<T::kRows>(a, k), along<T::kKeys>(b, k), k);
    products_commit();
  }
  KF_DEVICE void multiply_values(int keep) {
    barrier_wait(shared.full_values + 8 * values.stage, values.parity);
    const u32 b = shared.values + values.stage * T::kValueBytes;
    products_begin();
#pragma unroll
    for (int k = 0; k < T::kKeys; k += 16)
      MultiplyHeld<typename T::T, T::kValues>::issue(o, weights[k / 4], weights[k / 4 + 1], weights[k / 4 + 2],
                                                     weights[k / 4 + 3], across<T::kKeys>(b, k), keep | k);
    products_commit();
  }
  KF_DEVICE void keys_read() {
    settle(s);
    if constexpr (!T::kOperand) give_back_keys();
  }
  KF_DEVICE void give_back_keys() {
    if constexpr (T::kOperand) release_to_copies(), __syncwarp();  // all lanes have read theirs
    give_back(shared.empty_keys + 8 * keys.stage);
    keys.advance();
  }
  KF_DEVICE void values_read() {
    settle(o);
    give_back(shared.empty_values + 8 * values.stage);
    values.advance();
  }

  template <bool kEdge>
  KF_DEVICE float score(int block) {
    at.col = block * T::kKeys + lane % 4 * 2;
    Query here[2] = {at, at};
#pragma unroll
    for (int h = 0; h < 2; ++h) here[h].row = min(at.row + 8 * h, at.rows - 1);
    const int box_row = group * 64 + (threadIdx.x / 32 & 3) * 16 + lane % 16;
    const u32 operand = shared.operands + keys.stage * T::kOperandBytes + box_row * 128;
#pragma unroll
    for (int j = 0; j < T::kKeys / 8; j += 2) {  // 16 keys: four matrices of 8 x 8
      u32 r[4] = {};
      if constexpr (T::kOperand)
        load_matrices(r, operand + j / 8 * (T::kRows * 128) + ((j % 8 + lane / 16 ^ (box_row & 7)) << 4));
#pragma unroll
      for (int h = 0; h < 2; ++h) F::template map<kEdge>(g.scores, row[h], s, h, j, {r[h], r[2 + h]}, here[h]);
    }
    if constexpr (kEdge) {
#pragma unroll
      for (int i = 0; i < T::kKeys / 2; ++i)
        if (at.col + i / 4 * 8 + i % 2 >= at.cols) s[i] = kUnseen;
    }
    return F::template factor<kEdge>(g.scores);
  }

  /// Exponentials of the scores in their place, whose sums it takes in. What was summed before counts `scale` times.
  KF_DEVICE bool exponentials(const Unit& u, int block, float (&scale)[2]) {
    const int first = block * T::kKeys, last = first + T::kKeys;
    const bool edge = first < u.span.whole_begin || last > u.span.whole_end || last > g.cols;
    float factor = edge ? score<true>(block) : score<false>(block);
    if constexpr (T::kOperand) give_back_keys();
    float next[2];
    bool grows = false, huge = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most[2] = {s[2 * h], s[2 * h + 1]};
#pragma unroll
      for (int j = 1; j < T::kKeys / 8; ++j)
        most[0] = fmaxf(most[0], s[4 * j + 2 * h]), most[1] = fmaxf(most[1], s[4 * j + 2 * h + 1]);
      float top = fmaxf(most[0], most[1]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      next[h] = fmaxf(largest[h], top * factor);
      grows |= next[h] > largest[h] + kSlack;
      scale[h] = 1.0f;
    }
    grows = __any_sync(~0u, grows);
    if (grows) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        scale[h] = scalar::quick_exp2((largest[h] - finite_floor(next[h])) * kLog2OfE);
        largest[h] = next[h];
        sum[h] *= scale[h];
      }
    }
    float least[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      least[h] = finite_floor(largest[h]);
      huge |= fabsf(least[h]) > kHuge;
    }
    if (__any_sync(~0u, huge)) {  // the difference before the factor, which may overflow
#pragma unroll
      for (int i = 0; i < T::kKeys / 2; ++i) s[i] = fmaf(s[i], factor, -least[i / 2 % 2]);
      factor = 1.0f, least[0] = least[1] = 0.0f;
    }
    factor *= kLog2OfE;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float from = least[h] * -kLog2OfE;
      float part[2] = {0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < T::kKeys / 8; ++j)
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          float& e = s[4 * j + 2 * h + x];
          e = scalar::quick_exp2(fmaf(e, factor, from));
          part[x] += e;
        }
      sum[h] += part[0] + part[1];
    }
    return grows;
  }
  KF_DEVICE void rescale(const float (&scale)[2]) {
#pragma unroll
    for (int i = 0; i < T::kValues / 2; ++i) o[i] *= scale[i / 2 % 2];
  }
  KF_DEVICE void hold_weights() {
#pragma unroll
    for (int i = 0; i < T::kKeys / 4; ++i) weights[i] = pack_pair<typename T::T>(s[2 * i], s[2 * i + 1]);
  }

  KF_DEVICE void start(const Unit& u) {
#pragma unroll
    for (int i = 0; i < 3; ++i) at.batch[i] = u.batch[i];
    at.row = u.row_tile * T::kRows + group * 64 + (threadIdx.x / 32 & 3) * 16 + lane / 4;
    at.rows = g.rows, at.cols = g.cols, at.col = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Query here = at;
      here.row = min(at.row + 8 * h, at.rows - 1);
      row[h] = F::row(g.scores, here);
      largest[h] = kUnseen, sum[h] = 0.0f;
    }
  }

  KF_DEVICE void run(const Unit& u) {
    float scale[2];
    if (u.begin == u.end) {
#pragma unroll
      for (int i = 0; i < T::kValues / 2; ++i) o[i] = 0.0f;
      barrier_arrive(shared.empty);
      return;
    }
    my_turn();
    multiply_keys();
    next_turn();
    products_wait();
    keys_read();
    exponentials(u, u.begin, scale);
    hold_weights();
    for (int block = u.begin + 1; block < u.end; ++block) {
      my_turn();
      multiply_keys();
      multiply_values(block - 1 - u.begin);
      next_turn();
      products_wait<1>();
      keys_read();
      const bool grows = exponentials(u, block, scale);
      products_wait();
      values_read();
      hold_weights();
      if (grows) rescale(scale);
    }
    barrier_arrive(shared.empty);
    multiply_values(u.end - 1 - u.begin);
    products_wait();
    values_read();
  }

  /// Over the four lanes of a row.
  KF_DEVICE void join_lanes() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    }
  }

  /// What a part left: of a tile all the floats of a thread, side by side over the threads.
  KF_DEVICE float* part_at(const Unit& u, int part) const {
    constexpr int kThreads = 128 * T::kGroups, kFloats = T::kValues / 2 + 4;
    return static_cast<float*>(g.workspace) + (i64(u.line) * g.parts + part) * kFloats * kThreads + threadIdx.x;
  }
  KF_DEVICE bool has_rows() const { return at.row - lane / 4 < at.rows; }  // else nothing of the warp is stored
  /// True for the block that is the last to come by, which then has the parts joined in their order.
  KF_DEVICE bool join_parts(const Unit& u) {
    constexpr int kThreads = 128 * T::kGroups;
    if (has_rows()) {
      float* p = part_at(u, u.part);
#pragma unroll
      for (int i = 0; i < T::kValues / 2; ++i, p += kThreads) *p = o[i];
#pragma unroll
      for (int h = 0; h < 2; ++h) p[2 * h * kThreads] = largest[h], p[(2 * h + 1) * kThreads] = sum[h];
    }
    __threadfence();
    threads_meet<5, kThreads>();
    if (threadIdx.x == 0) {
      u32* const arrived = g.standing + 2 + u.line;
      const bool last = atomicAdd(arrived, 1u) + 1 == static_cast<u32>(g.parts);
      if (last) *arrived = 0;  // for the next launch
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.flag), "r"(u32(last)) : "memory");
    }
    threads_meet<5, kThreads>();
    u32 last;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(last) : "r"(shared.flag) : "memory");
    threads_meet<5, kThreads>();  // the flag is read before it is written again
    if (!last) return false;
    __threadfence();
    if (!has_rows()) return true;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      largest[h] = kUnseen, sum[h] = 0.0f;
      for (int part = 0; part < g.parts; ++part)
        largest[h] = fmaxf(largest[h], __ldcg(part_at(u, part) + (T::kValues / 2 + 2 * h) * kThreads));
    }
#pragma unroll
    for (int i = 0; i < T::kValues / 2; ++i) o[i] = 0.0f;
    for (int part = 0; part < g.parts; ++part) {
      const float* p = part_at(u, part);
      float scale[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* row_end = p + (T::kValues / 2 + 2 * h) * kThreads;
        scale[h] = scalar::quick_exp2((__ldcg(row_end) - finite_floor(largest[h])) * kLog2OfE);
        sum[h] = fmaf(__ldcg(row_end + kThreads), scale[h], sum[h]);
      }
#pragma unroll
      for (int i = 0; i < T::kValues / 2; ++i) o[i] = fmaf(__ldcg(p + i * kThreads), scale[i / 2 % 2], o[i]);
    }
    return true;
  }

  KF_DEVICE u32 elements(int h, int j) {
    const Pair v[1] = {{o[4 * j + 2 * h], o[4 * j + 2 * h + 1]}};
    const u32 none[2] = {};
    Query here = at;
    here.row = at.row + 8 * h, here.col = lane % 4 * 2 + 8 * j, here.cols = g.values_cols;
    u32 result = 0;
    O::map(g.output, v, none, nullptr, nullptr, &result, here);
    return result;
  }
  KF_DEVICE void store() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float each = 1.0f / sum[h];
#pragma unroll
      for (int j = 0; j < T::kValues / 8; ++j) o[4 * j + 2 * h] *= each, o[4 * j + 2 * h + 1] *= each;
      if constexpr (O::kResults > 0) {
        const int to_row = at.row + 8 * h;
        u16* const to = static_cast<u16*>(g.result) + at.batch[0] * g.result_strides[0] +
                        at.batch[1] * g.result_strides[1] + at.batch[2] * g.result_strides[2] +
                        to_row * g.result_strides[3] + lane % 4 * 8;
#pragma unroll
        for (int c = 0; c < T::kValues; c += 32) {
          Slot slot;
#pragma unroll
          for (int i = 0; i < 4; ++i) slot.word[i] = elements(h, c / 8 + i);
          turn(slot.word, lane % 4);
          if (to_row < g.rows && c + lane % 4 * 8 < g.values_cols) *reinterpret_cast<Slot*>(to + c) = slot;
        }
      } else {
#pragma unroll
        for (int j = 0; j < T::kValues / 8; ++j) elements(h, j);
      }
    }
  }

  KF_DEVICE void run() {
    if (T::kGroups > 1 && group == T::kGroups - 1) next_turn();
    for (;; parity ^= 1) {
      barrier_wait(shared.full, parity);
      int t;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(t) : "r"(shared.tile) : "memory");
      if (t >= g.tiles) break;
      const Unit u = unit_at<T, F>(g, t);
      start(u);
      run(u);
      join_lanes();
      if (g.parts > 1 && !join_parts(u)) continue;
      store();
    }
  }
};

}  // namespace attention

/// The kernel's body. F: scores, O: output.
template <class T, class F, class O>
KF_DEVICE void attend(const Attention<typename F::Params, typename O::Params>& g) {
  using namespace attention;
  extern __shared__ __align__(1024) unsigned char raw[];
  const Shared<T> s(raw);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x & 31;
  constexpr int kWarps = 4 * T::kGroups;  // that multiply
  if (warp == kWarps && lane == 0) prefetch_map(&g.queries), prefetch_map(&g.keys), prefetch_map(&g.values);
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      barrier_init(s.full_keys + 8 * i, 1), barrier_init(s.full_values + 8 * i, 1);
      barrier_init(s.empty_keys + 8 * i, kWarps), barrier_init(s.empty_values + 8 * i, kWarps);
    }
    barrier_init(s.full, 1), barrier_init(s.empty, 32 * kWarps);  // every lane has read which tile it was
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp >= kWarps) {
    if constexpr (T::kGroups > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(T::kFewRegisters));
    if (warp == kWarps && lane == 0) produce<T, F>(g, s);
  } else {
    if constexpr (T::kGroups > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(T::kRegisters));
    Consumer<T, F, O, Attention<typename F::Params, typename O::Params>> consumer{g, s, warp / 4, lane};
    consumer.run();
  }
}

}  // namespace kfusion::device
