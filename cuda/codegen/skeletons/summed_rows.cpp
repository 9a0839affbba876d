// device/summed.cuh: rows, with sums of their columns in registers.
#include <bit>

#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

struct SummedRowsPolicy {
  /// Bytes that a lane holds: a row, the next one, and sums.
  static constexpr std::int64_t kMostBytes = 256;
  static constexpr int kThreads = 512;  ///< of a block, the only one of a multiprocessor: each has 128 registers
};

struct SummedRows : Configuration {
  int vectors = 1;          ///< of a lane
  std::int64_t blocks = 1;  ///< of a part
  int teams = 1;            ///< of a block

  static std::optional<SummedRows> choose(const Problem& p) {
    using Policy = SummedRowsPolicy;
    if (p.k.parts() == 0) return {};
    SummedRows c;
    c.traits.held = p.held, c.traits.through_l1 = true, c.traits.sums = true;
    const std::int64_t bytes = 2 * bytes_of(p.k, p.a, p.held) + sum_bytes(p.k, p.a);
    const std::int64_t all = vectors_of(p.a), most_blocks = p.target.clusters ? kMaxCluster : 1;
    const auto fitting = static_cast<std::uint64_t>(std::max<std::int64_t>(Policy::kMostBytes / bytes, 1));
    const std::int64_t needed = divide_up(all, most_blocks * kMaxTeamThreads);
    c.vectors = static_cast<int>(std::max<std::int64_t>(static_cast<std::int64_t>(std::bit_floor(fitting)), needed));
    const std::int64_t warps = divide_up(all, std::int64_t{kWarp} * c.vectors);
    while (c.blocks < most_blocks && warps > c.blocks * kMaxTeamThreads / kWarp) c.blocks *= 2;
    const int of_team = static_cast<int>(divide_up(warps, c.blocks) * kWarp);
    if (c.blocks == 1) c.teams = static_cast<int>(std::bit_floor(static_cast<unsigned>(Policy::kThreads / of_team)));
    c.threads = of_team * c.teams, c.least_blocks = 1;
    return c;
  }

  std::string call() const override { return listed(vectors) + ", " + std::to_string(teams); }

  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t parts = p.k.parts(), warps = blocks * threads / teams / kWarp;
    const std::int64_t box = whole_slots(partial_bytes * warps);
    const std::int64_t joined = teams / 2 * (threads / teams) * vectors * sum_bytes(p.k, p.a);
    Division d({parts * blocks}, {threads}, Geometry{product(p.a.outer), warps, parts, box});
    d.launch.cluster = static_cast<unsigned>(blocks);
    d.launch.shared_bytes = static_cast<std::size_t>(std::max(2 * box * teams, joined));
    return d;
  }
};

}  // namespace

Skeleton summed_rows() { return skeleton<SummedRows>("summed_rows", "device/summed.cuh"); }

}  // namespace kfusion::codegen
