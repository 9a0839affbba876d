// device/summed.cuh: rows, with sums of their columns in registers.
#include <bit>

#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

struct SummedRowsPolicy {
  /// Of a lane: a row, the next one, and sums.
  static constexpr std::int64_t kMostBytes = 256;
  static constexpr int kResidentThreads = 512;  ///< of a multiprocessor: so that each has 128 registers
};

/// Registers that the sums of one vector take, in bytes.
std::int64_t bytes_of_sums(const Kernel& k, const Arrangement& a) {
  std::int64_t bytes = 0;
  for (const Store& s : k.stores)
    if (s.parts > 0) bytes += a.width * static_cast<std::int64_t>(item_bytes(s.to.dtype));
  return bytes;
}

struct SummedRows : Configuration {
  int vectors = 1;          ///< of a lane
  std::int64_t blocks = 1;  ///< of a part

  static std::optional<SummedRows> choose(const Problem& p) {
    using Policy = SummedRowsPolicy;
    if (p.k.parts() == 0) return {};
    SummedRows c;
    c.traits.held = p.held, c.traits.through_l1 = true, c.traits.sums = true;
    const std::int64_t bytes = 2 * bytes_of(p.k, p.a, p.held) + bytes_of_sums(p.k, p.a);
    const std::int64_t all = vectors_of(p.a), most_blocks = p.target.clusters ? kMaxCluster : 1;
    const auto fitting = static_cast<std::uint64_t>(std::max<std::int64_t>(Policy::kMostBytes / bytes, 1));
    const std::int64_t needed = divide_up(all, most_blocks * kMaxTeamThreads);
    c.vectors = static_cast<int>(std::max<std::int64_t>(static_cast<std::int64_t>(std::bit_floor(fitting)), needed));
    const std::int64_t warps = divide_up(all, std::int64_t{kWarp} * c.vectors);
    while (c.blocks < most_blocks && warps > c.blocks * kMaxTeamThreads / kWarp) c.blocks *= 2;
    c.threads = static_cast<int>(divide_up(warps, c.blocks) * kWarp);
    c.least_blocks = std::max(1, Policy::kResidentThreads / c.threads);
    return c;
  }

  std::string call() const override { return listed(vectors); }

  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t parts = p.k.parts(), warps = blocks * threads / kWarp;
    const std::int64_t box = whole_slots(partial_bytes * warps);
    Division d({parts * blocks}, {threads}, {product(p.a.outer), warps, parts, box, 0});
    d.launch.cluster = static_cast<unsigned>(blocks);
    d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
    return d;
  }
};

}  // namespace

Skeleton summed_rows() { return skeleton<SummedRows>("summed_rows", "device/summed.cuh"); }

}  // namespace kfusion::codegen
