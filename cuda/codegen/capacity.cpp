#include "codegen/capacity.hpp"

#include <iterator>
#include <map>
#include <span>

namespace kfusion::codegen {

std::int64_t shared_bytes_of(int resident, const Target& target) {
  constexpr std::int64_t kSystemBytes = 1 << 10;  // that each block takes besides
  return (target.shared_bytes + kSystemBytes) / resident - kSystemBytes;
}

std::int64_t vectors_of(const Arrangement& a) {
  if (a.framed()) return std::max<std::int64_t>((product(a.inner) - a.behind) / a.width, 1);
  return divide_up(product(a.inner), a.width);
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

namespace {
/// Bytes of an element, of each staged operand.
std::vector<std::int64_t> staged_items(const Kernel& k, const Arrangement& a) {
  std::vector<std::int64_t> items;
  for (std::size_t i = 0; i < k.loads.size(); ++i)
    if (a.loads[i] == Reach::kStaged) items.push_back(static_cast<std::int64_t>(item_bytes(k.loads[i].dtype)));
  for (std::size_t i = 0; i < k.stores.size(); ++i)
    if (a.stores[i] == Reach::kStaged) items.push_back(static_cast<std::int64_t>(item_bytes(k.stores[i].to.dtype)));
  return items;
}
}  // namespace

std::int64_t span_unit(const Kernel& k, const Arrangement& a) {
  return kSlotBytes / std::ranges::min(staged_items(k, a));
}

SpanAreas span_areas(const Kernel& k, const Arrangement& a, const std::vector<bool>& held) {
  SpanAreas areas;
  std::multimap<std::int64_t, std::int64_t> left;  // areas of loads that registers hold: where, by bytes of an element
  for (std::size_t i = 0; i < k.loads.size(); ++i) {
    const auto item = static_cast<std::int64_t>(item_bytes(k.loads[i].dtype));
    areas.loads.push_back(areas.bytes);
    if (a.loads[i] != Reach::kStaged) continue;
    if (held[i]) left.emplace(item, areas.bytes);
    areas.bytes += item;
  }
  for (std::size_t i = 0; i < k.stores.size(); ++i) {
    const auto item = static_cast<std::int64_t>(item_bytes(k.stores[i].to.dtype));
    const auto found = left.find(item);
    areas.stores.push_back(found == left.end() ? areas.bytes : found->second);
    if (a.stores[i] != Reach::kStaged) continue;
    if (found == left.end())
      areas.bytes += item;
    else
      left.erase(found);
  }
  return areas;
}

std::int64_t packed_slots(const Kernel& k, const Arrangement& a) {
  return a.packed * product(a.inner) * std::ranges::max(staged_items(k, a)) / kSlotBytes;
}

bool in_doubles(const Kernel& k) {
  return std::ranges::any_of(k.steps, [](const Step& s) { return s.dtype == DType::kFloat64; });
}

bool is_heavy(const Kernel& k) { return in_doubles(k) || k.steps.size() > 24; }

namespace {
/// Of a cluster. Those of more than 8 not all architectures have that have clusters.
int most_blocks(const Target& target) {
  if (!target.clusters) return 1;
  return target.compute_major == 9 || target.compute_major == 10 ? kLargestCluster : kMaxCluster;
}

// Measured (results/kernels.md): small blocks, of which a multiprocessor has several, work while others exchange, and
// clusters of many leave each room for all its weights. What warps do once a segment, or once for the edges of a row,
// takes too long for vectors of eight elements, so they have more segments.
constexpr bool all(const RingNeeds&) { return true; }
constexpr bool of_one(const RingNeeds& n) { return n.single(); }
constexpr bool of_fours(const RingNeeds& n) { return n.whole && n.light; }
constexpr bool of_one_whole(const RingNeeds& n) { return n.whole && n.single(); }
constexpr bool unweighted(const RingNeeds& n) { return n.single() && !n.fetches; }
constexpr bool weighted(const RingNeeds& n) { return n.single() && n.shared > 0; }
constexpr bool of_fours_weighted(const RingNeeds& n) { return n.light && weighted(n); }
/// Of a shorter row, half of the warps would have one segment and the others two.
constexpr bool of_fours_biased(const RingNeeds& n) {
  return of_fours_weighted(n) && n.shared > 1 && n.bytes > 768 << 10;
}
constexpr RingCapacity kRings[] = {
    {{1, 8, 4, 8, 1}, of_fours},             // 128 KB
    {{2, 4, 4, 8, 2}, of_one_whole},         // 128 KB
    {{4, 8, 2, 2, 3}, unweighted},           // 128 KB
    {{1, 8, 4, 16, 1}, of_fours},            // 256 KB
    {{2, 8, 2, 8, 2}, weighted},             // 256 KB
    {{4, 8, 2, 4, 3}, unweighted},           // 256 KB
    {{4, 16, 1, 2, 4}, all},                 // 256 KB
    {{1, 16, 2, 16, 1}, of_fours_weighted},  // 512 KB
    {{4, 8, 2, 8, 3}, all},                  // 512 KB
    {{2, 16, 1, 16, 2}, of_fours_biased},    //   1 MB
    {{4, 16, 1, 8, 4}, of_fours_weighted},   //   1 MB
    {{4, 8, 2, 16, 3}, of_one},              //   1 MB
    {{4, 16, 1, 8, 4}, all},                 //   1 MB
    {{4, 16, 1, 16, 4}, all},                //   2 MB
};

/// Blocks of a cluster for a row that takes `least`: as many as can be without fewer clusters at once. A cluster's
/// blocks are of one group of 16 multiprocessors (or 18).
int packed_blocks(std::int64_t least, int resident) {
  const std::int64_t slots = std::int64_t{kLargestCluster} * resident;
  return static_cast<int>(std::min<std::int64_t>(slots / (slots / least), kLargestCluster));
}
}  // namespace

const RingCapacity* ring_for(const RingNeeds& needs, const Target& target) {
  const auto* found = std::ranges::find_if(kRings, [&](const RingCapacity& r) {
    return r.shape.blocks <= most_blocks(target) && r.block_bytes() * r.shape.blocks >= needs.bytes && r.suits(needs);
  });
  return found == std::end(kRings) ? nullptr : found;
}

RingShape fit(const RingCapacity& ring, const Kernel& k, const RingNeeds& needs, std::int64_t rows,
              const Target& target) {
  RingShape fitted = ring.shape;
  const std::int64_t least = divide_up(needs.bytes, ring.block_bytes());
  if (fitted.blocks == 0)
    fitted.blocks = static_cast<int>(std::max(least, target.multiprocessors / std::max<std::int64_t>(rows, 1)));
  else if (fitted.segments <= 2)
    fitted.blocks = std::min(fitted.blocks, packed_blocks(least, fitted.resident));
  if (is_heavy(k)) fitted.segments *= 2, fitted.warps /= 2;
  const int operands = static_cast<int>(divide_up(needs.held_bytes, kSlotBytes));
  const int fewer = std::min(operands, fitted.segments);
  fitted.segments = static_cast<int>(divide_up(fitted.segments, fewer));
  fitted.stages = static_cast<int>(divide_up(fitted.stages, fewer));
  fitted.warps = static_cast<int>(divide_up(std::int64_t{fitted.warps} * fewer, operands));
  return fitted;
}

std::int64_t exchange_room(std::int64_t partial_bytes) { return divide_up(partial_bytes + 4, kSlotBytes) * kSlotBytes; }

std::int64_t partial_bound(const Kernel& k) { return 12 * std::ranges::count(k.steps, StepKind::kReduce, &Step::kind); }

std::int64_t ring_bytes(const RingShape& ring, bool spread, std::int64_t room, std::int64_t held_bytes) {
  const std::int64_t stage = kWarp * kSegmentVectors * held_bytes + 8;
  const std::int64_t messages = ring.warps + 1 + (spread ? 1 : 2) * ring.blocks;
  return ring.warps * (ring.stages * stage + 8) + messages * room + 3 * kSlotBytes;
}

std::int64_t kept_bytes(const RingShape& ring, std::int64_t segments) {
  return kWarp * kSegmentVectors * kSlotBytes * ring.warps * segments;
}

SpreadCapacity spread_of(const Arrangement& a, const Choice& c, const Target& target) {
  const std::int64_t vectors = vectors_of(a), batch = std::min(c.vectors, 4);
  const std::int64_t all = target.multiprocessors / std::max<std::int64_t>(product(a.outer), 1);
  const std::int64_t blocks = std::min(all, divide_up(vectors, std::int64_t{c.threads} * c.vectors));
  const std::int64_t each = divide_up(vectors, std::max<std::int64_t>(blocks, 1) * c.threads);
  return {blocks, divide_up(std::max<std::int64_t>(each - c.vectors, 0), batch) * batch};
}

std::int64_t spread_bytes(const SpreadCapacity& spread, int threads, std::int64_t room, std::int64_t held_bytes) {
  const std::int64_t warps = threads / kWarp;
  return spread.staged * threads * held_bytes + warps * 8 + kSlotBytes + (warps + 1 + spread.blocks) * room;
}

namespace {
/// Segments of 64 bytes a thread. Measured (results/kernels.md): 256 bytes of a row are read and written quicker
/// than 128.
constexpr int kSegmentBytes = 64;
constexpr TileShape kStagedTiles[] = {
    {512, 128, 4, 1, 4, 4, 4},   //    64 rows of float32
    {256, 64, 8, 1, 4, 4, 4},    //    64: what needs more room to merge, as half types do
    {512, 256, 2, 1, 4, 4, 4},   //   128
    {256, 256, 2, 1, 4, 4, 4},   //   256
    {256, 512, 1, 1, 4, 4, 4},   //   512
    {256, 512, 1, 1, 6, 4, 6},   //   768
    {256, 256, 2, 2, 8, 4, 5},   //  1024
    {256, 512, 1, 1, 8, 4, 5},   //  1024: without clusters
    {256, 512, 1, 2, 7, 4, 5},   //  1792
    {256, 256, 2, 4, 8, 4, 5},   //  2048
    {256, 512, 1, 2, 8, 4, 5},   //  2048: what needs more room for its exchange, as half types do
    {256, 256, 2, 8, 8, 4, 5},   //  4096
    {256, 512, 1, 4, 8, 4, 5},   //  4096
    {256, 256, 2, 16, 8, 4, 4},  //   8192
    {256, 512, 1, 8, 8, 4, 5},   //   8192
    {128, 256, 2, 8, 8, 4, 5},   //   8192
    {128, 256, 2, 16, 8, 4, 5},  // 16384
    {128, 512, 1, 8, 8, 4, 6},   // 16384
    {128, 512, 1, 16, 8, 4, 6},  // 32768
    {128, 512, 1, 16, 8, 4, 5},  // 32768: with weights
    {64, 512, 1, 16, 8, 4, 6},   // 65536
    {64, 512, 1, 1, 8, 4, 5},    //  4096: without clusters
    {64, 512, 1, 1, 4, 4, 4},    //  2048: with less shared memory
};
constexpr TileShape kTiles[] = {
    {512, 128, 4, 1, 4, 4, 0}, {512, 256, 2, 1, 4, 4, 0}, {256, 256, 2, 1, 4, 4, 0}, {128, 256, 2, 1, 4, 4, 0},
    {128, 512, 1, 1, 4, 4, 0}, {128, 512, 1, 2, 4, 4, 0}, {128, 512, 1, 4, 4, 4, 0}, {128, 512, 1, 8, 4, 4, 0},
    {64, 512, 1, 8, 4, 4, 0},  {64, 512, 1, 16, 4, 4, 0},
};

/// With rows in a segment: as many as operands that lie across need, then of fewer segments. What computes much has
/// half the threads, with twice the registers.
TileShape fit(TileShape tile, const Kernel& k, const Arrangement& a, const Choice& c) {
  tile.rows = a.crossed() ? a.width : static_cast<int>(clamp(kSegmentBytes / c.held_bytes, 1, 8));
  const int times = std::max(tile.rows * c.held_bytes / kSegmentBytes, 1);
  for (int* segments : {&tile.segments, &tile.held, &tile.stages})
    if (*segments > 0) *segments = std::max(*segments / times, 1);
  if (is_heavy(k)) tile.threads /= 2;
  return tile;
}
}  // namespace

std::int64_t column_bound(const Kernel& k) {
  // A mean with its second moment: two values and a count, which is as wide as they are.
  const auto third = [&](const Pair& p) {
    return p.kind == Pair::Kind::kCentred && k.steps[at(p.first)].from == DType::kFloat64;
  };
  return 8 * (std::ranges::count(k.steps, StepKind::kReduce, &Step::kind) + std::ranges::count_if(k.pairs, third));
}

int tile_lanes(const TileShape& tile, int vector_bytes) { return std::clamp(tile.row_bytes / vector_bytes, 1, kWarp); }

std::int64_t rows_of_block(const Arrangement& a, const Choice& c, std::int64_t blocks) {
  const std::int64_t alike = c.threads / c.lanes * (a.crossed() ? c.tile.rows : 1);
  return divide_up(product(a.outer), blocks * alike) * alike;
}

std::int64_t tile_bytes(const Arrangement& a, const Choice& c, std::int64_t column_bytes, std::int64_t blocks) {
  const std::int64_t room = divide_up(column_bytes, kSlotBytes) * kSlotBytes, columns = c.lanes * a.width;
  const std::int64_t parts = c.threads / kWarp + 1, told = blocks > 1 ? 2 * blocks : 0;
  const std::int64_t kept = divide_up(rows_of_block(a, c, blocks), kSlotBytes) * kSlotBytes * c.kept;
  return kept + c.threads * c.tile.stages * c.tile.rows * c.held_bytes + 4 * kSlotBytes +
         columns * room * (1 + parts + told);
}

TileShape tile_for(const Kernel& k, const Arrangement& a, const Choice& c, const Target& target, int vector_bytes,
                   bool staged) {
  const auto fits = [&](const TileShape& tile) {
    Choice with = c;
    with.tile = tile, with.threads = tile.threads, with.lanes = tile_lanes(tile, vector_bytes);
    const std::int64_t held = tile.rows * tile.segments;
    return tile.blocks <= most_blocks(target) && tile.threads % with.lanes == 0 &&
           rows_of_block(a, with, tile.blocks) <= held * (tile.threads / with.lanes) &&
           tile_bytes(a, with, column_bound(k), tile.blocks) <= shared_bytes_of(tile.resident, target);
  };
  for (const TileShape& one : staged ? std::span<const TileShape>(kStagedTiles) : kTiles) {
    if (const TileShape tile = fit(one, k, a, c); fits(tile)) return tile;
  }
  return {};
}

std::int64_t column_box(std::int64_t across, std::int64_t warps, std::int64_t blocks, std::int64_t partial_bytes) {
  return divide_up((warps + (blocks > 1 ? blocks : 0)) * across * partial_bytes, kSlotBytes) * kSlotBytes;
}

}  // namespace kfusion::codegen
