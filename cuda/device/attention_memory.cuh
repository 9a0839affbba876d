// What blocks of attention (attention.cuh) do at a time, and how keys and values come to them.
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

}  // namespace attention
}  // namespace kfusion::device
