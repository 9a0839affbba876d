#include "kfusion/lower/attention.hpp"

#include <algorithm>
#include <stdexcept>

#include "kfusion/lower/beside.hpp"
#include "kfusion/lower/idioms.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

/// The nodes of a kernel that is attention, apart.
struct Halves {
  NodeId largest = 0, sum = 0, weights = 0, product = 0;  ///< product: of the weights and the values
  std::vector<NodeId> scores, output;  ///< ascending; what divides by the sum, and rounds that, is in neither
};

class Reader {
 public:
  explicit Reader(const Candidate& k) : k_(k) {}

  Op op(NodeId n) const { return k_.graph[n].op; }
  const std::vector<Access>& reads(NodeId n) const { return k_.folded.work[at(n)].reads; }
  NodeId read(NodeId n, std::size_t i) const { return reads(n)[i].base; }

  /// Those of the kernel that `ends` are made of.
  std::vector<NodeId> made_of(std::vector<NodeId> ends) const {
    std::vector<NodeId> found;
    for (auto n = k_.nodes.rbegin(); n != k_.nodes.rend(); ++n) {
      if (std::ranges::find(ends, *n) == ends.end()) continue;
      found.push_back(*n);
      for (const Access& a : reads(*n)) ends.push_back(a.base);
    }
    std::ranges::reverse(found);
    return found;
  }

 private:
  const Candidate& k_;
};

/// Weights that are exp(x - max(x)) / sum, as they are or rounded to a half type.
std::optional<Halves> halves_of(const Candidate& k) {
  const Reader r(k);
  const auto is_of_weights = [&](NodeId n) { return r.op(n) == Op::matmul && k.computes(r.read(n, 0)); };
  const auto product = std::ranges::find_if(k.nodes, is_of_weights);
  if (product == k.nodes.end() || std::ranges::count_if(k.nodes, is_of_weights) != 1) return std::nullopt;
  Halves h;
  h.product = *product, h.weights = r.read(h.product, 0);
  if (k.computes(r.read(h.product, 1))) return std::nullopt;  // values are known before any weight is
  const bool rounds = r.op(h.weights) == Op::cast && is_half(k.graph[h.weights].dtype);
  const NodeId quotient = rounds ? r.read(h.weights, 0) : h.weights;
  if (!k.computes(quotient) || r.op(quotient) != Op::divide) return std::nullopt;
  const NodeId exponentials = r.read(quotient, 0);
  h.sum = r.read(quotient, 1);
  if (!k.computes(exponentials) || r.op(exponentials) != Op::exp || r.op(h.sum) != Op::sum) return std::nullopt;
  const NodeId shifted = r.read(exponentials, 0);
  if (!k.computes(shifted) || r.op(shifted) != Op::subtract) return std::nullopt;
  h.largest = r.read(shifted, 1);
  if (!k.computes(h.largest) || r.op(h.largest) != Op::max) return std::nullopt;
  h.scores = r.made_of({h.largest, h.sum});
  for (const NodeId n : k.nodes)
    if (n != h.weights && n != quotient && !std::ranges::binary_search(h.scores, n)) h.output.push_back(n);
  const auto is_of_scores = [&](NodeId n) { return n == quotient || std::ranges::binary_search(h.scores, n); };
  for (const NodeId n : h.output)
    for (const Access& a : r.reads(n))
      if (n == h.product ? a.base != h.weights && is_of_scores(a.base) : a.base == h.weights || is_of_scores(a.base))
        return std::nullopt;
  return h;
}

/// A kernel that is lowered as attention.
struct TwoProducts {
  Halves halves;
  std::vector<NodeId> statistics;  ///< what the scores leave: the largest and the sum, ascending
  Contraction scores, output;      ///< without their epilogues
};

/// Or why it is none.
std::optional<TwoProducts> two_products(const Candidate& k, std::string& why) {
  const auto no = [&why](std::string reason) {
    why = std::move(reason);
    return std::nullopt;
  };
  const auto h = halves_of(k);
  if (!h) return no("takes weights that are softmax(scores), as they are");
  const std::vector<NodeId> statistics = {std::min(h->largest, h->sum), std::max(h->largest, h->sum)};
  const Candidate scores{k.graph, k.folded, Pattern::kContractionReduction, h->scores, statistics};
  const Candidate output{k.graph, k.folded, Pattern::kMatmul, h->output, k.stores};
  for (const Candidate& half : {scores, output})
    if (auto reason = why_no_contraction(half, {.batches = BatchAxes::kLeading})) return no(std::move(*reason));
  const auto first = products_of(scores, BatchAxes::kLeading), second = products_of(output, BatchAxes::kLeading);
  if (first->reduces != Reduces::kCols || first->products.size() != 1 || second->products.size() != 1)
    return no("takes one product of queries and keys, and one of its weights and values");
  if (first->batches != second->batches || first->rows != second->rows || first->cols != second->depth)
    return no("takes scores and values of the same batches");
  if (std::ranges::any_of(k.stores, [&](NodeId n) { return std::ranges::binary_search(h->scores, n); }))
    return no("stores no scores");
  return TwoProducts{*h, statistics, *first, *second};
}

}  // namespace

std::optional<std::string> why_no_attention(const Candidate& k) {
  std::string why;
  return two_products(k, why) ? std::nullopt : std::optional(why);
}

std::optional<Attention> attention_of(const Candidate& k) {
  std::string why;
  auto j = two_products(k, why);
  return j ? std::optional(Attention{std::move(j->scores), std::move(j->output)}) : std::nullopt;
}

Attention Lowering::attention(int group_index) const {
  const Group& group = plan_.groups[at(group_index)];
  std::string why;
  const auto j = two_products(candidate_of(plan_, group), why);
  if (!j) throw std::logic_error("kfusion: a kernel is no attention: " + why);
  const auto lowered = [&](const std::vector<NodeId>& nodes, const std::vector<NodeId>& stores) {
    return contraction(part_of(group, nodes, stores), BatchAxes::kLeading);
  };
  Attention a{lowered(j->halves.scores, j->statistics), lowered(j->halves.output, group.stores)};
  a.scores.epilogue.rough = true;
  annotate(a.scores.epilogue);
  const std::vector<Pair>& pairs = a.scores.epilogue.pairs;
  if (pairs.size() != 1 || pairs[0].kind != Pair::Kind::kShifted)
    throw std::logic_error("kfusion: attention's sum of exponentials is not that of its largest score");
  return a;
}

}  // namespace kfusion
