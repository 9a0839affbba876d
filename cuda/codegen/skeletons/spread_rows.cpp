// device/spread.cuh: few rows beyond 128 KB, each at once in registers and shared memory of blocks anywhere.
#include "codegen/skeletons/rings.hpp"

namespace kfusion::codegen {
namespace {

struct SpreadRowsPolicy {
  static constexpr int kThreads = 512, kHeavyThreads = 256;
  static constexpr std::int64_t kSlots[] = {4, 8};  ///< of a lane, in registers
  /// Shared memory left for other things than stages, so that classes of length end with powers of two.
  static constexpr std::int64_t kLeastRoom = 16 << 10;
};

/// A row shared by `blocks` blocks: so many vectors a lane in shared memory, after those in registers.
struct Share {
  std::int64_t blocks, staged;
};

struct SpreadRows : Configuration {
  int vectors = 1;      ///< of a lane, in registers
  bool staged = false;  ///< not all vectors are

  /// None where there is no room.
  static std::optional<SpreadRows> choose(const Problem& p) {
    using Policy = SpreadRowsPolicy;
    if (!can_ring(p)) return {};
    const RingNeeds needs(p);
    if (needs.bytes <= kMostTeamBytes || !are_few(ring_for(needs, p.target), p)) return {};
    SpreadRows c;
    c.traits.held = p.held, c.traits.staging = Traits::Staging::kBulkCopies;
    c.threads = is_heavy(p.k) ? Policy::kHeavyThreads : Policy::kThreads, c.least_blocks = 1;
    for (const std::int64_t slots : Policy::kSlots) {
      c.vectors = static_cast<int>(std::max<std::int64_t>(slots * kSlotBytes / needs.held_bytes, 1));
      const Share share = c.share_of(p);
      const std::int64_t staged = share.staged * c.threads * needs.held_bytes;
      const std::int64_t others = c.shared_bytes(p, share, exchange_room(partial_bound(p.k))) - staged;
      if (share.blocks == 0 || staged + std::max(others, Policy::kLeastRoom) > p.target.shared_bytes) continue;
      c.staged = share.staged > 0;
      return c;
    }
    return {};
  }

  Share share_of(const Problem& p) const {
    const std::int64_t all_vectors = vectors_of(p.a), batch = std::min(vectors, 4);
    const std::int64_t all = p.target.multiprocessors / std::max<std::int64_t>(product(p.a.outer), 1);
    const std::int64_t blocks = std::min(all, divide_up(all_vectors, std::int64_t{threads} * vectors));
    const std::int64_t each = divide_up(all_vectors, std::max<std::int64_t>(blocks, 1) * threads);
    return {blocks, round_up(std::max<std::int64_t>(each - vectors, 0), batch)};
  }

  std::int64_t shared_bytes(const Problem& p, const Share& share, std::int64_t room) const {
    const std::int64_t warps = threads / kWarp, held_bytes = bytes_of(p.k, p.a, traits.held);
    return share.staged * threads * held_bytes + warps * 8 + kSlotBytes + (warps + 1 + share.blocks) * room;
  }

  std::string call() const override { return listed(vectors) + ", " + flag(staged); }

  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t rows = product(p.a.outer), room = exchange_room(partial_bytes);
    const Share share = share_of(p);
    Division d({share.blocks, rows}, {threads},
               Geometry{.rows = rows, .splits = share.blocks, .box = room, .ahead = share.staged});
    d.launch.cooperative = true;
    d.launch.shared_bytes = static_cast<std::size_t>(shared_bytes(p, share, room));
    d.launch.standing_bytes = static_cast<std::size_t>(rows * (kTicketBytes + share.blocks * room * 4));
    return d;
  }
};

}  // namespace

Skeleton spread_rows() { return skeleton<SpreadRows>("spread_rows", "device/spread.cuh", false, true); }

}  // namespace kfusion::codegen
