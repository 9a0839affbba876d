// device/columns.cuh: reductions along outer axes, and maps that read across: a column per lane, shared by threads and
// by blocks, of a cluster where there are several sweeps.
#include <bit>

#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

struct ColumnsPolicy {
  static constexpr int kBytesInFlight = 128, kMostVectors = 8;
  static constexpr int kBlocks = 2;  ///< of a multiprocessor that share a reduction: the last one merges what they have
  /// Few rows (sums of parts, say) of few columns are not shared: so few lanes take a row that no block waits for
  /// another, and each thread has all its rows in flight at once.
  static constexpr std::int64_t kFewRows = 256, kLeastLanes = 4;
  /// Operands that lie across: lanes side by side in a warp, so that the others read 64 bytes or more, in vectors that
  /// are transposed or, by so many rows a thread, element by element through L1.
  static constexpr int kAcrossLanes = 8, kAcrossBytesInFlight = 256, kMostAcrossVectors = 8;
  /// Limits for maps, with fewer blocks where a thread has more bytes in flight.
  static constexpr int kMapThreads = 256, kLeastMapBlocks = 4, kLeastFullMapBlocks = 2;
  static constexpr std::int64_t kMostMapBytes = 192;
  static constexpr std::int64_t kMaxSplits = 65535;  ///< blocks that a grid has along y
};

struct Columns : Configuration {
  int vectors = 1, lanes = kWarp;  ///< rows that a thread has at a time, lanes that have a row's columns

  static std::optional<Columns> choose(const Problem& p) {
    using Policy = ColumnsPolicy;
    const Arrangement& a = p.a;
    if (a.traversal != Traversal::kColumns) return {};
    Columns c;
    c.traits.held.assign(p.k.loads.size(), false);
    const bool maps = column_bound(p.k) == 0;
    c.traits.through_l1 = maps;
    c.vectors = a.crossed() ? a.width
                : a.across  ? vectors_in_flight(p.k, a, Policy::kAcrossBytesInFlight, Policy::kMostAcrossVectors)
                            : vectors_in_flight(p.k, a, Policy::kBytesInFlight, Policy::kMostVectors);
    c.lanes = !a.across ? kWarp : a.width > 1 ? Policy::kAcrossLanes : 2 * Policy::kAcrossLanes;
    if (p.k.paired.sweeps > 1) c.threads = kMaxTeamThreads, c.least_blocks = 1;
    if (maps) {
      const bool full = c.vectors * bytes_of(p.k, a, element_loads(p.k, a)) > Policy::kMostMapBytes;
      c.threads = Policy::kMapThreads;
      c.least_blocks = full ? Policy::kLeastFullMapBlocks : Policy::kLeastMapBlocks;
    }
    return c;
  }

  std::string call() const override { return listed(vectors); }

  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t columns = vectors_of(p.a), rows = product(p.a.outer);
    const bool maps = partial_bytes == 0, again = !maps && p.k.paired.sweeps > 1;  // needs what a sweep before reduced
    const std::int64_t few = lanes_of_few(p, maps), most_lanes = few > 0 ? few : lanes;
    const std::int64_t across = std::bit_ceil(static_cast<std::uint64_t>(clamp(columns, 1, most_lanes)));
    const std::int64_t sides = maps && p.a.crossed() && columns > across ? 2 : 1;  // so that tiles are square
    std::int64_t down = threads / (across * sides);
    while (across * down > kWarp && down >= 2 * rows) down /= 2;
    const std::int64_t tiles = divide_up(columns, across * sides);
    const std::int64_t blocks = std::int64_t{ColumnsPolicy::kBlocks} * p.target.multiprocessors;
    const std::int64_t most = std::max<std::int64_t>(divide_up(rows, down * vectors), 1);
    const std::int64_t splits = maps      ? std::min(most, ColumnsPolicy::kMaxSplits)
                                : again   ? cluster_for(tiles, down, p.target)
                                : few > 0 ? 1
                                          : clamp(blocks / std::max<std::int64_t>(tiles, 1), 1, most);
    const std::int64_t cluster = again ? splits : 1, boxes = across * down / kWarp + (cluster > 1 ? cluster : 0);
    const std::int64_t box = whole_slots(boxes * across * partial_bytes);
    Division d({tiles * cluster, again ? 1 : splits}, {across, down, sides}, Geometry{rows, down, splits, box});
    d.launch.cluster = static_cast<unsigned>(cluster);
    d.launch.early = few > 0 && p.target.compute_major >= 9;  // sums of parts, which the kernel before has stored
    d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
    if (splits > 1 && !maps && !again) {
      d.launch.workspace_bytes = static_cast<std::size_t>(tiles * splits * across * partial_bytes);
      d.launch.standing_bytes = static_cast<std::size_t>(tiles * kTicketBytes);
    }
    return d;
  }

  /// Lanes that have the columns of a row, of few of both; 0: there are more.
  static std::int64_t lanes_of_few(const Problem& p, bool maps) {
    using Policy = ColumnsPolicy;
    const std::int64_t columns = vectors_of(p.a), blocks = std::int64_t{Policy::kBlocks} * p.target.multiprocessors;
    if (maps || p.k.paired.sweeps > 1 || p.a.across || product(p.a.outer) > Policy::kFewRows) return 0;
    std::int64_t few = Policy::kLeastLanes;
    while (few <= kWarp && divide_up(columns, few) > blocks) few *= 2;
    return few <= kWarp ? few : 0;
  }

  /// Blocks that share the rows of a tile, as long as multiprocessors would be idle.
  static std::int64_t cluster_for(std::int64_t tiles, std::int64_t down, const Target& target) {
    std::int64_t blocks = 1;
    while (target.clusters && 2 * blocks <= std::min<std::int64_t>(kMaxCluster, down) &&
           tiles * blocks < 2 * target.multiprocessors)
      blocks *= 2;
    return blocks;
  }
};

}  // namespace

Skeleton columns() { return skeleton<Columns>("columns", "device/columns.cuh", true, true); }

}  // namespace kfusion::codegen
