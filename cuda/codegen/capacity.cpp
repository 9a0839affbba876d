#include "codegen/capacity.hpp"

#include <iterator>

namespace kfusion::codegen {

std::int64_t vectors_of(const Arrangement& a) {
  return divide_up(product(a.inner) + (a.framed() ? a.width - 1 : 0), a.width);
}

std::int64_t bytes_of(const Kernel& k, const Arrangement& a, const std::vector<bool>& chosen) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const std::int64_t lanes = a.loads[i] == Reach::kSplat ? 1 : a.width;
    if (chosen[i]) bytes += std::max<std::int64_t>(4, lanes * static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)));
  }
  return std::max<std::int64_t>(bytes, 4);
}

std::int64_t row_bytes(const Kernel& k, const Arrangement& a, const Choice& c) {
  return vectors_of(a) * bytes_of(k, a, c.held);
}

bool in_doubles(const Kernel& k) {
  return std::ranges::any_of(k.steps, [](const Step& s) { return s.dtype == DType::kFloat64; });
}

bool is_heavy(const Kernel& k) { return in_doubles(k) || k.steps.size() > 24; }

namespace {
constexpr RingCapacity kRings[] = {
    {4, 8, 2, 1, 4}, {4, 16, 1, 1, 4}, {4, 16, 1, 2, 4}, {4, 8, 2, 8, 3}, {4, 16, 1, 8, 4}, {4, 16, 1, 16, 4},
};
}  // namespace

RingCapacity fit(const RingCapacity& ring, const Kernel& k) {
  if (!is_heavy(k)) return ring;
  return {2 * ring.segments, ring.warps / 2, ring.resident, ring.blocks, ring.stages};
}

const RingCapacity* ring_for(std::int64_t bytes, const Target& target) {
  const auto* found = std::ranges::find_if(kRings, [&](const RingCapacity& r) {
    return (r.blocks == 1 || target.clusters) && r.block_bytes() * r.blocks >= bytes;
  });
  return found == std::end(kRings) ? nullptr : found;
}

std::int64_t rows_of_block(std::int64_t rows, std::int64_t blocks, const Choice& c) {
  return divide_up(rows, blocks * c.vectors) * c.vectors;
}

std::int64_t column_box(std::int64_t across, std::int64_t warps, std::int64_t blocks, std::int64_t partial_bytes) {
  return divide_up((warps + (blocks > 1 ? blocks : 0)) * across * partial_bytes, kSlotBytes) * kSlotBytes;
}

Tile tile_of(const Arrangement& a, const Choice& c, const Target& target, std::int64_t partial_bytes) {
  constexpr std::int64_t kSystemBytes = 1 << 10;  // that each block takes besides
  const std::int64_t rows = std::max<std::int64_t>(product(a.outer), 1), most = target.clusters ? kMaxCluster : 1;
  for (const auto& [segment, at_once] : {std::pair{128, kTilesAtOnce}, {64, kTilesAtOnce}, {64, 1}}) {
    const std::int64_t room = (target.shared_bytes + kSystemBytes) / at_once - kSystemBytes;
    const std::int64_t across = std::min<std::int64_t>(segment / c.vector_bytes, c.lanes);
    for (std::int64_t blocks = 1; blocks <= most; blocks *= 2) {
      const std::int64_t each = rows_of_block(rows, blocks, c);
      const std::int64_t boxes = 2 * column_box(across, c.threads / kWarp, blocks, partial_bytes);
      if (each * across * c.held_bytes + boxes <= room) return {across, each, blocks, at_once};
    }
  }
  return {};
}

}  // namespace kfusion::codegen
