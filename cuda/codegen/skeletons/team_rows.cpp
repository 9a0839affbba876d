// device/rows.cuh: team_rows(), rows in registers of a block or of a cluster.
#include "codegen/skeletons/teams.hpp"

namespace kfusion::codegen {
namespace {

struct TeamRowsPolicy {
  /// Rows of so many bytes are few where each can have multiprocessors of its own: then a lane has few slots of them,
  /// so that little is computed one after the other.
  static constexpr std::int64_t kMoreThanFewBytes = 4 << 10, kMostFewBytes = 128 << 10, kFewSlots = 2;
};

struct TeamRows : Configuration {
  int vectors = 1;     ///< of a lane
  bool ahead = false;  ///< rows further on are brought to L2

  static std::optional<TeamRows> choose(const Problem& p) {
    if (p.a.traversal != Traversal::kRows) return {};
    TeamRows c;
    c.traits.held = p.held, c.traits.keeps_exponentials = true;
    const TeamShape* shape = nullptr;
    if (!c.choose_few(p)) {
      shape = team_for(p);
      if (shape == nullptr || !is_team(p, *shape)) return {};
      c.hold(p, *shape);
    }
    c.traits.through_l1 = !c.ahead;
    return c;
  }

  bool choose_few(const Problem& p) {
    using Policy = TeamRowsPolicy;
    const std::int64_t bytes = row_bytes(p);
    if (p.k.paired.sweeps == 1 || p.a.framed()) return false;
    if (bytes <= Policy::kMoreThanFewBytes || bytes > Policy::kMostFewBytes) return false;
    vectors = static_cast<int>(std::max<std::int64_t>(Policy::kFewSlots * kSlotBytes / bytes_of(p.k, p.a, p.held), 1));
    const std::int64_t needed = divide_up(vectors_of(p.a), std::int64_t{kWarp} * vectors) * kWarp;
    const std::int64_t blocks = divide_up(needed, kMaxTeamThreads);
    if (blocks > (p.target.clusters ? kMaxCluster : 1)) return false;
    if (product(p.a.outer) * blocks > p.target.multiprocessors) return false;
    threads = kMaxTeamThreads, least_blocks = 1;
    return true;
  }

  /// What computes much gets more registers, and fewer blocks. Rows are brought to L2 where a row waits for memory
  /// while nothing else of its multiprocessor is on the way; else they load as they come.
  void hold(const Problem& p, const TeamShape& shape) {
    const bool lean = p.a.width > 1 && !is_heavy(p.k);
    const bool shifts = p.a.framed() && fetches(p) && shape.warps > 1;  // which takes registers
    const int resident = shifts ? (3 * shape.resident + 3) / 4 : shape.resident;
    vectors = static_cast<int>(vectors_in(p, shape.slots));
    threads = shape.warps * kWarp;
    least_blocks = std::max(1, lean ? resident : std::min(shape.resident, 16 / shape.warps));
    ahead = threads == kWarp || (least_blocks == 1 && fetches(p));
  }

  std::string call() const override { return listed(vectors) + ", " + flag(ahead); }

  /// A team of as few warps as hold the row.
  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t warps = divide_up(vectors_of(p.a), std::int64_t{kWarp} * vectors);
    return divide_teams(p, *this, warps, row_bytes(p), ahead, partial_bytes);
  }
};

}  // namespace

Skeleton team_rows() { return skeleton<TeamRows>("team_rows", "device/rows.cuh"); }

}  // namespace kfusion::codegen
