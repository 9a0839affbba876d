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
#include "device/attention_memory.cuh"

namespace kfusion::device {
namespace attention {

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
