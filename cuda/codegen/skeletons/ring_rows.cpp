// device/ring.cuh: rows beyond 64 KB (16 KB where weights lie in planes) that fit a cluster, or all blocks, in
// registers of blocks that stay, each warp fed by a ring of bulk copies; teams take rows from a counter, and weights
// stay in shared memory as far as there is room.
#include "codegen/skeletons/rings.hpp"

namespace kfusion::codegen {
namespace {

struct RingRowsPolicy {
  static constexpr std::int64_t kLeastBytes = 64 << 10;        ///< shorter rows have no rings, however many they are
  static constexpr std::int64_t kLeastPlanedBytes = 16 << 10;  ///< of those whose weights lie in planes
  static constexpr std::int64_t kMostSmallBytes = 32 << 10;    ///< of a row, that a small block has
  static constexpr int kLeastStages = 2;
  static constexpr RingShape kSpread{4, 16, 1, 0, 4};  ///< for blocks anywhere: as many as there are
};

/// Blocks of a cluster for a row that takes `least`: as many as can be without fewer clusters at once. A cluster's
/// blocks are of one group of 16 multiprocessors (or 18).
int packed_blocks(std::int64_t least, int resident) {
  const std::int64_t slots = std::int64_t{kLargestCluster} * resident;
  return static_cast<int>(std::min<std::int64_t>(slots / (slots / least), kLargestCluster));
}

/// A team of small blocks has no more than it needs; spread blocks are divided among all rows. A kernel that computes
/// much has half the warps, with twice the registers.
RingShape fit(RingShape ring, const RingNeeds& needs, const Problem& p) {
  const std::int64_t least = divide_up(needs.bytes, ring.block_bytes());
  const std::int64_t rows = std::max<std::int64_t>(product(p.a.outer), 1);
  if (ring.blocks == 0)
    ring.blocks = static_cast<int>(std::max(least, p.target.multiprocessors / rows));
  else if (ring.block_bytes() <= RingRowsPolicy::kMostSmallBytes)
    ring.blocks = std::min(ring.blocks, packed_blocks(least, ring.resident));
  if (is_heavy(p.k)) ring.segments *= 2, ring.warps /= 2;
  const int operands = static_cast<int>(divide_up(needs.held_bytes, kSlotBytes));
  const int fewer = std::min(operands, ring.segments);
  ring.segments = static_cast<int>(divide_up(ring.segments, fewer));
  ring.stages = static_cast<int>(divide_up(ring.stages, fewer));
  ring.warps = static_cast<int>(divide_up(std::int64_t{ring.warps} * fewer, operands));
  return ring;
}

/// Whether rings are quicker than team_rows(), where another block of the multiprocessor works while one exchanges.
bool should_ring(const RingNeeds& needs, const Problem& p) {
  const bool many = p.target.clusters && product(p.a.outer) > p.target.multiprocessors;
  if (needs.planed) return many && needs.single() && needs.bytes > RingRowsPolicy::kLeastPlanedBytes;
  if (needs.bytes > kMostTeamBytes) return true;
  const bool suits = needs.whole ? needs.single() || needs.light : needs.single() && !needs.fetches;
  return needs.bytes > RingRowsPolicy::kLeastBytes && suits && many;
}

struct RingRows : Configuration {
  RingShape ring;
  bool spread = false;  ///< teams of blocks anywhere, instead of in clusters
  int kept = 0;         ///< segments of a warp of which shared memory keeps what all rows share

  static std::optional<RingRows> choose(const Problem& p) {
    using Policy = RingRowsPolicy;
    if (!can_ring(p)) return {};
    const RingNeeds needs(p);
    if (!should_ring(needs, p)) return {};
    const RingShape* found = ring_for(needs, p.target);
    if (needs.planed && found == nullptr) return {};
    const std::int64_t least = divide_up(needs.bytes, Policy::kSpread.block_bytes());
    RingRows c;
    c.spread = needs.bytes > kMostTeamBytes && are_few(found, p) && least <= p.target.multiprocessors;
    if (c.spread) found = &Policy::kSpread;
    if (found == nullptr) return {};
    c.ring = fit(*found, needs, p);
    const std::int64_t room = exchange_room(partial_bound(p.k));
    const int least_stages = std::min(c.ring.stages, Policy::kLeastStages);
    if (needs.planed) c.traits.plane_entries = c.ring.warps * c.ring.segments * kSegmentVectors * kWarp + 4;
    const std::int64_t bytes = c.ring_bytes(least_stages, room, needs.held_bytes) + plane_bytes(p.a, c.traits);
    if (bytes > (needs.planed ? shared_bytes_of(c.ring.resident, p.target) : p.target.shared_bytes)) return {};
    c.threads = c.ring.warps * kWarp, c.least_blocks = c.ring.resident;
    c.traits.held = p.held, c.traits.keeps_exponentials = true;
    c.traits.staging = Traits::Staging::kBulkCopies;
    c.keep_shared(needs, p);
    return c;
  }

  /// Keeps operands that all rows share in shared memory: as many segments of a warp as there is room for, but of
  /// several operands of more than four elements a vector whole ones. Where there are several, or vectors are long, two
  /// stages are enough.
  void keep_shared(const RingNeeds& needs, const Problem& p) {
    const bool is_long = p.a.width > 4, few_stages = needs.shared.size() > 1 || is_long;
    const int stages = few_stages ? std::min(ring.stages, RingRowsPolicy::kLeastStages) : ring.stages;
    const std::int64_t room = shared_bytes_of(ring.resident, p.target) -
                              ring_bytes(stages, exchange_room(partial_bound(p.k)), needs.held_bytes);
    const auto segments = [&](std::size_t operands) {
      const std::int64_t most = room / (kept_bytes(1) * static_cast<std::int64_t>(operands));
      return static_cast<int>(clamp(most, 0, ring.segments));
    };
    std::size_t operands = spread ? 0 : needs.shared.size();
    while (operands > 1 && segments(operands) < (is_long ? ring.segments : 1)) --operands;
    kept = operands == 0 ? 0 : segments(operands);
    traits.shared = needs.shared;
    traits.shared.resize(kept > 0 ? operands : 0);
  }

  /// What a block takes of shared memory besides what all rows share: `room` bytes a message, `held_bytes` a vector.
  std::int64_t ring_bytes(int stages, std::int64_t room, std::int64_t held_bytes) const {
    const std::int64_t stage = kWarp * kSegmentVectors * held_bytes + 8;
    const std::int64_t messages = ring.warps + 1 + (spread ? 1 : 2) * ring.blocks;
    return ring.warps * (stages * stage + 8) + messages * room + 3 * kSlotBytes;
  }

  /// So many segments of each warp, of an operand that all rows share.
  std::int64_t kept_bytes(std::int64_t segments) const {
    return kWarp * kSegmentVectors * kSlotBytes * ring.warps * segments;
  }

  std::string call() const override {
    return listed(ring.segments, kSegmentVectors) + ", " + flag(spread) + ", " + listed(kept);
  }

  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t rows = product(p.a.outer), room = exchange_room(partial_bytes), blocks = ring.blocks;
    int stages = ring.stages;
    const auto shared_bytes = [&] {
      return ring_bytes(stages, room, bytes_of(p.k, p.a, traits.held)) + std::ssize(traits.shared) * kept_bytes(kept) +
             plane_bytes(p.a, traits);
    };
    while (stages > RingRowsPolicy::kLeastStages && shared_bytes() > shared_bytes_of(ring.resident, p.target)) --stages;
    const std::int64_t at_once = std::max<std::int64_t>(p.target.multiprocessors * ring.resident / blocks, 1);
    const std::int64_t teams = std::min(rows, at_once);
    Division d({teams * blocks}, {threads}, Geometry{.rows = rows, .splits = blocks, .box = room, .ahead = stages});
    d.launch.cluster = spread ? 1 : static_cast<unsigned>(blocks);
    d.launch.resident = !spread;
    d.launch.cooperative = spread;
    d.launch.shared_bytes = static_cast<std::size_t>(shared_bytes());
    d.launch.standing_bytes =
        static_cast<std::size_t>(kTicketBytes + (spread ? teams * (kTicketBytes + blocks * room * 4) : 0));
    return d;
  }
};

}  // namespace

Skeleton ring_rows() { return skeleton<RingRows>("ring_rows", "device/ring.cuh", false, true); }

}  // namespace kfusion::codegen
