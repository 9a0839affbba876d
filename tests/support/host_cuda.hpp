// A host that runs generated CUDA kernels: every thread of a block, or of a cluster of blocks, is a fiber, and a
// barrier or a shuffle is a switch to the next one until all of the warp, block or cluster have come there. There is no
// PTX.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __align__(n) alignas(n)
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
inline Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

enum class State { kReady, kAtWarp, kAtTeam, kAtBlock, kAtCluster, kDone };

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(std::size_t{128} << 10);
  Index3 thread;
  unsigned rank;  ///< of its block in the cluster
  State state = State::kReady;
  unsigned team = 1;  ///< threads of that at whose barrier it waits
};
inline std::vector<std::unique_ptr<Fiber>> fibers;
inline ucontext_t scheduler;
inline Fiber* current = nullptr;
inline void (*body)(const void*) = nullptr;
inline const void* argument = nullptr;
constexpr std::size_t kSharedBytes = std::size_t{228} << 10;
constexpr unsigned kMaxThreads = 1024, kMaxBlocks = 16;
alignas(16) inline char shared_of[kMaxBlocks][kSharedBytes];
inline char* shared = nullptr;  ///< of the running fiber's block
inline std::uint32_t words[kMaxBlocks][kMaxThreads];
inline unsigned rank = 0, blocks = 1;

inline void run_fiber() {
  body(argument);
  current->state = State::kDone;
  swapcontext(&current->context, &scheduler);
}

/// Until all of the warp, block or cluster are here; kReady: until others have run.
inline void wait(State at) {
  Fiber* own = current;
  own->state = at;
  swapcontext(&own->context, &scheduler);
}

/// Until all of a team of so many threads of the block are here.
inline void wait_for_team(unsigned threads) {
  current->team = threads;
  wait(State::kAtTeam);
}

/// Makes fibers begin..end ready if all that are not done wait at `at`.
inline void release(unsigned begin, unsigned end, State at) {
  for (unsigned i = begin; i < end; ++i)
    if (fibers[i]->state != at && fibers[i]->state != State::kDone) return;
  for (unsigned i = begin; i < end; ++i)
    if (fibers[i]->state == at) fibers[i]->state = State::kReady;
}

/// Runs each fiber that is ready to its next barrier; false where none is. `first`: number of the first block of those
/// that run together.
inline bool run_ready(unsigned count, unsigned first) {
  bool any = false;
  for (unsigned i = 0; i < count; ++i) {
    if (fibers[i]->state != State::kReady) continue;
    any = true;
    current = fibers[i].get();
    threadIdx = current->thread;
    rank = current->rank;
    blockIdx = {(first + rank) % gridDim.x, (first + rank) / gridDim.x, 0};
    shared = shared_of[rank];
    swapcontext(&scheduler, &current->context);
  }
  return any;
}

inline void run_together(unsigned first) {
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z, all = threads * blocks;
  for (unsigned i = 0; i < all; ++i) {
    if (fibers.size() <= i) fibers.push_back(std::make_unique<Fiber>());
    Fiber& f = *fibers[i];
    f.thread = {i % threads % blockDim.x, i % threads / blockDim.x % blockDim.y,
                i % threads / (blockDim.x * blockDim.y)};
    f.rank = i / threads;
    f.state = State::kReady;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, run_fiber, 0);
  }
  while (run_ready(all, first)) {
    for (unsigned block = 0; block < all; block += threads) {
      for (unsigned i = 0; i < threads; i += 32)
        release(block + i, block + (i + 32 < threads ? i + 32 : threads), State::kAtWarp);
      for (unsigned i = 0, team = 1; i < threads; i += team) {
        const Fiber& f = *fibers[block + i];
        team = f.state == State::kAtTeam ? f.team : 1;
        if (f.state == State::kAtTeam) release(block + i, block + i + team, State::kAtTeam);
      }
      release(block, block + threads, State::kAtBlock);
    }
    release(0, all, State::kAtCluster);
  }
}

inline void run_grid(void (*kernel)(const void*), const void* parameters, const unsigned* grid, const unsigned* block,
                     unsigned together) {
  body = kernel;
  argument = parameters;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  blocks = together;
  for (unsigned first = 0; first < grid[0] * grid[1]; first += blocks) run_together(first);
}

/// Where `p` lies in another block's shared memory.
template <class V>
V* in_block(V* p, unsigned to) {
  return reinterpret_cast<V*>(shared_of[to] + (reinterpret_cast<char*>(p) - shared));
}
template <class V>
void store_to_block(V* p, const V& value, unsigned to) {
  std::memcpy(static_cast<void*>(in_block(p, to)), &value, sizeof value);
}

/// A barrier of device/async.cuh: bytes that are expected, and in the upper half the phases that have ended.
template <class Barrier>
void count(Barrier* b, unsigned bytes) {
  const auto left = static_cast<std::uint32_t>(b->state) + bytes;
  const std::uint64_t phases = (b->state >> 32) + (left == 0);
  b->state = phases << 32 | left;
}
/// Makes a barrier of arrivals: those that are missing, above them all of a phase.
template <class Barrier>
void meet(Barrier* b, unsigned arrivals) {
  b->state = arrivals << 16 | arrivals;
}
template <class Barrier>
void arrive(Barrier* b) {
  const auto all = static_cast<std::uint32_t>(b->state) >> 16,
             missing = (static_cast<std::uint32_t>(b->state) & 0xffff) - 1;
  const std::uint64_t phases = (b->state >> 32) + (missing == 0);
  b->state = phases << 32 | all << 16 | (missing == 0 ? all : missing);
}
template <class Barrier>
void wait_for(Barrier* b, unsigned parity) {
  while ((b->state >> 32 & 1) == parity) wait(State::kReady);
}

inline float float_of_half(std::uint32_t bits) {
  _Float16 x;
  std::memcpy(&x, &bits, 2);
  return x;
}
inline std::uint32_t half_of_float(float x) {
  const auto half = static_cast<_Float16>(x);
  std::uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline void unpack_halves(std::uint32_t word, float& lo, float& hi) {
  lo = float_of_half(word & 0xffff);
  hi = float_of_half(word >> 16);
}
inline std::uint32_t pack_halves(float lo, float hi) { return half_of_float(lo) | half_of_float(hi) << 16; }

}  // namespace host

/// extern "C" `name`: all blocks of a grid, one cluster after the other, or all together.
#define KF_HOST_ENTRY(name, kernel, Parameters)                                                                  \
  extern "C" void name(const void* p, const unsigned* grid, const unsigned* block, unsigned together) {          \
    host::run_grid([](const void* q) { kernel(*static_cast<const Parameters*>(q)); }, p, grid, block, together); \
  }

inline void __syncthreads() { host::wait(host::State::kAtBlock); }
inline void __syncwarp() { host::wait(host::State::kAtWarp); }
inline void __threadfence() {}
inline std::uint32_t __funnelshift_r(std::uint32_t lower, std::uint32_t upper, std::uint32_t shift) {
  return static_cast<std::uint32_t>((std::uint64_t{upper} << 32 | lower) >> shift % 32);
}
inline std::uint32_t __shfl_sync(unsigned, std::uint32_t word, int lane) {
  const unsigned own = threadIdx.y * blockDim.x + threadIdx.x;
  host::words[host::rank][own] = word;
  __syncwarp();
  const std::uint32_t other = host::words[host::rank][own / 32 * 32 + static_cast<unsigned>(lane)];
  __syncwarp();
  return other;
}
inline std::uint32_t __shfl_xor_sync(unsigned, std::uint32_t word, int mask) {
  return __shfl_sync(0, word, static_cast<int>((threadIdx.y * blockDim.x + threadIdx.x) % 32) ^ mask);
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(std::uint64_t{a} * b >> 32); }
inline unsigned __float_as_uint(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline float __int_as_float(int bits) { return __uint_as_float(static_cast<unsigned>(bits)); }
inline unsigned atomicInc(unsigned* p, unsigned last) {
  const unsigned old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}
inline unsigned atomicAdd(unsigned* p, unsigned more) {
  const unsigned old = *p;
  *p += more;
  return old;
}
// Named by headers in code that no generated kernel reaches on a host.
template <class T>
T __shfl_xor_sync(unsigned, T value, int) {
  return value;
}
inline int __double2loint(double) { return 0; }
inline int __double2hiint(double) { return 0; }
inline double __hiloint2double(int, int) { return 0; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline std::size_t __cvta_generic_to_shared(const void* p) { return reinterpret_cast<std::size_t>(p); }
