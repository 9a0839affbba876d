// From a RowProblem to a launch: which access the operands allow, and how many threads, blocks and slots hold a row.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>

#include "device/row.cuh"
#include "host/runtime.hpp"
#include "kfusion/rows.hpp"

namespace kfusion::cuda {

static_assert(kMaxOuter == device::kMaxOuter);

template <DType>
struct ElementOf;
template <>
struct ElementOf<DType::kFloat16> {
  using type = device::half_t;
};
template <>
struct ElementOf<DType::kBFloat16> {
  using type = device::bfloat16_t;
};
template <>
struct ElementOf<DType::kFloat32> {
  using type = float;
};
template <>
struct ElementOf<DType::kFloat64> {
  using type = double;
};

inline std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

// ---- operands -------------------------------------------------------------------------------------------------------

inline device::Rows rows_of(const RowProblem& p) {
  device::Rows m;
  m.rows = p.rows;
  m.cols = p.cols;
  m.x = reinterpret_cast<const char*>(p.x.data);
  m.y = reinterpret_cast<char*>(p.y.data);
  m.x_col = p.x.col_stride;
  m.y_col = p.y.col_stride;
  m.outer_ndim = p.outer_ndim;
  for (int d = 0; d < p.outer_ndim; ++d) {
    m.outer_shape[d] = p.outer_shape[d];
    m.x_outer[d] = p.x.outer_strides[d];
    m.y_outer[d] = p.y.outer_strides[d];
  }
  return m;
}

inline device::Column column_of(const ColOperand& c) {
  return {reinterpret_cast<const char*>(c.data), c.stride, c.dtype == DType::kFloat32, -1};
}

inline bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % sizeof(device::Slot) == 0; }

/// Whether every row of `m` is whole, aligned slots.
inline bool in_slots(const RowProblem& p, const RowOperand& m) {
  const auto item = static_cast<std::int64_t>(item_bytes(p.dtype));
  const auto slot = static_cast<std::int64_t>(sizeof(device::Slot));
  if (!aligned(m.data) || p.cols * item % slot != 0 || m.col_stride != item) return false;
  for (int d = 0; d < p.outer_ndim; ++d) {
    if (p.outer_shape[d] > 1 && m.outer_strides[d] % slot != 0) return false;
  }
  return true;
}
inline bool in_slots(const ColOperand& c) {
  return !c.data || (aligned(c.data) && c.stride == static_cast<std::int64_t>(item_bytes(c.dtype)));
}

/// Whether the parameters of `p` that are present are of type `t`.
inline bool stored_as(const RowProblem& p, DType t) {
  return (!p.weight.data || p.weight.dtype == t) && (!p.bias.data || p.bias.dtype == t);
}

// ---- configurations -------------------------------------------------------------------------------------------------

/// How a team holds a row.
struct RowConfig {
  device::Fit fit;
  int slots;   ///< a lane: K of the kernel
  int lanes;   ///< of a warp that share a row
  int warps;   ///< of a block
  int blocks;  ///< of a team
  int chunks;  ///< of a row

  int team_warps() const { return fit == device::Fit::kWarp ? 1 : warps * blocks; }
  int rows_per_team() const { return fit == device::Fit::kWarp ? warps * (32 / lanes) : 1; }
};

inline constexpr int kMaxWarps = device::kMaxThreads / 32;

/// Teams of `blocks` blocks of up to `warps` warps with `slots` slots a lane. Few slots leave registers for many
/// threads and so for many rows in flight; many slots keep a long row in few blocks.
struct Capacity {
  int slots, warps, blocks;
  constexpr std::int64_t row_bytes() const {
    return static_cast<std::int64_t>(32 * sizeof(device::Slot)) * slots * warps * blocks;
  }
};
/// A row is held by the first team that is large enough and possible. (Elements that are accessed one by one count as
/// if they were packed.)
inline constexpr Capacity kCapacities[] = {
    {2, 1, 1},     //   1 KB
    {4, 1, 1},     //   2 KB
    {8, 1, 1},     //   4 KB: the longest row that needs no barrier
    {4, 16, 1},    //  32 KB
    {8, 16, 1},    //  64 KB
    {16, 16, 1},   // 128 KB: a block of an SM's own; clusters of smaller blocks measured 0.85 to 0.93 of it
    {8, 16, 2},    // 128 KB: where a lane has at most 8 slots
    {16, 16, 2},   // 256 KB: from here on clusters
    {8, 16, 4},    // 256 KB
    {16, 8, 8},    // 512 KB: four blocks of twice the warps measured 0.96 of it
    {8, 16, 8},    // 512 KB
    {16, 16, 4},   // 512 KB: where a cluster has at most four blocks
    {16, 16, 8},   //   1 MB
    {8, 16, 16},   //   1 MB
    {16, 16, 16},  //   2 MB
};
/// Longer rows go in chunks through teams of this many slots and warps and all blocks that a cluster can have.
inline constexpr int kChunkSlots = 8, kChunkWarps = 8;
/// For few rows a team grows while its blocks keep this many bytes each.
inline constexpr std::int64_t kLeastBlockBytes = 16 << 10;
inline constexpr int kFewRowsSlots = 4;  ///< and its warps become more, with fewer slots a lane

/// A warp or less for rows of `row_bytes`, `slots` a lane.
inline RowConfig in_a_warp(std::int64_t row_bytes, int slots) {
  int lanes = 1;
  while (lanes * slots * static_cast<std::int64_t>(sizeof(device::Slot)) < row_bytes) lanes *= 2;
  return {device::Fit::kWarp, slots, lanes, device::kWarpRowsThreads / 32, 1, 1};
}

/// A team of up to `c.warps` * `c.blocks` warps, as few as hold the row; in chunks where they do not.
inline RowConfig in_a_team(std::int64_t row_bytes, const Capacity& c) {
  const std::int64_t needed = divide_up(row_bytes, Capacity{c.slots, 1, 1}.row_bytes());
  const auto warps = std::min<std::int64_t>(divide_up(needed, c.blocks), c.warps);
  const std::int64_t chunks = divide_up(needed, warps * c.blocks);
  return {chunks > 1 ? device::Fit::kChunks : device::Fit::kTeam,
          c.slots,
          32,
          static_cast<int>(warps),
          c.blocks,
          static_cast<int>(chunks)};
}

/// More blocks for `c` while there are fewer teams than the device can run and each block keeps enough of the row.
inline Capacity spread(Capacity c, std::int64_t rows, std::int64_t row_bytes, int max_blocks, int multiprocessors) {
  while (2 * c.blocks <= max_blocks && rows <= multiprocessors / (2 * c.blocks) &&
         row_bytes >= kLeastBlockBytes * 2 * c.blocks) {
    c.blocks *= 2;
  }
  return c;
}

/// The team that holds rows of `row_bytes` bytes, from kernels of up to `max_slots` slots in clusters of up to
/// `max_blocks` blocks. Depends on the problem (shape, strides, alignment) and the device only, so that results do not
/// change from run to run.
inline RowConfig choose(std::int64_t rows, std::int64_t row_bytes, int max_slots, int max_blocks, int multiprocessors) {
  const auto fits = [&](const Capacity& c) {
    return c.slots <= max_slots && c.blocks <= max_blocks && row_bytes <= c.row_bytes();
  };
  const Capacity* found = std::find_if(std::begin(kCapacities), std::end(kCapacities), fits);
  if (found == std::end(kCapacities)) return in_a_team(row_bytes, {kChunkSlots, kChunkWarps, max_blocks});
  if (found->warps == 1) return in_a_warp(row_bytes, found->slots);
  Capacity c = spread(*found, rows, row_bytes, max_blocks, multiprocessors);
  const bool few = rows <= multiprocessors / c.blocks;
  c.warps = few ? kMaxWarps : c.warps;
  while (few && c.slots > kFewRowsSlots && Capacity{c.slots / 2, c.warps, c.blocks}.row_bytes() >= row_bytes) {
    c.slots /= 2;
  }
  return in_a_team(row_bytes, c);
}

/// The same for a kernel that only reduces, so that rows need not fit and blocks can stay small.
inline RowConfig choose_reduction(std::int64_t rows, std::int64_t row_bytes, int slots, int max_blocks,
                                  int multiprocessors) {
  constexpr int kWarps = 8;
  if (row_bytes <= Capacity{slots, 1, 1}.row_bytes()) return in_a_warp(row_bytes, slots);
  RowConfig config = in_a_team(row_bytes, spread({slots, kWarps, 1}, rows, row_bytes, max_blocks, multiprocessors));
  config.fit = device::Fit::kChunks;
  return config;
}

/// The largest cluster for the kernels of one `Family`, asked once per device of the one that needs most.
template <class Family>
int max_blocks(const void* kernel, int device) {
  static std::array<std::atomic<int>, kMaxDevices> known{};
  std::atomic<int>& blocks = known[static_cast<std::size_t>(device)];
  if (blocks == 0) {
    const int largest = max_cluster(kernel, device::kMaxThreads, device);
    blocks = largest >= 16 ? 16 : largest >= 8 ? 8 : largest >= 4 ? 4 : 1;
  }
  return blocks;
}

template <class Value>
std::size_t exchange_bytes(const RowConfig& config) {
  return 2 * sizeof(Value) * static_cast<std::size_t>(config.team_warps());
}

/// Launches a kernel whose parameters are Rows, `arguments` and Geometry, and whose teams exchange a Value behind the
/// `kept_bytes` of parameters that a block keeps.
template <class Value, class... Arguments>
void launch_rows(const void* kernel, const RowConfig& config, int kept_bytes, int device, Stream stream,
                 const device::Rows& m, Arguments&... arguments) {
  device::Geometry geometry{config.lanes, config.team_warps(), config.chunks, kept_bytes};
  const Launch one{kernel, 32 * config.warps, config.blocks, kept_bytes + exchange_bytes<Value>(config)};
  std::int64_t teams = divide_up(m.rows, config.rows_per_team());
  // Clusters start only when all their blocks find room: those that run keep it and go through the rows, and so do
  // blocks that keep parameters.
  if (config.blocks > 1 || kept_bytes > 0) teams = std::min(teams, resident_teams(one, device));
  void* all[] = {const_cast<device::Rows*>(&m), &arguments..., &geometry};
  launch(one, teams, all, stream);
}

}  // namespace kfusion::cuda
