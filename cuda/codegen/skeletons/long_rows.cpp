// device/rows.cuh: long_rows(), rows that fit nowhere, read again in every sweep by a cluster.
#include "codegen/skeletons/teams.hpp"

namespace kfusion::codegen {
namespace {

struct LongRows : Configuration {
  int vectors = 1;  ///< in flight

  static std::optional<LongRows> choose(const Problem& p) {
    using Policy = StreamPolicy;
    if (p.a.form != Form::kRows) return {};
    LongRows c;
    c.traits.held.assign(p.k.loads.size(), false);
    c.vectors = vectors_in_flight(p.k, p.a, Policy::kBytesInFlight, Policy::kMostVectors);
    c.threads = Policy::kThreads;
    c.least_blocks = in_doubles(p.k) ? Policy::kLeastBlocksInDoubles : Policy::kLeastBlocks;
    return c;
  }

  std::string call() const override { return listed(vectors); }

  Division launch(const Problem& p, std::int64_t partial_bytes) const override {
    const std::int64_t most = p.target.clusters ? kMaxCluster : 1;
    const std::int64_t bytes = vectors_of(p.a) * bytes_of(p.k, p.a, traits.held);
    return team_division(p, {threads, most * threads / kWarp, bytes, false, least_blocks}, partial_bytes);
  }
};

}  // namespace

Skeleton long_rows() { return skeleton<LongRows>("long_rows", "device/rows.cuh"); }

}  // namespace kfusion::codegen
