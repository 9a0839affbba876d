#include "kfusion/plan/pattern.hpp"

#include <algorithm>

#include "kfusion/enumerators.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/partition/partition.hpp"

namespace kfusion {

static_assert(kPatterns == kEnumerators<Pattern>);
std::string_view name(Pattern p) { return enumerator_name(p); }

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
