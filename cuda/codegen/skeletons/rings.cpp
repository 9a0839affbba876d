#include "codegen/skeletons/rings.hpp"

#include <iterator>

namespace kfusion::codegen {
namespace {

/// Measured (results/kernels.md): small blocks, of which a multiprocessor has several, work while others exchange, and
/// clusters of many leave each room for all its weights. What warps do once a segment, or once for the edges of a row,
/// takes too long for vectors of eight elements, so they have more segments.
struct RingPolicy {
  RingShape shape;
  bool (*suits)(const RingNeeds&);
};
bool all(const RingNeeds& n) { return !n.planed; }
bool of_one(const RingNeeds& n) { return n.single() && !n.planed; }
bool of_fours(const RingNeeds& n) { return n.whole && n.light; }
bool of_one_whole(const RingNeeds& n) { return n.whole && n.single(); }
bool unweighted(const RingNeeds& n) { return n.single() && !n.fetches; }
bool unweighted_whole(const RingNeeds& n) { return n.whole && unweighted(n); }
/// Vectors of eight have too many addresses: bfloat16 50257 is no quicker than with weights that are shifted.
bool planed_fours(const RingNeeds& n) { return n.single() && n.planed && n.light; }
bool weighted(const RingNeeds& n) { return n.single() && !n.shared.empty(); }
bool of_fours_weighted(const RingNeeds& n) { return n.light && weighted(n); }
/// In a shorter row half of the warps would have one segment and the others two.
bool of_fours_biased(const RingNeeds& n) { return of_fours_weighted(n) && n.shared.size() > 1 && n.bytes > 768 << 10; }
constexpr RingPolicy kRings[] = {
    {{1, 8, 4, 16, 1}, planed_fours},        // 256 KB
    {{1, 16, 2, 16, 1}, planed_fours},       // 512 KB
    {{2, 16, 1, 16, 2}, planed_fours},       //   1 MB
    {{1, 8, 4, 8, 1}, of_fours},             // 128 KB
    {{4, 4, 4, 4, 3}, unweighted_whole},     // 128 KB
    {{2, 4, 4, 8, 2}, of_one_whole},         // 128 KB
    {{4, 8, 2, 2, 3}, unweighted},           // 128 KB
    {{1, 8, 4, 16, 1}, of_fours},            // 256 KB
    {{2, 8, 2, 8, 2}, weighted},             // 256 KB
    {{4, 4, 4, 8, 3}, unweighted},           // 256 KB
    {{4, 16, 1, 2, 4}, all},                 // 256 KB
    {{1, 16, 2, 16, 1}, of_fours_weighted},  // 512 KB
    {{4, 8, 2, 8, 3}, all},                  // 512 KB
    {{2, 16, 1, 16, 2}, of_fours_biased},    //   1 MB
    {{4, 16, 1, 8, 4}, of_fours_weighted},   //   1 MB
    {{4, 8, 2, 16, 3}, of_one},              //   1 MB
    {{4, 16, 1, 8, 4}, all},                 //   1 MB
    {{4, 16, 1, 16, 4}, all},                //   2 MB
};
constexpr std::int64_t kMaxRingRows = std::int64_t{1} << 30;

std::vector<int> shared_loads(const Problem& p) {
  std::vector<int> shared;
  for (std::size_t i = 0; i < p.k.loads.size() && !p.a.framed(); ++i) {
    const bool of_row = std::ranges::any_of(p.a.outer_of(p.k.loads[i]), [](std::int64_t n) { return n != 0; });
    if (p.held[i] || p.a.per_row(p.k.loads[i]) || of_row || !is_bulk_copied(p.k, p.a, i)) continue;
    shared.push_back(static_cast<int>(i));
  }
  return shared;
}

}  // namespace

RingNeeds::RingNeeds(const Problem& p)
    : bytes(row_bytes(p)),
      held_bytes(bytes_of(p.k, p.a, p.held)),
      shared(shared_loads(p)),
      whole(!p.a.framed()),
      light(p.a.width == 4),
      fetches(codegen::fetches(p)),
      planed(p.a.planes() > 0) {}

bool can_ring(const Problem& p) {
  if (p.a.traversal != Traversal::kRows || p.target.compute_major < 9 || product(p.a.outer) >= kMaxRingRows)
    return false;
  for (std::size_t i = 0; i < p.k.loads.size(); ++i)
    if (p.held[i] && !is_bulk_copied(p.k, p.a, i)) return false;
  return p.k.paired.sweeps > 1 && p.a.inner.size() == 1 && std::ranges::count(p.held, true) > 0;
}

const RingShape* ring_for(const RingNeeds& needs, const Target& target) {
  const auto* found = std::ranges::find_if(kRings, [&](const RingPolicy& r) {
    const bool fits = r.shape.blocks <= most_blocks(target) && r.shape.block_bytes() * r.shape.blocks >= needs.bytes;
    return fits && r.suits(needs);
  });
  return found == std::end(kRings) ? nullptr : &found->shape;
}

bool are_few(const RingShape* ring, const Problem& p) {
  if (!p.target.clusters) return false;
  if (ring == nullptr) return true;
  return product(p.a.outer) * divide_up(ring->blocks, ring->resident) <= p.target.multiprocessors;
}

}  // namespace kfusion::codegen
