#include "codegen/skeletons/teams.hpp"

#include <bit>
#include <iterator>

namespace kfusion::codegen {
namespace {

/// Measured (results/kernels.md): few slots leave registers for many threads, many make exchanges rare.
struct TeamPolicy {
  static constexpr TeamShape kShapes[] = {
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
  /// More sweeps x steps leave fewer registers for what is held.
  static constexpr std::int64_t kMostSteps = 48;
  static constexpr int kMostSlots = 16, kMostHeavySlots = 8;
  /// In frames, longer rows (bytes) have a block of their own even if a warp holds them.
  static constexpr std::int64_t kMostFramedBytes = 1 << 10;
  /// What needs one sweep is not held in registers from here on, but streamed: a reduction of everything, and rows.
  static constexpr std::int64_t kSplitBytes = 32 << 10, kMostHeldBytes = 64 << 10;
  /// The part of L2, 1 / 6, in which rows may wait for teams that look ahead.
  static constexpr std::int64_t kShareOfL2 = 6;
};

struct StreamPolicy {
  static constexpr int kThreads = 256, kLeastBlocks = 2, kLeastBlocksInDoubles = 1;
  static constexpr int kBytesInFlight = 64, kMostVectors = 4;
  /// Limits for one sweep that computes little: threads hide each other's latencies.
  static constexpr int kLeastLightBlocks = 8, kLightBytesInFlight = 32;
};

bool stores_only_rows(const Kernel& k) { return std::ranges::count(k.paired.stored, -1) == std::ssize(k.stores); }

/// Whether it has functions beyond exponentials, which take few registers.
bool has_functions(const Kernel& k) {
  return std::ranges::any_of(
      k.steps, [](const Step& s) { return s.kind == StepKind::kMap && info(s.op).cost > OpCost::kExponential; });
}

}  // namespace

std::int64_t vectors_in(const Problem& p, std::int64_t slots) {
  const std::int64_t vectors = slots * kSlotBytes / bytes_of(p.k, p.a, p.held);
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(vectors)));
}

const TeamShape* team_for(const Problem& p) {
  using Policy = TeamPolicy;
  const int sweeps = p.k.paired.sweeps, most_blocks = p.target.clusters ? kMaxCluster : 1;
  if (sweeps == 1 && row_bytes(p) > (p.k.kept.empty() ? Policy::kSplitBytes : Policy::kMostHeldBytes)) return nullptr;
  const bool heavy = static_cast<std::int64_t>(p.k.steps.size()) * sweeps > Policy::kMostSteps;
  const int most_slots = p.a.width == 1 || heavy ? Policy::kMostHeavySlots : Policy::kMostSlots;
  const bool light = p.a.width == 4 && !(p.a.framed() && fetches(p));
  const auto* found = std::ranges::find_if(Policy::kShapes, [&](const TeamShape& one) {
    return one.slots <= most_slots && one.blocks <= most_blocks && (!one.light || light) &&
           vectors_in(p, one.slots) * kWarp * one.warps * one.blocks >= std::max<std::int64_t>(vectors_of(p.a), 1);
  });
  return found == std::end(Policy::kShapes) ? nullptr : found;
}

bool is_team(const Problem& p, const TeamShape& shape) {
  return shape.warps > 1 || (p.a.framed() && row_bytes(p) > TeamPolicy::kMostFramedBytes);
}

Division divide_teams(const Problem& p, const Configuration& c, std::int64_t warps, std::int64_t bytes, bool ahead,
                      std::int64_t partial_bytes) {
  const Target& target = p.target;
  const std::int64_t rows = product(p.a.outer), most = target.clusters ? kMaxCluster : 1;
  std::int64_t blocks = 1;
  while (blocks < most && warps > blocks * c.threads / kWarp) blocks *= 2;
  while (2 * blocks <= most && blocks > 1 && rows <= target.multiprocessors / (2 * blocks) && warps >= 16 * blocks)
    blocks *= 2;
  const std::int64_t own = divide_up(warps, blocks), box = whole_slots(partial_bytes * own * blocks);
  // About as many rows further on as are in flight, but no more than L2 keeps until they are read.
  const std::int64_t resident =
      ahead ? std::max<std::int64_t>(1, std::int64_t{c.least_blocks} * c.threads / (own * kWarp)) : 1;
  const std::int64_t in_l2 = target.l2_bytes / TeamPolicy::kShareOfL2 / std::max<std::int64_t>(bytes, 1);
  const std::int64_t in_flight = resident * target.multiprocessors / blocks;
  Division d({rows * blocks}, {own * kWarp},
             Geometry{rows, own * blocks, 1, box, std::max<std::int64_t>(1, std::min(in_flight, in_l2))});
  d.launch.cluster = static_cast<unsigned>(blocks);
  d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
  return d;
}

StreamedRows::StreamedRows(const Problem& p) {
  using Policy = StreamPolicy;
  traits.held.assign(p.k.loads.size(), false);
  const bool light = p.k.paired.sweeps == 1 && !is_heavy(p.k) && stores_only_rows(p.k) && !has_functions(p.k);
  const int bytes = light ? Policy::kLightBytesInFlight : Policy::kBytesInFlight;
  vectors = vectors_in_flight(p.k, p.a, bytes, Policy::kMostVectors);
  threads = Policy::kThreads;
  least_blocks = light             ? std::min(Policy::kLeastLightBlocks, most_threads(p.target) / threads)
                 : in_doubles(p.k) ? Policy::kLeastBlocksInDoubles
                                   : Policy::kLeastBlocks;
}

}  // namespace kfusion::codegen
