// device/weighted.cuh: rows of odd width whose weights lie in shared memory, in blocks that stay for many rows.
#include <bit>

#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

struct WeightedRowsPolicy {
  static constexpr std::int64_t kLeastRows = 2048;  ///< fewer have no time to pay for the planes
  /// One operand, or two of float32, are shifted as quickly.
  static constexpr std::int64_t kLeastOperands = 2;
  static constexpr int kLeastWidth = 8;
  static constexpr int kThreads = 512, kLeastThreads = 64;
  static constexpr int kLeastLanes = 8;  ///< of a row: fewer have too many of its edges each
  /// Slots of 16 bytes of a lane, and blocks of a multiprocessor, in the order of their rates.
  struct Shape {
    std::int64_t slots;
    int resident;
  };
  static constexpr Shape kShapes[] = {{4, 2}, {8, 2}, {16, 1}};
  static constexpr int kMostIdleThreads = 64;  ///< of a block that teams of whole warps do not fill
  /// That a team takes at a time: one counter gives no more than some 500 shares in a microsecond.
  static constexpr std::int64_t kShareBytes = 16 << 10, kLeastShares = 4;
};

struct WeightedRows : Configuration {
  int lanes = kWarp, vectors = 1, warps = 1;  ///< of a row

  static std::optional<WeightedRows> choose(const Problem& p) {
    using Policy = WeightedRowsPolicy;
    if (p.a.planes() < Policy::kLeastOperands || p.a.width < Policy::kLeastWidth || p.a.wide ||
        product(p.a.outer) < Policy::kLeastRows || std::ranges::count(p.held, true) == 0)
      return {};
    std::optional<WeightedRows> best;
    for (const auto& [slots, resident] : Policy::kShapes) {
      if (resident > 1 && is_heavy(p.k)) continue;
      WeightedRows c;
      c.traits.held = p.held, c.traits.keeps_exponentials = c.traits.through_l1 = true;
      c.traits.planes_twice = true;
      c.least_blocks = resident;
      c.hold(p, slots);
      const std::int64_t room = exchange_room(partial_bound(p.k));
      if (c.threads == 0 || c.shared_bytes(p, room) > shared_bytes_of(resident, p.target)) continue;
      if (!best || c.threads * c.least_blocks > best->threads * best->least_blocks) best = c;
      if (c.threads >= Policy::kThreads - Policy::kMostIdleThreads) break;
    }
    return best;
  }

  /// Takes as few lanes as hold a row: a power of two within a warp, or whole warps.
  void hold(const Problem& p, std::int64_t slots) {
    using Policy = WeightedRowsPolicy;
    const std::int64_t most = std::max<std::int64_t>(slots * kSlotBytes / bytes_of(p.k, p.a, p.held), 1);
    const std::int64_t needed = divide_up(vectors_of(p.a), most);
    lanes = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(clamp(needed, Policy::kLeastLanes, kWarp))));
    warps = static_cast<int>(divide_up(needed, kWarp));
    threads = Policy::kThreads / (kWarp * warps) * (kWarp * warps);
    const std::int64_t each = divide_up(vectors_of(p.a), std::int64_t{lanes} * warps);
    vectors = static_cast<int>(each > 1 ? round_up(each, 2) : 1);
    // So far from a multiple of 32 that rows which a warp has at once are in different banks.
    const std::int64_t places = std::int64_t{lanes} * warps * vectors + 1;
    traits.plane_entries = static_cast<int>(round_up(places, kWarp) + lanes % kWarp);
  }

  /// `room`: bytes of a warp's part.
  std::int64_t shared_bytes(const Problem& p, std::int64_t room) const {
    const std::int64_t teams = threads / (kWarp * warps);
    return plane_bytes(p.a, traits) + teams * (2 * whole_slots(room * warps) + kSlotBytes);
  }

  std::string call() const override { return listed(lanes, warps, vectors); }

  /// Blocks of fewer threads where there would be too few of them.
  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    using Policy = WeightedRowsPolicy;
    const std::int64_t rows = product(p.a.outer), at_once = kWarp / lanes, team = std::int64_t{kWarp} * warps;
    const std::int64_t turns = divide_up(rows, at_once),
                       resident = std::int64_t{least_blocks} * p.target.multiprocessors;
    std::int64_t block = threads;
    while (block / 2 >= std::max<std::int64_t>(Policy::kLeastThreads, team) && turns * team < resident * block)
      block = block / 2 / team * team;
    const std::int64_t blocks = std::min(resident, divide_up(turns * team, block));
    const std::int64_t most_share = turns * team / (Policy::kLeastShares * blocks * block);
    const std::int64_t wanted = Policy::kShareBytes / (row_bytes(p) * at_once);
    const auto share = static_cast<std::int64_t>(
        std::bit_floor(static_cast<std::uint64_t>(clamp(wanted, 1, std::max<std::int64_t>(most_share, 1)))));
    const std::int64_t box = whole_slots(partial_bytes * warps);
    Division d({blocks}, {block}, Geometry{rows, divide_up(turns, share), share, box});
    d.launch.resident = true;
    d.launch.shared_bytes = static_cast<std::size_t>(shared_bytes(p, partial_bytes));
    d.launch.standing_bytes = static_cast<std::size_t>(kTicketBytes);
    return d;
  }
};

}  // namespace

Skeleton weighted_rows() { return skeleton<WeightedRows>("weighted_rows", "device/weighted.cuh", false, true); }

}  // namespace kfusion::codegen
