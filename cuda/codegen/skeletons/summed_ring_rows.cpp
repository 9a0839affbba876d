// device/summed_ring.cuh: rows with sums of their columns, brought by bulk copies.
#include <bit>

#include "codegen/skeletons/rings.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::codegen {
namespace {

struct SummedRingPolicy {
  static constexpr int kWarps = 16, kTeams = 4;                ///< of a block, at most; warps that have elements
  static constexpr std::int64_t kLeastVectors = 128;           ///< of a row
  static constexpr int kMostVectors = 6, kSegmentVectors = 2;  ///< of a lane
  /// Registers of a lane beside the sums, of which all that do not fit would go to memory: layer norm's gradient of
  /// 4096 x 32768 bfloat16 takes 295 us in 17 warps of 96 registers, RMS norm's with half of the sums 209 (H200).
  static constexpr std::int64_t kRegisters = 64;
  /// More are slower (results/kernels.md): of rows that are on their way the first ones come later.
  static constexpr int kMostStages = 4;
  /// Neighbouring rows that the blocks of a cluster take together: one by one, or a part of all rows for each block, is
  /// slower by up to a tenth, as rows of x, g and the result lie to each other in memory.
  static constexpr unsigned kRun = 4;
};

/// Registers that each lane of so many warps can have. Each quarter of a multiprocessor has its own.
std::int64_t registers_of(int warps) {
  constexpr std::int64_t kQuarterOfRegisters = 1 << 14, kUnit = 8, kMost = 248;
  return std::min(kQuarterOfRegisters / (divide_up(warps, 4) * kWarp) / kUnit * kUnit, kMost);
}

bool reduces(const Kernel& k, int sweep) {
  for (std::size_t i = 0; i < k.steps.size(); ++i)
    if (k.steps[i].kind == StepKind::kReduce && k.paired.ready[i] == sweep + 1) return true;
  return false;
}

/// Number of sweeps that exchange partial results: all, or all but the last. 0 where other sweeps have none.
int reducing(const Kernel& k) {
  int count = 0;
  while (count < k.paired.sweeps && reduces(k, count)) ++count;
  return count + 1 < k.paired.sweeps ? 0 : count;
}

/// By load: whether bulk copies bring it, also where one sweep alone reads it.
std::vector<bool> copied(const Problem& p) {
  std::vector<bool> held = p.held;
  for (std::size_t i = 0; i < held.size(); ++i) {
    const bool of_row = std::ranges::any_of(p.a.outer_of(p.k.loads[i]), [](std::int64_t n) { return n != 0; });
    held[i] = held[i] || (of_row && !p.a.per_row(p.k.loads[i]) && is_bulk_copied(p.k, p.a, i));
  }
  return held;
}

/// Upper bound for the bytes of a row's values, with what makes divisions by them quick.
std::int64_t value_bound(const Kernel& k) {
  std::int64_t bytes = 0;
  for (const Step& s : k.steps)
    bytes += (s.level == Level::kRow ? 8 : 0) + (s.kind == StepKind::kMap && s.op == Op::divide ? 32 : 0);
  return std::max(whole_slots(bytes), kSlotBytes);
}

struct SummedRingRows : Configuration {
  int vectors = 2, teams = 1, warps = 1, blocks = 1, stages = 0;
  std::int64_t segments = 0;  ///< of a row, that a block has
  std::int64_t held_bytes = 0, value_bytes = 0, room = 0;

  static std::optional<SummedRingRows> choose(const Problem& p) {
    using Policy = SummedRingPolicy;
    if (p.k.parts() == 0 || !can_ring(p) || reducing(p.k) == 0 || vectors_of(p.a) < Policy::kLeastVectors) return {};
    SummedRingRows c;
    c.traits.held = copied(p), c.traits.sums = true, c.traits.staging = Traits::Staging::kBulkCopies;
    c.held_bytes = bytes_of(p.k, p.a, c.traits.held);
    for (const int i : RingNeeds(p).shared)
      if (!c.traits.held[at(i)]) c.traits.shared.push_back(i);
    c.least_blocks = 1, c.value_bytes = value_bound(p.k), c.room = exchange_room(partial_bound(p.k));
    const int most_blocks = p.target.clusters ? kMaxCluster : 1;
    for (c.blocks = 1; c.blocks <= most_blocks; c.blocks *= 2)
      for (c.vectors = Policy::kSegmentVectors; c.vectors <= Policy::kMostVectors; c.vectors += Policy::kSegmentVectors)
        if (c.fits(p)) return c;
    return {};
  }

  /// Whether a shape with so many blocks and vectors fits; finds its other members.
  bool fits(const Problem& p) {
    using Policy = SummedRingPolicy;
    segments = divide_up(vectors_of(p.a), std::int64_t{kWarp} * Policy::kSegmentVectors * blocks);
    const std::int64_t needed = divide_up(segments * Policy::kSegmentVectors, std::int64_t{vectors});
    if (needed > Policy::kWarps) return false;
    warps = static_cast<int>(needed);
    const int rows = std::min(Policy::kWarps / warps, Policy::kTeams);
    teams = blocks > 1 ? 1 : static_cast<int>(std::bit_floor(static_cast<unsigned>(rows)));
    threads = (warps + 1) * teams * kWarp;
    const std::int64_t sums = vectors * sum_bytes(p.k, p.a) / 4;
    if (sums + Policy::kRegisters > registers_of(threads / kWarp)) return false;
    const int least = p.k.paired.sweeps + 1;
    for (stages = Policy::kMostStages; stages >= least; --stages)
      if (shared_bytes(p) <= p.target.shared_bytes) return true;
    return false;
  }

  std::int64_t shared_bytes(const Problem& p) const {
    const std::int64_t lanes = std::int64_t{warps} * kWarp * vectors;
    const int sweeps = reducing(p.k), places = 2 * sweeps;
    const std::int64_t stage = segments * SummedRingPolicy::kSegmentVectors * kWarp * held_bytes;
    const std::int64_t kept = lanes * kSlotBytes * std::ssize(traits.shared);
    const std::int64_t barriers = 8 * (warps + teams * (3 * stages + 2 * places)) + kSlotBytes;
    const std::int64_t posts = teams * (stages * value_bytes + places * (warps * room + value_bytes));
    const std::int64_t boxes = blocks > 1 ? sweeps * (kSlotBytes + 2 * blocks * room) : 0;
    const std::int64_t joined = teams / 2 * lanes * sum_bytes(p.k, p.a);
    return std::max(teams * stages * stage + kept + barriers + posts + boxes, joined);
  }

  std::string call() const override {
    const unsigned run = std::max(SummedRingPolicy::kRun / static_cast<unsigned>(blocks), 1U);
    return "SummedRing{" + listed(vectors, teams, warps, segments, stages, room, value_bytes, std::countr_zero(run)) +
           "}";
  }

  Division launch(const Problem& p, std::int64_t) const override {
    Division d({p.k.parts() * blocks}, {threads}, Geometry{.rows = product(p.a.outer), .splits = p.k.parts()});
    d.launch.cluster = static_cast<unsigned>(blocks);
    d.launch.shared_bytes = static_cast<std::size_t>(shared_bytes(p));
    return d;
  }
};

}  // namespace

bool has_summed_rings(const Problem& p) { return SummedRingRows::choose(p).has_value(); }

Skeleton summed_ring_rows() { return skeleton<SummedRingRows>("summed_ring_rows", "device/summed_ring.cuh"); }

}  // namespace kfusion::codegen
