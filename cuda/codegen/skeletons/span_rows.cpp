// device/spans.cuh: other rows of up to 100 elements that are no multiple of 16 bytes, in registers of some lanes, a
// warp's as one span of shared memory.
#include <bit>

#include "codegen/capacity.hpp"

namespace kfusion::codegen {
namespace {

struct SpanRowsPolicy {
  static constexpr int kThreads = 128, kLeastBlocks = 8, kLeastHeavyBlocks = 4;
  static constexpr int kMostVectors = 24;  ///< of a lane with so many blocks
  /// Bytes of a warp's rows, enough to have some in flight; and of a block's, at most.
  static constexpr std::int64_t kSpanBytes = 2 << 10, kMostBytes = 48 << 10;
};

struct SpanRows : Configuration {
  int lanes = kWarp, vectors = 1;  ///< lanes that share a row, vectors of it that each has

  /// Takes as few lanes a row as can hold it, since work done once a row costs more than work done once an element. A
  /// warp's rows are whole slots.
  static std::optional<SpanRows> choose(const Problem& p) {
    using Policy = SpanRowsPolicy;
    if (!p.a.spans) return {};
    SpanRows c;
    c.traits.held = p.held;
    const std::int64_t cols = p.a.inner[0];
    const auto lanes = std::bit_ceil(static_cast<std::uint64_t>(divide_up(cols, kLaneElements)));
    c.lanes = std::min(static_cast<int>(lanes), kWarp);
    c.vectors = static_cast<int>(divide_up(vectors_of(p.a), c.lanes));
    c.threads = Policy::kThreads;
    const bool full = is_heavy(p.k) || c.vectors > Policy::kMostVectors;
    c.least_blocks = full ? Policy::kLeastHeavyBlocks : Policy::kLeastBlocks;
    const std::int64_t row_bytes = cols * span_areas(p.k, p.a, p.held).bytes;
    std::int64_t rows = std::max<std::int64_t>(kWarp / c.lanes, span_unit(p.k, p.a));
    while (rows * row_bytes <= Policy::kSpanBytes) rows *= 2;
    c.traits.span_rows = static_cast<int>(rows);
    while (c.threads > kWarp && c.threads / kWarp * rows * row_bytes > Policy::kMostBytes) c.threads /= 2;
    return c;
  }

  std::string call() const override { return listed(lanes, vectors, traits.span_rows); }

  Division launch(const Problem& p, std::int64_t) const override {
    const std::int64_t rows = std::int64_t{threads} / kWarp * traits.span_rows;
    return divide_rows(p, threads, rows, rows * product(p.a.inner) * span_areas(p.k, p.a, traits.held).bytes);
  }
};

}  // namespace

Skeleton span_rows() { return skeleton<SpanRows>("span_rows", "device/spans.cuh"); }

}  // namespace kfusion::codegen
