// Reads of a folded graph as values of patterns (graph/match.hpp).
#pragma once
#include "kfusion/graph/match.hpp"
#include "kfusion/plan/views/fold.hpp"

namespace kfusion {

struct ReadsReader {
  const Graph& g;
  const FoldedGraph& folded;

  Op op(const Access* a) const { return g[a->base].op; }
  const Access* argument(const Access* a, std::size_t i) const { return &folded.work[at(a->base)].reads[i]; }
  std::optional<double> number(const Access* a) const { return m::GraphReader{g}.number(a->base); }
};

}  // namespace kfusion
