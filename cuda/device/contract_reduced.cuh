// Products of which each row is reduced where it is made, and no element is stored (contract.cuh).
//
// A thread keeps the state of its rows while the block walks along the columns: rows lie along the products' 64, so the
// elements of a row are spread over four lanes, which join their states when the walk ends. Where a row's columns are
// several parts, walked by several blocks, each part leaves its state in memory, and the block that is the last to come
// by joins them, in their order: results are the same in every run.
//
// The generated struct F:
//   Params, with `char *workspace, *standing` where there are parts; kProducts (1), and
//   struct State { float ...; }       of a row, and static State none()
//   template <bool kWhole, int kPairs, int kAll> static void fold(State&, const Params&, const float (&acc)[kAll],
//       int h, const Point&)          columns col + 8 j and the next; unless kWhole, only those that there are
//   static void join(State&, const State&)
//   static void end(const State&, const Params&, int batch, int row)
#pragma once
#include "device/contract.cuh"

namespace kfusion::device {

/// How many of a lane's columns col + 8 j + x there are.
template <bool kWhole, int kPairs>
KF_DEVICE int elements_of(const Point& at, int x) {
  if (kWhole) return kPairs;
  const int count = (at.cols - at.col - x + 7) / 8;
  return count < 0 ? 0 : count < kPairs ? count : kPairs;
}

template <class T, class F>
struct Reduced {
  using Params = typename F::Params;
  using State = typename F::State;
  using Given = Contraction<Params>;
  static constexpr int kBeside = 1, kProducts = 1, kColumns = 0, kOut = T::kN;
  using SharedMemory = Shared<T, kColumns>;
  static_assert(T::kAcross == 1 && F::kProducts == 1);
  static constexpr int kStateWords = sizeof(State) / 4;

  State state[T::kMma][2];

  static KF_DEVICE int columns(int) { return 0; }
  static KF_DEVICE void deliver(const Given&, const SharedMemory&, int, int, int, int, int) {}
  KF_DEVICE void prepare(const Given&, const SharedMemory&, const Unit&, int) {}
  KF_DEVICE void begin() {
#pragma unroll
    for (int i = 0; i < T::kMma; ++i) state[i][0] = state[i][1] = F::none();
  }

  KF_DEVICE void step(const Given& g, const SharedMemory&, const Unit& u, const Lane& at,
                      float (&acc)[T::kMma][T::kN / 2]) {
    const bool whole = at.col - at.lane % 4 * 2 + T::kN <= g.cols;  // else what the copy engine made up are no elements
#pragma unroll
    for (int i = 0; i < T::kMma; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Point point{u.batch, at.row + 64 * i + 8 * h, at.col, g.rows, g.cols};
        if (whole)
          F::template fold<true, T::kN / 8>(state[i][h], g.epilogue, acc[i], h, point);
        else
          F::template fold<false, T::kN / 8>(state[i][h], g.epilogue, acc[i], h, point);
      }
  }

  static KF_DEVICE State of_lane(const State& s, int distance) {
    u32 word[kStateWords];
    memcpy(word, &s, sizeof s);
#pragma unroll
    for (int i = 0; i < kStateWords; ++i) word[i] = __shfl_xor_sync(~0u, word[i], distance);
    State other;
    memcpy(&other, word, sizeof s);
    return other;
  }

  KF_DEVICE void end(const Given& g, const SharedMemory& s, const Unit& u, const Lane& at) {
#pragma unroll
    for (int i = 0; i < T::kMma; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        F::join(state[i][h], of_lane(state[i][h], 1));
        F::join(state[i][h], of_lane(state[i][h], 2));
        const int row = at.row + 64 * i + 8 * h;
        if (at.lane % 4 != 0 || row >= g.rows) continue;
        if constexpr (F::kParts)
          *part_at(g, u.batch, u.part, row) = state[i][h];
        else
          F::end(state[i][h], g.epilogue, u.batch, row);
      }
    if constexpr (F::kParts) join_parts(g, s, u, at);
  }

  static KF_DEVICE State* part_at(const Given& g, int batch, int part, int row) {
    const i64 line = static_cast<i64>(batch) * g.parts + part;
    return reinterpret_cast<State*>(g.epilogue.workspace) + line * g.rows + row;
  }

  static KF_DEVICE void join_parts(const Given& g, const SharedMemory& s, const Unit& u, const Lane& at) {
    const int thread = at.warp * 32 + at.lane, block = at.row / T::kM, blocks = g.units_m * T::kDown;
    __threadfence();
    threads_meet<2, 32 * T::kWarps>();
    if (thread == 0) {
      u32* const arrived = reinterpret_cast<u32*>(g.epilogue.standing) + static_cast<i64>(u.batch) * blocks + block;
      const bool last = atomicAdd(arrived, 1u) + 1 == static_cast<u32>(g.parts);
      if (last) *arrived = 0;  // for the next launch
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(s.flag), "r"(u32(last)) : "memory");
    }
    threads_meet<2, 32 * T::kWarps>();
    u32 last;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(last) : "r"(s.flag) : "memory");
    if (last) {
      __threadfence();
      const int row = block * T::kM + thread;
      if (thread < T::kM && row < g.rows) {
        State all = F::none();
        for (int part = 0; part < g.parts; ++part) F::join(all, loaded(part_at(g, u.batch, part, row)));
        F::end(all, g.epilogue, u.batch, row);
      }
    }
    threads_meet<2, 32 * T::kWarps>();  // the flag is read before it is written again
  }

  /// Past L1, which may have what was there before.
  static KF_DEVICE State loaded(const State* p) {
    u32 word[kStateWords];
#pragma unroll
    for (int i = 0; i < kStateWords; ++i) word[i] = __ldcg(reinterpret_cast<const unsigned int*>(p) + i);
    State s;
    memcpy(&s, word, sizeof s);
    return s;
  }
};

}  // namespace kfusion::device
