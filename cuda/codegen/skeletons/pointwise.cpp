// device/pointwise.cuh: maps.
#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

/// 32 bytes in flight a thread in blocks of 128 measured best of 1 to 4 vectors and 128 to 512 threads (H200, 1 GB); of
/// arrays so small that all threads run at once, a vector a thread in blocks of 512 (1024 x 1024: 0.90 to 0.97). Those
/// leave a thread 32 registers, too few for more than four operands.
struct PointwisePolicy {
  static constexpr int kThreads = 128, kBytesInFlight = 32, kMostVectors = 4;
  static constexpr int kLeastBlocks = 12;  ///< 40 registers: GELU 0.98 of a copy to 1.00, of bfloat16 0.88 to 0.99
  static constexpr int kLeastHeavyBlocks = 8, kLeastBlocksInDoubles = 4;
  static constexpr int kFewThreads = 512, kThreadsAtOnce = 2048;  ///< of a multiprocessor
  static constexpr std::int64_t kMostFewBytes = 4 * kSlotBytes;   ///< that a thread loads
};

struct Pointwise : Configuration {
  int vectors = 1;  ///< of a thread

  static std::optional<Pointwise> choose(const Problem& p) {
    using Policy = PointwisePolicy;
    if (p.a.traversal != Traversal::kPointwise) return {};
    Pointwise c;
    c.traits.held = element_loads(p.k, p.a);
    c.traits.through_l1 = true;
    const bool at_once = vectors_of(p.a) <= p.target.multiprocessors * std::int64_t{Policy::kThreadsAtOnce};
    if (at_once && !is_heavy(p.k) && bytes_of(p.k, p.a, c.traits.held) <= Policy::kMostFewBytes) {
      c.threads = Policy::kFewThreads, c.least_blocks = Policy::kThreadsAtOnce / Policy::kFewThreads;
      return c;
    }
    c.vectors = vectors_in_flight(p.k, p.a, Policy::kBytesInFlight, Policy::kMostVectors);
    c.threads = Policy::kThreads;
    c.least_blocks = in_doubles(p.k) ? Policy::kLeastBlocksInDoubles
                     : is_heavy(p.k) ? Policy::kLeastHeavyBlocks
                                     : Policy::kLeastBlocks;
    return c;
  }

  std::string call() const override { return listed(vectors); }

  Division launch(const Problem& p, std::int64_t) const override {
    return Division({divide_up(vectors_of(p.a), std::int64_t{threads} * vectors)}, {threads});
  }
};

}  // namespace

Skeleton pointwise() { return skeleton<Pointwise>("pointwise", "device/pointwise.cuh"); }

}  // namespace kfusion::codegen
