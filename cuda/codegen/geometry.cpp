#include "codegen/geometry.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

namespace kfusion::codegen {
namespace {

constexpr std::int64_t kSlotBytes = 16;  ///< what a lane loads at once
constexpr int kWarp = 32, kMaxCluster = 8;
constexpr std::int64_t kMaxRingRows = std::int64_t{1} << 30;

std::int64_t divide_up(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }
std::int64_t clamp(std::int64_t n, std::int64_t low, std::int64_t high) { return std::max(low, std::min(n, high)); }

/// The most that a row can have.
std::int64_t vectors_of(const Arrangement& a) {
  return divide_up(product(a.inner) + (a.framed() ? a.width - 1 : 0), a.width);
}

/// That of a row which begins with a vector: classes of length end with powers of two, in frames too.
std::int64_t own_vectors_of(const Arrangement& a) { return divide_up(product(a.inner), a.width); }

// ---- what is loaded -------------------------------------------------------------------------------------------------

/// In how many sweeps each load is used, and whether in the first.
struct Uses {
  std::vector<int> sweeps;
  std::vector<bool> in_first;
};

Uses uses_of(const Kernel& k, const Schedule& s) {
  Uses uses{std::vector<int>(k.loads.size(), 0), std::vector<bool>(k.loads.size(), false)};
  for (int sweep = 0; sweep < s.sweeps; ++sweep)
    for (const int i : steps_of(k, s, sweep)) {
      const Step& step = k.steps[static_cast<std::size_t>(i)];
      if (step.kind != StepKind::kLoad) continue;
      ++uses.sweeps[static_cast<std::size_t>(step.index)];
      if (sweep == 0) uses.in_first[static_cast<std::size_t>(step.index)] = true;
    }
  return uses;
}

/// Registers of a thread that the chosen loads of one vector take, in bytes.
std::int64_t bytes_of(const Kernel& k, const Arrangement& a, const std::vector<bool>& chosen) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const std::int64_t lanes = a.loads[i] == Reach::kSplat ? 1 : a.width;
    if (chosen[i]) bytes += std::max<std::int64_t>(4, lanes * static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)));
  }
  return std::max<std::int64_t>(bytes, 4);
}

std::vector<bool> element_loads(const Kernel& k, const Arrangement& a) {
  std::vector<bool> found;
  for (const Operand& o : k.loads) found.push_back(!a.per_row(o));
  return found;
}

/// What is as large as the matrix and used more than once, or at once: it is loaded first and stays in registers.
std::vector<bool> held_loads(const Kernel& k, const Arrangement& a, const Schedule& s) {
  const Uses uses = uses_of(k, s);
  std::vector<bool> held;
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const Extents& outer = a.outer_of(k.loads[i]);
    const bool of_row = outer.empty() || std::ranges::any_of(outer, [](std::int64_t n) { return n != 0; });
    held.push_back(!a.per_row(k.loads[i]) && of_row && (uses.sweeps[i] > 1 || uses.in_first[i]));
  }
  return held;
}

/// How many vectors a thread should have on their way for `bytes` bytes, fewer where much is computed of each.
int vectors_in_flight(const Kernel& k, const Arrangement& a, int bytes, int most) {
  std::int64_t vectors = clamp(bytes / bytes_of(k, a, element_loads(k, a)), 1, most);
  vectors = std::bit_floor(static_cast<std::uint64_t>(vectors));
  while (vectors > 1 && vectors * a.width * static_cast<std::int64_t>(k.steps.size()) > 512) vectors /= 2;
  return static_cast<int>(vectors);
}

// ---- rows -----------------------------------------------------------------------------------------------------------

/// How rows of up to so many bytes are held: `slots` of 16 bytes a lane, in blocks of `warps` warps of which a
/// multiprocessor has registers for `resident`, `blocks` of them a row. Measured (cpp/README.md): few slots leave
/// registers for many threads, many make exchanges rare.
struct Capacity {
  int slots, warps, resident, blocks;
  constexpr std::int64_t row_bytes() const { return kWarp * kSlotBytes * slots * warps * blocks; }
};
constexpr Capacity kCapacities[] = {
    {2, 1, 32, 1},   //   1 KB: less than a warp
    {4, 1, 32, 1},   //   2 KB
    {8, 1, 16, 1},   //   4 KB: the longest row that needs no barrier
    {8, 2, 12, 1},   //   8 KB
    {8, 4, 6, 1},    //  16 KB
    {8, 8, 3, 1},    //  32 KB
    {8, 16, 2, 1},   //  64 KB
    {16, 16, 1, 1},  // 128 KB: a block of a multiprocessor's own
    {8, 16, 1, 2},   // 128 KB: where a lane has at most 8 slots
    {16, 16, 1, 2},  // 256 KB: where rings cannot be used
    {8, 16, 1, 4},   // 256 KB
    {16, 8, 1, 8},   // 512 KB
    {8, 16, 1, 8},   // 512 KB
    {16, 16, 1, 8},  //   1 MB
};
/// 32 bytes in flight a thread in blocks of 128 measured best of 1 to 4 vectors and 128 to 512 threads (H200, 1 GB).
constexpr int kPointwiseThreads = 128;
constexpr int kMaxTeamThreads = 512, kShortRowsThreads = 64, kLongRowsThreads = 256, kSpanThreads = 128;
/// Rows from here on (bytes) go to a warp of their own block, which brings the rows after them to L2.
constexpr std::int64_t kLeastTeamBytes = 1 << 10;
/// Shorter rows have a lane for 32 bytes, others up to a warp's for 64.
constexpr std::int64_t kLeastSharedBytes = 256;
/// A reduction of everything is split over all blocks from here on.
constexpr std::int64_t kSplitBytes = 32 << 10;

/// Bytes that a row takes in registers.
std::int64_t row_bytes(const Kernel& k, const Arrangement& a, const Choice& c) {
  return vectors_of(a) * bytes_of(k, a, c.held);
}

const Capacity* capacity_for(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target) {
  const std::int64_t bytes = row_bytes(k, a, c), vector = bytes_of(k, a, c.held);
  const bool heavy = static_cast<std::int64_t>(k.steps.size()) * c.schedule.sweeps > 48;
  const int max_slots = a.width == 1 || heavy ? 8 : 16, max_blocks = target.clusters ? kMaxCluster : 1;
  const auto* found = std::ranges::find_if(kCapacities, [&](const Capacity& one) {
    const std::int64_t vectors = one.slots * kSlotBytes / vector;
    return one.slots <= max_slots && one.blocks <= max_blocks && vectors > 0 &&
           static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(vectors))) * kWarp * one.warps *
                   one.blocks >=
               own_vectors_of(a);
  });
  const bool split = k.kept.empty() && c.schedule.sweeps == 1 && bytes > kSplitBytes;
  return split ? std::end(kCapacities) : found;
}

/// Functions of doubles take many registers.
bool in_doubles(const Kernel& k) {
  return std::ranges::any_of(k.steps, [](const Step& s) { return s.dtype == DType::kFloat64; });
}

/// It computes much, or needs many registers for what it computes.
bool is_heavy(const Kernel& k) { return in_doubles(k) || k.steps.size() > 24; }

/// In registers of less than a warp, or of a team. What computes much gets more registers, and fewer blocks.
void hold(Choice& c, const Kernel& k, const Arrangement& a, const Capacity& found) {
  const std::int64_t vectors = found.slots * kSlotBytes / bytes_of(k, a, c.held);
  c.vectors = static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(vectors)));
  const bool lean = a.width > 1 && !is_heavy(k);
  if (found.warps > 1 || row_bytes(k, a, c) > kLeastTeamBytes) {
    c.skeleton = Skeleton::kTeamRows;
    c.threads = found.warps * kWarp;
    c.least_blocks = std::max(1, lean ? found.resident : std::min(found.resident, 16 / found.warps));
    if (a.framed()) ++c.vectors;
    return;
  }
  c.skeleton = Skeleton::kShortRows;
  c.threads = kShortRowsThreads;
  c.least_blocks = lean ? 16 : 8;
  const std::int64_t held = row_bytes(k, a, c) > kLeastSharedBytes ? 2 * c.vectors : c.vectors;
  c.lanes = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(divide_up(own_vectors_of(a), held))));
  const std::int64_t each = divide_up(own_vectors_of(a), c.lanes);
  c.vectors = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(each))) + (a.framed() ? 1 : 0);
}

/// What bulk copies can bring: rows of whole 16-byte vectors.
bool can_stage(const Kernel& k, const Arrangement& a, const Choice& c) {
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (c.held[i] && (a.loads[i] != Reach::kDense || !(a.whole || a.framed()) ||
                      a.width * static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)) != kSlotBytes))
      return false;
  return a.inner.size() == 1;
}

/// Read again in every sweep.
void stream(Choice& c, const Kernel& k, const Arrangement& a) {
  c.held.assign(k.loads.size(), false);
  c.vectors = vectors_in_flight(k, a, 64, 4);
  c.threads = kLongRowsThreads;
  c.least_blocks = in_doubles(k) ? 1 : 2;
  c.skeleton = c.schedule.sweeps == 1 ? Skeleton::kSplitRows : Skeleton::kLongRows;
}

/// Teams of `blocks` blocks that stay: `segments` of kSegmentVectors vectors a lane in registers, `stages` more a warp
/// on their way.
struct RingCapacity {
  int segments, warps, resident, blocks, stages;
  constexpr std::int64_t block_bytes() const { return kWarp * kSlotBytes * kSegmentVectors * segments * warps; }
};
constexpr RingCapacity kRings[] = {
    {4, 8, 2, 1, 4}, {4, 16, 1, 1, 4}, {4, 16, 1, 2, 4}, {4, 8, 2, 8, 3}, {4, 16, 1, 8, 4}, {4, 16, 1, 16, 4},
};
constexpr RingCapacity kSpreadRing{4, 16, 1, 0, 4};  ///< as many blocks as there are
/// Up to here (bytes) team_rows() is quicker: another block of the multiprocessor works while one exchanges.
constexpr std::int64_t kLeastRingBytes = 128 << 10;
/// Few rows of at least so many bytes are spread over all multiprocessors.
constexpr std::int64_t kLeastSpreadBytes = 512 << 10;

bool can_ring(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target) {
  const bool is_long = row_bytes(k, a, c) > kLeastRingBytes && product(a.outer) < kMaxRingRows;
  return is_long && target.compute_major >= 9 && c.schedule.sweeps > 1 && can_stage(k, a, c);
}

/// What computes much has half the warps, with twice the registers.
RingCapacity fit(const RingCapacity& ring, const Kernel& k) {
  if (!is_heavy(k)) return ring;
  return {2 * ring.segments, ring.warps / 2, ring.resident, ring.blocks, ring.stages};
}

const RingCapacity* ring_for(std::int64_t bytes, const Target& target) {
  const auto* found = std::ranges::find_if(kRings, [&](const RingCapacity& r) {
    return (r.blocks == 1 || target.clusters) && r.block_bytes() * r.blocks >= bytes;
  });
  return found == std::end(kRings) ? nullptr : found;
}

/// Rows that no cluster holds, and so few that clusters would leave multiprocessors idle.
bool should_spread(std::int64_t rows, std::int64_t bytes, const Target& target) {
  if (!target.clusters || bytes < kLeastSpreadBytes) return false;
  const std::int64_t least = divide_up(bytes, kSpreadRing.block_bytes());
  if (least > target.multiprocessors) return false;
  const RingCapacity* ring = ring_for(bytes, target);
  return ring == nullptr || rows * divide_up(ring->blocks, ring->resident) <= target.multiprocessors;
}

/// False where rows cannot stay in registers.
bool choose_ring(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  if (!can_ring(k, a, c, target)) return false;
  const std::int64_t bytes = row_bytes(k, a, c);
  c.spread = should_spread(product(a.outer), bytes, target);
  const RingCapacity* found = c.spread ? &kSpreadRing : ring_for(bytes, target);
  if (found == nullptr) return false;
  const RingCapacity ring = fit(*found, k);
  c.skeleton = Skeleton::kRingRows;
  c.threads = ring.warps * kWarp;
  c.least_blocks = ring.resident;
  c.vectors = ring.segments;
  return true;
}

/// As few lanes a row as can hold it: what is done once a row costs more than what is done once an element.
void choose_spans(Choice& c, const Kernel& k, const Arrangement& a) {
  constexpr std::int64_t kMostElements = 17;  // as few lanes as for a power of two where it is one element more
  const std::int64_t cols = a.inner[0];
  const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(divide_up(cols, kMostElements)));
  c.skeleton = Skeleton::kSpanRows;
  c.lanes = std::min(static_cast<int>(lanes), kWarp);
  c.vectors = static_cast<int>(divide_up(cols, c.lanes));
  c.threads = kSpanThreads;
  c.least_blocks = is_heavy(k) || c.vectors > 24 ? 4 : 8;
  const auto add = [&](const Operand& o, Reach reach) {
    if (reach == Reach::kStaged) c.held_bytes += static_cast<int>(item_bytes(o.dtype));
  };
  for (std::size_t i = 0; i < k.loads.size(); ++i) add(k.loads[i], a.loads[i]);
  for (std::size_t i = 0; i < k.stores.size(); ++i) add(k.stores[i].to, a.stores[i]);
}

void choose_rows(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  c.schedule = schedule(k, a);
  c.held = held_loads(k, a, c.schedule);
  if (a.spans) {
    choose_spans(c, k, a);
    return;
  }
  if (choose_ring(c, k, a, target)) return;
  const Capacity* found = capacity_for(k, a, c, target);
  if (found == std::end(kCapacities)) {
    stream(c, k, a);
  } else {
    hold(c, k, a, *found);
  }
}

// ---- columns --------------------------------------------------------------------------------------------------------

/// Side by side in a warp, so that the others read 64 bytes or more of what lies across, in vectors that are transposed
/// or, by so many rows a thread, element by element through L1.
constexpr int kAcrossLanes = 8, kAcrossRows = 8;
constexpr std::int64_t kMaxSplits = 65535;  ///< blocks that a grid has along y

/// Bytes of one box of a ColumnExchange.
std::int64_t column_box(std::int64_t across, std::int64_t warps, std::int64_t blocks, std::int64_t partial_bytes) {
  return divide_up((warps + (blocks > 1 ? blocks : 0)) * across * partial_bytes, kSlotBytes) * kSlotBytes;
}

/// Columns in shared memory: vectors of a row, rows of a block, blocks of a cluster; no blocks where there is no room.
struct Tile {
  std::int64_t across = 0, rows = 0, blocks = 0;
  int at_once = 1;  ///< blocks that a multiprocessor has room for
};
constexpr int kTilesAtOnce = 3, kTileThreads = 256;

std::int64_t rows_of_block(std::int64_t rows, std::int64_t blocks, const Choice& c) {
  return divide_up(rows, blocks * c.vectors) * c.vectors;
}

/// 128 bytes of a row, 64 where the columns are too long; some blocks share a multiprocessor if they can,
/// which measured best on an H200.
Tile tile_of(const Arrangement& a, const Choice& c, const Target& target, std::int64_t partial_bytes) {
  constexpr std::int64_t kSystemBytes = 1 << 10;  // that each block takes besides
  const std::int64_t rows = std::max<std::int64_t>(product(a.outer), 1), most = target.clusters ? kMaxCluster : 1;
  for (const auto& [segment, at_once] : {std::pair{128, kTilesAtOnce}, {64, kTilesAtOnce}, {64, 1}}) {
    const std::int64_t room = (target.shared_bytes + kSystemBytes) / at_once - kSystemBytes;
    const std::int64_t across = std::min<std::int64_t>(segment / c.vector_bytes, c.lanes);
    for (std::int64_t blocks = 1; blocks <= most; blocks *= 2) {
      const std::int64_t each = rows_of_block(rows, blocks, c);
      const std::int64_t boxes = 2 * column_box(across, c.threads / kWarp, blocks, partial_bytes);
      if (each * across * c.held_bytes + boxes <= room) return {across, each, blocks, at_once};
    }
  }
  return {};
}

/// At least as much as a partial result takes.
std::int64_t partial_bound(const Kernel& k, const Arrangement& a) {
  return 8 * a.width * std::ranges::count(k.steps, StepKind::kReduce, &Step::kind);
}

/// Kept on chip where another sweep would read them again, and there is room.
bool choose_tile(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  Choice tile = c;
  tile.schedule = schedule(k, a);
  tile.held = held_loads(k, a, tile.schedule);
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (a.loads[i] == Reach::kSplat) tile.held[i] = false;
  if (std::ranges::count(tile.held, true) == 0) return false;
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (tile.held[i])
      tile.vector_bytes = std::max(tile.vector_bytes, a.width * static_cast<int>(item_bytes(k.loads[i].dtype)));
  tile.skeleton = Skeleton::kTiles;
  tile.held_bytes = static_cast<int>(bytes_of(k, a, tile.held));
  const bool heavy = a.width > 4 || in_doubles(k) || k.steps.size() > 24;
  tile.vectors = a.across || heavy ? c.vectors : vectors_in_flight(k, a, 128, 8);
  tile.threads = kTileThreads;
  tile.least_blocks = heavy ? 2 : kTilesAtOnce;
  if (tile_of(a, tile, target, partial_bound(k, a)).blocks == 0) return false;
  c = tile;
  return true;
}

void choose_columns(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  c.schedule = schedule(k, a);
  c.vectors = a.crossed() ? a.width
              : a.across  ? vectors_in_flight(k, a, 256, kAcrossRows)
                          : vectors_in_flight(k, a, 64, 4);
  c.lanes = !a.across ? kWarp : a.width > 1 ? kAcrossLanes : 2 * kAcrossLanes;
  if (c.schedule.sweeps > 1 && choose_tile(c, k, a, target)) return;
  c.skeleton = Skeleton::kColumns;
  c.held.assign(k.loads.size(), false);
  if (c.schedule.sweeps > 1) c.threads = kMaxTeamThreads, c.least_blocks = 1;
  if (partial_bound(k, a) == 0)
    c.threads = kPointwiseThreads, c.least_blocks = c.vectors * bytes_of(k, a, element_loads(k, a)) > 192 ? 2 : 4;
}

// ---- launches -------------------------------------------------------------------------------------------------------

constexpr int kBlocksPerMultiprocessor = 4;  ///< where blocks share a reduction

unsigned unsigned_of(std::int64_t n) { return static_cast<unsigned>(n); }

Division divide_pointwise(const Arrangement& a, const Choice& c) {
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(divide_up(vectors_of(a), std::int64_t{c.threads} * c.vectors));
  return d;
}

Division divide_short_rows(const Arrangement& a, const Choice& c) {
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(divide_up(product(a.outer), c.threads / c.lanes));
  d.geometry = {product(a.outer), 1, 1, 0, 0};
  return d;
}

/// Each block's span begins at a multiple of 16 bytes.
Division divide_spans(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target) {
  constexpr std::int64_t kSpanBytes = 16 << 10;
  const std::int64_t rows = product(a.outer), row_bytes = product(a.inner) * c.held_bytes;
  std::int64_t unit = 1;
  const auto align = [&](const Operand& o, Reach reach) {
    const auto item = static_cast<std::int64_t>(item_bytes(o.dtype));
    if (reach == Reach::kStaged) unit = std::max(unit, kSlotBytes / item);
  };
  for (std::size_t i = 0; i < k.loads.size(); ++i) align(k.loads[i], a.loads[i]);
  for (std::size_t i = 0; i < k.stores.size(); ++i) align(k.stores[i].to, a.stores[i]);
  const std::int64_t shared = rows / (std::int64_t{kBlocksPerMultiprocessor} * target.multiprocessors);
  const std::int64_t each = std::max(std::min(kSpanBytes / row_bytes, shared) / unit, std::int64_t{1}) * unit;
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(divide_up(rows, each));
  d.launch.shared_bytes = static_cast<std::size_t>(kSlotBytes + each * row_bytes);
  d.geometry = {rows, 1, each, 0, 0};
  return d;
}

/// A team of as few warps as hold the row; for few rows it has more blocks, as long as each has some warps.
Division divide_teams(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                      std::size_t partial_bytes) {
  const std::int64_t rows = product(a.outer), most = target.clusters ? kMaxCluster : 1;
  const std::int64_t needed = c.skeleton == Skeleton::kLongRows
                                  ? most * c.threads / kWarp
                                  : divide_up(vectors_of(a), std::int64_t{kWarp} * c.vectors);
  std::int64_t blocks = 1;
  while (blocks < most && needed > blocks * c.threads / kWarp) blocks *= 2;
  while (2 * blocks <= most && rows <= target.multiprocessors / (2 * blocks) && needed >= 8 * blocks) blocks *= 2;
  const std::int64_t warps = divide_up(needed, blocks);
  Division d;
  d.launch.block[0] = unsigned_of(warps * kWarp);
  d.launch.cluster = unsigned_of(blocks);
  d.launch.grid[0] = unsigned_of(std::min<std::int64_t>(rows, (std::int64_t{1} << 30) / blocks) * blocks);
  const std::int64_t box =
      divide_up(static_cast<std::int64_t>(partial_bytes) * warps * blocks, kSlotBytes) * kSlotBytes;
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
  // About as many rows further on as are in flight, but no more than L2 keeps until they are read.
  const std::int64_t resident = std::max<std::int64_t>(1, c.least_blocks * c.threads / (warps * kWarp));
  const std::int64_t in_flight = resident * target.multiprocessors / blocks;
  const std::int64_t in_l2 = target.l2_bytes / 6 / std::max<std::int64_t>(row_bytes(k, a, c), 1);
  d.geometry = {rows, warps * blocks, 1, box, std::max<std::int64_t>(1, std::min(in_flight, in_l2))};
  return d;
}

/// Blocks of a team: of a cluster, or, where they are spread, as many as each row can have of all.
std::int64_t ring_blocks(const RingCapacity& ring, bool spread, std::int64_t rows, std::int64_t bytes,
                         const Target& target) {
  if (!spread) return ring.blocks;
  const std::int64_t least = divide_up(bytes, ring.block_bytes()), all = target.multiprocessors;
  return std::max(least, all / std::max<std::int64_t>(rows, 1));
}

Division divide_ring(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                     std::size_t partial_bytes) {
  const std::int64_t rows = product(a.outer), bytes = row_bytes(k, a, c);
  const RingCapacity ring = fit(c.spread ? kSpreadRing : *ring_for(bytes, target), k);
  const std::int64_t blocks = ring_blocks(ring, c.spread, rows, bytes, target);
  const std::int64_t room = divide_up(static_cast<std::int64_t>(partial_bytes) + 4, kSlotBytes) * kSlotBytes;
  const std::int64_t teams = std::min<std::int64_t>(rows, target.multiprocessors * ring.resident / blocks);
  const std::int64_t stage = kWarp * kSegmentVectors * bytes_of(k, a, c.held);
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.cluster = unsigned_of(c.spread ? 1 : blocks);
  d.launch.grid[0] = unsigned_of(teams * blocks);
  d.launch.resident = !c.spread;
  d.launch.cooperative = c.spread;
  d.launch.shared_bytes = static_cast<std::size_t>(ring.warps * ring.stages * (stage + 8) + kSlotBytes +
                                                   (ring.warps + 1 + (c.spread ? 1 : 2) * blocks) * room + kSlotBytes);
  d.launch.workspace_bytes = static_cast<std::size_t>(16 + (c.spread ? teams * blocks * room * 4 : 0));
  d.launch.workspace_zeroed = c.spread || rows > teams;  // at least half as many teams run as were asked for
  d.geometry = {rows, 0, blocks, room, ring.stages};
  return d;
}

/// Blocks that share a row, each with at least one chunk: a number that depends on sizes and device only.
Division divide_splits(const Arrangement& a, const Choice& c, const Target& target, std::size_t partial_bytes) {
  const std::int64_t rows = product(a.outer);
  const std::int64_t chunks = divide_up(vectors_of(a), std::int64_t{c.threads} * c.vectors);
  const std::int64_t blocks = std::int64_t{kBlocksPerMultiprocessor} * target.multiprocessors;
  const std::int64_t splits = clamp(blocks / std::max<std::int64_t>(rows, 1), 1, std::max<std::int64_t>(chunks, 1));
  Division d;
  d.launch.block[0] = unsigned_of(c.threads);
  d.launch.grid[0] = unsigned_of(rows * splits);
  const std::int64_t box =
      divide_up(static_cast<std::int64_t>(partial_bytes) * c.threads / kWarp, kSlotBytes) * kSlotBytes;
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
  if (splits > 1) {
    d.launch.workspace_bytes = static_cast<std::size_t>(rows) * (16 + static_cast<std::size_t>(splits) * partial_bytes);
    d.launch.workspace_zeroed = true;
  }
  d.geometry = {rows, c.threads / kWarp, splits, box, 0};
  return d;
}

Division divide_columns(const Arrangement& a, const Choice& c, const Target& target, std::size_t partial_bytes) {
  const std::int64_t vectors = vectors_of(a), rows = product(a.outer);
  const std::int64_t across = std::bit_ceil(static_cast<std::uint64_t>(clamp(vectors, 1, c.lanes)));
  std::int64_t down = c.threads / across;
  while (across * down > kWarp && down >= 2 * rows) down /= 2;
  const std::int64_t tiles = divide_up(vectors, across);
  const std::int64_t blocks = std::int64_t{kBlocksPerMultiprocessor} * target.multiprocessors;
  const std::int64_t most = std::max<std::int64_t>(divide_up(rows, down * c.vectors), 1);
  const std::int64_t splits = partial_bytes == 0       ? std::min(most, kMaxSplits)
                              : c.schedule.sweeps == 1 ? clamp(blocks / std::max<std::int64_t>(tiles, 1), 1, most)
                                                       : 1;
  Division d;
  d.launch.block[0] = unsigned_of(across);
  d.launch.block[1] = unsigned_of(down);
  d.launch.grid[0] = unsigned_of(tiles);
  d.launch.grid[1] = unsigned_of(splits);
  const std::int64_t box = column_box(across, across * down / kWarp, 1, static_cast<std::int64_t>(partial_bytes));
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
  if (splits > 1 && partial_bytes > 0) {
    d.launch.workspace_bytes =
        static_cast<std::size_t>(tiles) * (16 + static_cast<std::size_t>(splits * across) * partial_bytes);
    d.launch.workspace_zeroed = true;
  }
  d.geometry = {rows, down, splits, box, 0};
  return d;
}

/// Short columns side by side, so that a tile has enough bytes; few columns in more blocks.
Division divide_tiles(const Arrangement& a, const Choice& c, const Target& target, std::size_t partial_bytes) {
  constexpr std::int64_t kTileBytes = 32 << 10;
  const auto part = static_cast<std::int64_t>(partial_bytes);
  const std::int64_t vectors = vectors_of(a), rows = product(a.outer), most = target.clusters ? kMaxCluster : 1;
  Tile tile = tile_of(a, c, target, part);
  const auto count = [&] { return divide_up(vectors, tile.across); };
  while (tile.across < c.lanes && 2 * rows * tile.across * c.held_bytes <= kTileBytes &&
         count() > 2 * kBlocksPerMultiprocessor * target.multiprocessors)
    tile.across *= 2;
  while (tile.across > 1 && tile.across >= 2 * vectors) tile.across /= 2;
  while (tile.blocks < most && 2 * tile.blocks * count() <= target.multiprocessors &&
         rows * tile.across >= 2 * tile.blocks * c.threads)
    tile.blocks *= 2;
  tile.rows = rows_of_block(rows, tile.blocks, c);
  std::int64_t down = c.threads / tile.across;
  while (down > kMaxCluster && tile.across * down > kWarp && 2 * down * c.vectors > tile.rows) down /= 2;
  const std::int64_t box = column_box(tile.across, tile.across * down / kWarp, tile.blocks, part);
  Division d;
  d.launch.block[0] = unsigned_of(tile.across);
  d.launch.block[1] = unsigned_of(down);
  d.launch.cluster = unsigned_of(tile.blocks);
  d.launch.grid[0] = unsigned_of(count() * tile.blocks);
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box + tile.rows * tile.across * c.held_bytes);
  const std::int64_t ahead = tile.at_once > 1 ? tile.at_once * target.multiprocessors / tile.blocks : 0;
  d.geometry = {rows, down, tile.rows, box, ahead};
  return d;
}

}  // namespace

Choice choose(const Kernel& k, const Arrangement& a, const Target& target) {
  Choice c;
  if (a.form == Form::kRows) {
    choose_rows(c, k, a, target);
    return c;
  }
  if (a.form == Form::kColumns) {
    choose_columns(c, k, a, target);
    return c;
  }
  c.schedule = schedule(k, a);
  c.skeleton = Skeleton::kPointwise;
  c.held = element_loads(k, a);
  c.vectors = vectors_in_flight(k, a, 32, 4);
  c.threads = kPointwiseThreads;
  c.least_blocks = 4;
  return c;
}

Division divide(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target,
                std::size_t partial_bytes) {
  Division d = c.skeleton == Skeleton::kPointwise   ? divide_pointwise(a, c)
               : c.skeleton == Skeleton::kShortRows ? divide_short_rows(a, c)
               : c.skeleton == Skeleton::kRingRows  ? divide_ring(k, a, c, target, partial_bytes)
               : c.skeleton == Skeleton::kSpanRows  ? divide_spans(k, a, c, target)
               : c.skeleton == Skeleton::kSplitRows ? divide_splits(a, c, target, partial_bytes)
               : c.skeleton == Skeleton::kColumns   ? divide_columns(a, c, target, partial_bytes)
               : c.skeleton == Skeleton::kTiles     ? divide_tiles(a, c, target, partial_bytes)
                                                    : divide_teams(k, a, c, target, partial_bytes);
  return d;
}

}  // namespace kfusion::codegen
