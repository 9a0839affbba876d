#include "kfusion/plan/pattern.hpp"

#include <algorithm>

#include "kfusion/ops/names.hpp"
#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {

std::string_view name(Pattern p) {
  constexpr std::string_view kNames[] = {"pointwise",    "rows",   "columns",   "full_reduction",
                                         "matmul",       "conv2d", "attention", "contraction_reduction",
                                         "library_call", "copy"};
  static_assert(std::size(kNames) == kPatterns);
  return kNames[static_cast<std::size_t>(p)];
}

Pattern Partition::pattern_of(const Part& part, const std::vector<NodeId>& nodes) const {
  if (part.attention) return Pattern::kAttention;
  const auto has = [&](Op op) { return std::ranges::any_of(nodes, [&](NodeId n) { return g_[n].op == op; }); };
  const bool contracts = has(Op::matmul), convolves = has(Op::conv2d);
  const bool reduces = std::ranges::any_of(nodes, [&](NodeId n) { return work_kind(n) == WorkKind::kReduce; });
  if ((contracts || convolves) && reduces) return Pattern::kContractionReduction;
  if (contracts) return Pattern::kMatmul;
  if (convolves) return Pattern::kConv2d;
  if (part.kind == WorkKind::kLibrary) return Pattern::kLibraryCall;
  if (!reduces || part.reduced == 0)
    return nodes.size() == 1 && part.kind == WorkKind::kCopy ? Pattern::kCopy : Pattern::kPointwise;
  if (part.whole) return Pattern::kFullReduction;
  const Axes kept = part.kept();
  return (kept & (kept + 1)) == 0 ? Pattern::kRows : Pattern::kColumns;
}

}  // namespace kfusion
