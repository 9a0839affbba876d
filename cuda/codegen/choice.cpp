#include "codegen/choice.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

#include "codegen/capacity.hpp"
#include "kfusion/lower/schedule.hpp"

namespace kfusion::codegen {
namespace {

// ---- what is loaded -------------------------------------------------------------------------------------------------

/// In how many sweeps each load is used, and whether in the first.
struct Uses {
  std::vector<int> sweeps;
  std::vector<bool> in_first;
};

Uses uses_of(const Kernel& k) {
  Uses uses{std::vector<int>(k.loads.size(), 0), std::vector<bool>(k.loads.size(), false)};
  for (int sweep = 0; sweep < k.paired.sweeps; ++sweep)
    for (const int i : element_steps(k, sweep)) {
      const Step& step = k.steps[static_cast<std::size_t>(i)];
      if (step.kind != StepKind::kLoad) continue;
      ++uses.sweeps[static_cast<std::size_t>(step.index)];
      if (sweep == 0) uses.in_first[static_cast<std::size_t>(step.index)] = true;
    }
  return uses;
}

std::vector<bool> element_loads(const Kernel& k, const Arrangement& a) {
  std::vector<bool> found;
  for (const Operand& o : k.loads) found.push_back(!a.per_row(o));
  return found;
}

/// What is as large as the matrix and used more than once, or at once: it is loaded first and stays in registers.
std::vector<bool> held_loads(const Kernel& k, const Arrangement& a) {
  const Uses uses = uses_of(k);
  std::vector<bool> held;
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const Extents& outer = a.outer_of(k.loads[i]);
    const bool of_row = outer.empty() || std::ranges::any_of(outer, [](std::int64_t n) { return n != 0; });
    held.push_back(!a.per_row(k.loads[i]) && of_row && (uses.sweeps[i] > 1 || uses.in_first[i]));
  }
  return held;
}

/// Whether sweeps load more than what is held: weights, and the like.
bool fetches(const Choice& c, const Kernel& k, const Arrangement& a) {
  return std::ranges::count(element_loads(k, a), true) > std::ranges::count(c.held, true);
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
/// multiprocessor has registers for `resident`, `blocks` of them a row. Measured (results/kernels.md): few slots leave
/// registers for many threads, many make exchanges rare.
struct Capacity {
  int slots, warps, resident, blocks;
  bool light = false;  ///< for vectors of four elements that need not be shifted: else warps have too much to do
  constexpr std::int64_t row_bytes() const { return kWarp * kSlotBytes * slots * warps * blocks; }
};
constexpr Capacity kCapacities[] = {
    {2, 1, 32, 1},                       //   1 KB: less than a warp
    {4, 1, 32, 1},                       //   2 KB
    {4, 2, 16, 1, true}, {8, 1, 16, 1},  //   4 KB
    {4, 4, 8, 1, true},  {8, 2, 16, 1},  //   8 KB
    {8, 4, 8, 1},                        //  16 KB
    {8, 8, 4, 1},                        //  32 KB
    {8, 16, 2, 1},                       //  64 KB
    {16, 16, 1, 1},                      // 128 KB: a block of a multiprocessor's own
    {8, 16, 1, 2},                       // 128 KB: where a lane has at most 8 slots
    {16, 16, 1, 2},                      // 256 KB: where rings cannot be used
    {8, 16, 1, 4},                       // 256 KB
    {16, 8, 1, 8},                       // 512 KB
    {8, 16, 1, 8},                       // 512 KB
    {16, 16, 1, 8},                      //   1 MB
};
constexpr int kMaxTeamThreads = 512, kShortRowsThreads = 64, kLongRowsThreads = 256, kSpanThreads = 128;
/// In frames, longer rows (bytes) have a block of their own even if a warp holds them.
constexpr std::int64_t kMostFramedBytes = 1 << 10;
/// Few longer rows have several blocks each.
constexpr std::int64_t kLeastFewBytes = 4 << 10;
/// Longer rows (bytes) no block of a multiprocessor's own holds; shorter ones have no rings, however many they are.
constexpr std::int64_t kMostTeamBytes = 128 << 10, kLeastRingBytes = 64 << 10;
/// Shorter rows have a lane for 32 bytes, others up to a warp's for 64.
constexpr std::int64_t kLeastSharedBytes = 256;
/// A reduction of everything is split over all blocks from here on.
constexpr std::int64_t kSplitBytes = 32 << 10;

const Capacity* capacity_for(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target) {
  const std::int64_t bytes = row_bytes(k, a, c), vector = bytes_of(k, a, c.held);
  const bool heavy = static_cast<std::int64_t>(k.steps.size()) * k.paired.sweeps > 48;
  const int max_slots = a.width == 1 || heavy ? 8 : 16, max_blocks = target.clusters ? kMaxCluster : 1;
  const bool light = a.width == 4 && !(a.framed() && fetches(c, k, a));
  const auto* found = std::ranges::find_if(kCapacities, [&](const Capacity& one) {
    const std::int64_t vectors = one.slots * kSlotBytes / vector;
    return one.slots <= max_slots && one.blocks <= max_blocks && vectors > 0 && (!one.light || light) &&
           static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(vectors))) * kWarp * one.warps *
                   one.blocks >=
               vectors_of(a);
  });
  const bool split = k.kept.empty() && k.paired.sweeps == 1 && bytes > kSplitBytes;
  return split ? std::end(kCapacities) : found;
}

/// Whether a row waits for memory while nothing else of its multiprocessor is on the way: then rows further on are
/// brought to L2. Else they load as they come.
bool looks_ahead(const Choice& c, const Kernel& k, const Arrangement& a) {
  return c.threads == kWarp || (c.least_blocks == 1 && fetches(c, k, a));
}

/// In registers of less than a warp, or of a team. What computes much gets more registers, and fewer blocks.
void hold(Choice& c, const Kernel& k, const Arrangement& a, const Capacity& found) {
  const std::int64_t vectors = found.slots * kSlotBytes / bytes_of(k, a, c.held);
  c.vectors = static_cast<int>(std::bit_floor(static_cast<std::uint64_t>(vectors)));
  const bool lean = a.width > 1 && !is_heavy(k);
  if (found.warps > 1 || (a.framed() && row_bytes(k, a, c) > kMostFramedBytes)) {
    const bool shifts = a.framed() && fetches(c, k, a) && found.warps > 1;  // which takes registers
    const int resident = shifts ? (3 * found.resident + 3) / 4 : found.resident;
    c.skeleton = Skeleton::kTeamRows;
    c.threads = found.warps * kWarp;
    c.least_blocks = std::max(1, lean ? resident : std::min(found.resident, 16 / found.warps));
    c.ahead = looks_ahead(c, k, a);
    return;
  }
  c.skeleton = Skeleton::kShortRows;
  c.threads = kShortRowsThreads;
  const std::int64_t slots = row_bytes(k, a, c) > kLeastSharedBytes ? 4 : 2;
  const std::int64_t held = std::max<std::int64_t>(slots * kSlotBytes / bytes_of(k, a, c.held), 1);
  const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(divide_up(vectors_of(a), held)));
  c.lanes = std::min(static_cast<int>(lanes), kWarp);
  const std::int64_t each = divide_up(vectors_of(a), c.lanes);
  c.vectors = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(each)));
  c.least_blocks = !lean ? 8 : each > held ? 12 : 16;
}

/// Rows so few that each can have multiprocessors of its own: a lane has little of them, so that little is computed one
/// after the other.
bool choose_few(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  constexpr std::int64_t kFewSlots = 2;
  const std::int64_t bytes = row_bytes(k, a, c);
  if (k.paired.sweeps == 1 || a.framed() || bytes <= kLeastFewBytes || bytes > kMostTeamBytes) return false;
  const std::int64_t vectors = std::max<std::int64_t>(kFewSlots * kSlotBytes / bytes_of(k, a, c.held), 1);
  const std::int64_t threads = divide_up(vectors_of(a), kWarp * vectors) * kWarp;
  const std::int64_t blocks = divide_up(threads, kMaxTeamThreads);
  if (blocks > (target.clusters ? kMaxCluster : 1) || product(a.outer) * blocks > target.multiprocessors) return false;
  c.skeleton = Skeleton::kTeamRows;
  c.threads = kMaxTeamThreads;
  c.least_blocks = 1;
  c.vectors = static_cast<int>(vectors);
  return true;
}

/// What bulk copies can bring: rows of whole 16-byte vectors.
bool is_copied(const Kernel& k, const Arrangement& a, std::size_t i) {
  return a.loads[i] == Reach::kDense && a.whole &&
         a.width * static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)) == kSlotBytes;
}

bool can_stage(const Kernel& k, const Arrangement& a, const Choice& c) {
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (c.held[i] && !is_copied(k, a, i)) return false;
  return a.inner.size() == 1 && std::ranges::count(c.held, true) > 0;
}

/// Weights and the like: the same for all rows.
std::vector<int> shared_loads(const Kernel& k, const Arrangement& a, const Choice& c) {
  std::vector<int> shared;
  for (std::size_t i = 0; i < k.loads.size() && !a.framed(); ++i) {
    const bool of_row = std::ranges::any_of(a.outer_of(k.loads[i]), [](std::int64_t n) { return n != 0; });
    if (!c.held[i] && !a.per_row(k.loads[i]) && !of_row && is_copied(k, a, i)) shared.push_back(static_cast<int>(i));
  }
  return shared;
}

/// Read again in every sweep.
void stream(Choice& c, const Kernel& k, const Arrangement& a) {
  c.held.assign(k.loads.size(), false);
  c.vectors = vectors_in_flight(k, a, 64, 4);
  c.threads = kLongRowsThreads;
  c.least_blocks = in_doubles(k) ? 1 : 2;
  c.skeleton = k.paired.sweeps == 1 ? Skeleton::kSplitRows : Skeleton::kLongRows;
}

constexpr std::int64_t kMaxRingRows = std::int64_t{1} << 30;

bool can_ring(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target) {
  return target.compute_major >= 9 && product(a.outer) < kMaxRingRows && k.paired.sweeps > 1 && can_stage(k, a, c);
}

RingNeeds ring_needs(const Kernel& k, const Arrangement& a, const Choice& c) {
  return {row_bytes(k, a, c), bytes_of(k, a, c.held), shared_loads(k, a, c).size(),
          !a.framed(),        a.width == 4,           fetches(c, k, a)};
}

/// Whether rings are quicker than team_rows(), where another block of the multiprocessor works while one exchanges.
bool should_ring(const RingNeeds& needs, std::int64_t rows, const Target& target) {
  if (needs.bytes > kMostTeamBytes) return true;
  const bool suits = needs.whole ? needs.single() || needs.light : needs.single() && !needs.fetches;
  return needs.bytes > kLeastRingBytes && suits && target.clusters && rows > target.multiprocessors;
}

/// Rows that no cluster holds, or so few that clusters would leave multiprocessors idle.
bool are_few(const RingCapacity* ring, std::int64_t rows, const Target& target) {
  if (!target.clusters) return false;
  return ring == nullptr || rows * divide_up(ring->shape.blocks, ring->shape.resident) <= target.multiprocessors;
}

/// Keeps operands that all rows share in shared memory: as many segments of a warp as there is room for, but of several
/// operands of more than four elements a vector whole ones. Where there are several, or vectors are long, two stages
/// are enough.
void keep_shared(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  RingShape ring = c.ring;
  c.shared = shared_loads(k, a, c);
  if (c.shared.size() > 1 || a.width > 4) ring.stages = std::min(ring.stages, kLeastRingStages);
  const std::int64_t room = shared_bytes_of(ring.resident, target) -
                            ring_bytes(ring, c.spread, exchange_room(partial_bound(k)), bytes_of(k, a, c.held));
  const auto segments = [&](std::size_t operands) {
    const std::int64_t most = room / (kept_bytes(ring, 1) * static_cast<std::int64_t>(operands));
    return static_cast<int>(clamp(most, 0, ring.segments));
  };
  std::size_t operands = c.spread ? 0 : c.shared.size();
  while (operands > 1 && segments(operands) < (a.width > 4 ? ring.segments : 1)) --operands;
  c.kept = operands == 0 ? 0 : segments(operands);
  c.shared.resize(c.kept > 0 ? operands : 0);
}

/// False where rows cannot stay in registers.
bool choose_ring(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  const std::int64_t rows = product(a.outer);
  const RingNeeds needs = ring_needs(k, a, c);
  if (!can_ring(k, a, c, target) || !should_ring(needs, rows, target)) return false;
  const RingCapacity* found = ring_for(needs, target);
  const std::int64_t least = divide_up(needs.bytes, kSpreadRing.block_bytes());
  const bool spread = needs.bytes > kMostTeamBytes && are_few(found, rows, target) && least <= target.multiprocessors;
  if (spread) found = &kSpreadRing;
  if (found == nullptr) return false;
  const RingShape ring = fit(*found, k, needs, rows, target);
  RingShape least_stages = ring;
  least_stages.stages = std::min(ring.stages, kLeastRingStages);
  if (ring_bytes(least_stages, spread, exchange_room(partial_bound(k)), needs.held_bytes) > target.shared_bytes)
    return false;
  c.skeleton = Skeleton::kRingRows;
  c.ring = ring;
  c.spread = spread;
  c.threads = ring.warps * kWarp;
  c.least_blocks = ring.resident;
  keep_shared(c, k, a, target);
  return true;
}

/// Few rows, each at once in the registers and the shared memory of blocks anywhere. False where there is no room.
bool choose_spread(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  constexpr std::int64_t kLeastRoom = 16 << 10;  // besides stages: so classes of length end with powers of two
  const RingNeeds needs = ring_needs(k, a, c);
  if (!can_ring(k, a, c, target) || needs.bytes <= kMostTeamBytes) return false;
  if (!are_few(ring_for(needs, target), product(a.outer), target)) return false;
  Choice spread = c;
  spread.skeleton = Skeleton::kSpreadRows;
  spread.threads = is_heavy(k) ? kSpreadThreads / 2 : kSpreadThreads;
  spread.least_blocks = 1;
  const std::int64_t bytes = bytes_of(k, a, c.held);
  for (const std::int64_t slots : {4, 8}) {
    spread.vectors = static_cast<int>(std::max<std::int64_t>(slots * kSlotBytes / bytes, 1));
    const SpreadCapacity found = spread_of(a, spread, target);
    const std::int64_t all = spread_bytes(found, spread.threads, exchange_room(partial_bound(k)), bytes);
    const std::int64_t staged = found.staged * spread.threads * bytes;
    if (found.blocks == 0 || staged + std::max(all - staged, kLeastRoom) > target.shared_bytes) continue;
    c = spread;
    c.staged = found.staged > 0;
    return true;
  }
  return false;
}

void choose_packed(Choice& c, const Kernel& k, const Arrangement& a) {
  c.skeleton = Skeleton::kPackedRows;
  c.vectors = a.packed;
  c.threads = kSpanThreads;
  c.least_blocks = is_heavy(k) ? 2 : 4;
}

/// As few lanes a row as can hold it: what is done once a row costs more than what is done once an element. A warp's
/// rows are whole slots, and so many that it has some of them on their way.
void choose_spans(Choice& c, const Kernel& k, const Arrangement& a) {
  constexpr std::int64_t kSpanBytes = 2 << 10, kMostBytes = 48 << 10;
  const std::int64_t cols = a.inner[0];
  const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(divide_up(cols, kLaneElements)));
  c.skeleton = Skeleton::kSpanRows;
  c.lanes = std::min(static_cast<int>(lanes), kWarp);
  c.vectors = static_cast<int>(divide_up(vectors_of(a), c.lanes));
  c.threads = kSpanThreads;
  c.least_blocks = is_heavy(k) || c.vectors > 24 ? 4 : 8;
  const std::int64_t row_bytes = cols * span_areas(k, a, c.held).bytes;
  std::int64_t rows = std::max<std::int64_t>(kWarp / c.lanes, span_unit(k, a));
  while (2 * rows * row_bytes <= 2 * kSpanBytes) rows *= 2;
  c.rows = static_cast<int>(rows);
  while (c.threads > kWarp && c.threads / kWarp * rows * row_bytes > kMostBytes) c.threads /= 2;
}

void choose_rows(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  c.held = held_loads(k, a);
  if (a.packed > 0) {
    choose_packed(c, k, a);
    return;
  }
  if (a.spans) {
    choose_spans(c, k, a);
    return;
  }
  if (choose_few(c, k, a, target) || choose_spread(c, k, a, target) || choose_ring(c, k, a, target)) return;
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
constexpr int kAcrossLanes = 8, kAcrossRows = 8, kAcrossThreads = 256;

/// What threads can copy for themselves: whole vectors of 4 bytes or more.
bool can_copy(const Kernel& k, const Arrangement& a, const Choice& c) {
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const bool neighbours = a.loads[i] == Reach::kDense || a.loads[i] == Reach::kVector;
    if (c.held[i] && (!a.whole || !neighbours || a.width * item_bytes(k.loads[i].dtype) < 4)) return false;
  }
  return true;
}

/// Weights and the like, the same for all columns, not only for those of a vector: a block has the same rows of all its
/// tiles.
void keep_weights(Choice& c, const Kernel& k, const Arrangement& a) {
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const bool alike = std::ranges::all_of(a.inner_of(k.loads[i]), [](std::int64_t stride) { return stride == 0; });
    if (a.loads[i] != Reach::kSplat || !alike || a.per_row(k.loads[i])) continue;
    c.shared.push_back(static_cast<int>(i));
    c.kept += static_cast<int>(item_bytes(k.loads[i].dtype));
  }
}

/// Kept on chip where another sweep would read them again, and there is room.
bool choose_tile(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  Choice tile = c;
  tile.held = held_loads(k, a);
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (a.loads[i] == Reach::kSplat) tile.held[i] = false;
  if (std::ranges::count(tile.held, true) == 0) return false;
  int vector_bytes = 4;
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (tile.held[i]) vector_bytes = std::max(vector_bytes, a.width * static_cast<int>(item_bytes(k.loads[i].dtype)));
  tile.skeleton = Skeleton::kTiles;
  tile.held_bytes = static_cast<int>(bytes_of(k, a, tile.held));
  keep_weights(tile, k, a);
  tile.tile = tile_for(k, a, tile, target, vector_bytes, can_copy(k, a, tile));
  if (tile.tile.segments == 0) return false;
  tile.lanes = tile_lanes(tile.tile, vector_bytes);
  tile.threads = tile.tile.threads;
  tile.least_blocks = tile.tile.resident;
  c = tile;
  return true;
}

void choose_columns(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  c.vectors = a.crossed() ? a.width
              : a.across  ? vectors_in_flight(k, a, 256, kAcrossRows)
                          : vectors_in_flight(k, a, 64, 4);
  c.lanes = !a.across ? kWarp : a.width > 1 ? kAcrossLanes : 2 * kAcrossLanes;
  if (k.paired.sweeps > 1 && choose_tile(c, k, a, target)) return;
  c.skeleton = Skeleton::kColumns;
  c.held.assign(k.loads.size(), false);
  if (k.paired.sweeps > 1) c.threads = kMaxTeamThreads, c.least_blocks = 1;
  if (column_bound(k) == 0)
    c.threads = kAcrossThreads, c.least_blocks = c.vectors * bytes_of(k, a, element_loads(k, a)) > 192 ? 2 : 4;
}

// ---- elements -------------------------------------------------------------------------------------------------------

/// 32 bytes in flight a thread in blocks of 128 measured best of 1 to 4 vectors and 128 to 512 threads (H200, 1 GB); of
/// arrays so small that all threads run at once, a vector a thread in blocks of 512 (1024 x 1024: 0.90 to 0.97). Those
/// leave a thread 32 registers, too few for more than four operands.
void choose_pointwise(Choice& c, const Kernel& k, const Arrangement& a, const Target& target) {
  constexpr int kThreads = 128, kFewThreads = 512, kThreadsAtOnce = 2048;  // of a multiprocessor
  constexpr std::int64_t kMostFewBytes = 4 * kSlotBytes;                   // that a thread loads
  c.skeleton = Skeleton::kPointwise;
  c.held = element_loads(k, a);
  const bool at_once = vectors_of(a) <= target.multiprocessors * std::int64_t{kThreadsAtOnce};
  if (at_once && !is_heavy(k) && bytes_of(k, a, c.held) <= kMostFewBytes) {
    c.threads = kFewThreads;
    c.least_blocks = kThreadsAtOnce / kFewThreads;
    return;
  }
  c.vectors = vectors_in_flight(k, a, 32, 4);
  c.threads = kThreads;
  c.least_blocks = is_heavy(k) ? 4 : 12;  // 40 registers: GELU 0.98 of a copy to 1.00, of bfloat16 0.88 to 0.99
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
  choose_pointwise(c, k, a, target);
  return c;
}

}  // namespace kfusion::codegen
