// device/rows.cuh: short_rows(), rows in registers of some lanes of a warp, or of a warp.
#include <bit>

#include "codegen/skeletons/teams.hpp"

namespace kfusion::codegen {
namespace {

struct ShortRowsPolicy {
  static constexpr int kThreads = 64;
  /// Rows of up to so many bytes have a lane for 32 bytes, others up to a warp's for 64.
  static constexpr std::int64_t kMostShortBytes = 256, kShortSlots = 2, kSlots = 4;
  /// What computes much gets more registers, and fewer blocks; so do lanes that hold more than those slots.
  static constexpr int kLeastBlocks = 16, kLeastFullBlocks = 12, kLeastHeavyBlocks = 8;
};

struct ShortRows : Configuration {
  int lanes = kWarp, vectors = 1;  ///< lanes that share a row, vectors of it that each has

  static std::optional<ShortRows> choose(const Problem& p) {
    using Policy = ShortRowsPolicy;
    if (p.a.traversal != Traversal::kRows) return {};
    const TeamShape* shape = team_for(p);
    if (shape == nullptr || is_team(p, *shape)) return {};
    ShortRows c;
    c.traits.held = p.held, c.traits.keeps_exponentials = c.traits.through_l1 = true;
    const std::int64_t slots = row_bytes(p) > Policy::kMostShortBytes ? Policy::kSlots : Policy::kShortSlots;
    const std::int64_t held = std::max<std::int64_t>(slots * kSlotBytes / bytes_of(p.k, p.a, p.held), 1);
    const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(divide_up(vectors_of(p.a), held)));
    c.lanes = std::min(static_cast<int>(lanes), kWarp);
    const std::int64_t each = divide_up(vectors_of(p.a), c.lanes);
    c.vectors = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(each)));
    c.threads = Policy::kThreads;
    c.least_blocks = p.a.width == 1 || is_heavy(p.k) ? Policy::kLeastHeavyBlocks
                     : each > held                   ? Policy::kLeastFullBlocks
                                                     : Policy::kLeastBlocks;
    return c;
  }

  std::string call() const override { return listed(lanes, vectors); }

  Division launch(const Problem& p, std::int64_t) const override { return divide_rows(p, threads, threads / lanes); }
};

}  // namespace

Skeleton short_rows() { return skeleton<ShortRows>("short_rows", "device/rows.cuh"); }

}  // namespace kfusion::codegen
