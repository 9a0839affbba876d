// device/rows.cuh: long_rows(), rows that fit nowhere, read again in every sweep by a cluster.
#include "codegen/skeletons/teams.hpp"

namespace kfusion::codegen {
namespace {

struct LongRows : StreamedRows {
  using StreamedRows::StreamedRows;
  static std::optional<LongRows> choose(const Problem& p) {
    return p.a.traversal == Traversal::kRows ? std::optional(LongRows(p)) : std::nullopt;
  }

  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t most = p.target.clusters ? kMaxCluster : 1;
    const std::int64_t bytes = vectors_of(p.a) * bytes_of(p.k, p.a, traits.held);
    return divide_teams(p, *this, most * threads / kWarp, bytes, false, partial_bytes);
  }
};

}  // namespace

Skeleton long_rows() { return skeleton<LongRows>("long_rows", "device/rows.cuh"); }

}  // namespace kfusion::codegen
