// device/rows.cuh: split_rows(), long rows and whole arrays of one sweep, shared by blocks; the last one merges the
// parts, in order.
#include "codegen/skeletons/teams.hpp"

namespace kfusion::codegen {
namespace {

struct SplitRows : StreamedRows {
  using StreamedRows::StreamedRows;
  static std::optional<SplitRows> choose(const Problem& p) {
    return p.a.traversal == Traversal::kRows && p.k.paired.sweeps == 1 ? std::optional(SplitRows(p)) : std::nullopt;
  }

  /// Blocks that share a row, each with at least one chunk: a number that depends on sizes and device only.
  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t rows = product(p.a.outer);
    const std::int64_t chunks = divide_up(vectors_of(p.a), std::int64_t{threads} * vectors);
    const std::int64_t blocks = std::int64_t{kBlocksPerMultiprocessor} * p.target.multiprocessors;
    const std::int64_t splits = clamp(blocks / std::max<std::int64_t>(rows, 1), 1, std::max<std::int64_t>(chunks, 1));
    const std::int64_t box = whole_slots(partial_bytes * threads / kWarp);
    Division d({rows * splits}, {threads}, Geometry{rows, threads / kWarp, splits, box});
    d.launch.shared_bytes = static_cast<std::size_t>(2 * box);
    if (splits > 1) {
      d.launch.workspace_bytes = static_cast<std::size_t>(rows * splits * partial_bytes);
      d.launch.standing_bytes = static_cast<std::size_t>(rows * kTicketBytes);
    }
    return d;
  }
};

}  // namespace

Skeleton split_rows() { return skeleton<SplitRows>("split_rows", "device/rows.cuh", true, true); }

}  // namespace kfusion::codegen
