#include "kfusion/plan/partition/contractions.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>

#include "kfusion/graph/facts.hpp"
#include "kfusion/graph/match.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/sweeps.hpp"

namespace kfusion {
namespace {

/// Whether every reader of n computes in part `part`, and n is no result of the function.
bool only_read_by(const Partition& p, NodeId n, int part) {
  const auto& readers = p.readers(n);
  return !p.is_output(n) && std::all_of(readers.begin(), readers.end(), [&](NodeId r) { return p.part_of(r) == part; });
}

bool is_contraction(const Partition& p, int part) { return part >= 0 && p.part(part).kind == WorkKind::kContraction; }

class Reader {
 public:
  Reader(const Graph& g, const FoldedGraph& folded) : g_(g), folded_(folded) {}
  Op op(NodeId n) const { return g_[n].op; }
  NodeId argument(NodeId n, std::size_t i) const { return read(n, i); }
  const std::vector<Access>& reads(NodeId n) const { return folded_.work[static_cast<std::size_t>(n)].reads; }
  NodeId read(NodeId n, std::size_t i) const { return reads(n)[i].base; }

 private:
  const Graph& g_;
  const FoldedGraph& folded_;
};

/// The reductions of a softmax: e / sum(e) with e = exp(x) or exp(x - largest).
struct Softmax {
  NodeId sum = -1, largest = -1;
};

std::optional<Softmax> softmax_of(const Reader& r, NodeId n) {
  Softmax s;
  NodeId e = -1, x = -1;
  if (!m::casts(m::divide(m::bind(e, m::exp(m::bind(x))), m::bind(s.sum, m::sum(m::is(e)))))(r, n)) return {};
  m::subtract(m::value(), m::bind(s.largest, m::max()))(r, x);
  return s;
}

/// The part whose product the softmax in part `softmax` is of, through elementwise scaling and masking there.
int scores_part(const Reader& r, const Partition& p, int softmax) {
  int found = -1;
  for (const NodeId n : p.part(softmax).nodes) {
    for (const Access& a : r.reads(n)) {
      const int from = p.part_of(a.base);
      if (from == softmax || !is_contraction(p, from)) continue;
      if ((found >= 0 && found != from) || !is_identity(a) || !only_read_by(p, a.base, softmax)) return -1;
      found = from;
    }
  }
  return found;
}

/// Online softmax has no other statistic of a row at hand: scores that are normalised or masked by one are stored.
bool reduces_for_softmax_only(const Graph& g, const Part& part, const Softmax& softmax) {
  return std::ranges::all_of(part.nodes, [&](NodeId n) {
    return kind(g[n].op) != OpKind::kReduce || n == softmax.sum || n == softmax.largest;
  });
}

/// Whether a part is one matrix product with its epilogue: no convolution, and no pattern has taken it.
bool is_plain_product(const Graph& g, const Part& part) {
  const auto count = [&](auto is) { return std::count_if(part.nodes.begin(), part.nodes.end(), is); };
  return part.reduced == 0 && count([&](NodeId n) { return g[n].op == Op::matmul; }) == 1 &&
         count([&](NodeId n) { return kind(g[n].op) == OpKind::kContraction; }) == 1;
}

bool reduces_last_axis(const Part& part, std::int64_t extent) {
  return part.reduced != 0 && part.reduced == axis_bit(part.domain.size() - 1) && part.domain.back() == extent;
}

std::vector<Edge> edges_between(const Partition& p, int from, int to) {
  std::vector<Edge> found;
  for (const NodeId n : p.part(to).nodes)
    for (const Edge& e : p.edges_into(n))
      if (p.part_of(e.producer) == from) found.push_back(e);
  return found;
}

bool try_attention(const Reader& r, const Graph& g, Partition& p, NodeId product) {
  if (r.op(product) != Op::matmul) return false;
  const Access& weights = r.reads(product)[0];
  const int softmax = p.part_of(weights.base), output = p.part_of(product);
  if (softmax < 0 || softmax == output || !is_identity(weights) || !only_read_by(p, weights.base, output)) return false;
  if (r.read(product, 1) == weights.base) return false;  // both factors: no values
  const auto reductions = softmax_of(r, weights.base);
  if (p.part(softmax).stores.size() != 1 || !reductions) return false;
  if (!reduces_last_axis(p.part(softmax), weights.shape.back())) return false;
  const int scores = scores_part(r, p, softmax);
  if (scores < 0 || scores == output || g[product].place != p.part(scores).place) return false;
  if (p.part(scores).stores.size() != 1 || p.part(softmax).place != p.part(scores).place) return false;
  if (!reduces_for_softmax_only(g, p.part(softmax), *reductions)) return false;
  if (!is_plain_product(g, p.part(scores)) || !is_plain_product(g, p.part(output))) return false;
  if (!p.may_share(scores, output) || !p.may_share(softmax, output)) return false;
  std::vector<Edge> edges = edges_between(p, scores, softmax);
  edges.push_back({weights.base, product, &weights});
  if (!p.is_run(Pattern::kAttention, {scores, softmax, output}, edges)) return false;
  if (!p.unite(softmax, output)) return false;
  std::ignore = p.unite(scores, p.part_of(product));  // nothing can be between them: only the softmax reads the scores
  p.mark_attention(p.part_of(product));
  return true;
}

/// Whether what n computes never falls where its argument, as that is made, rises.
bool increases(const Reader& r, const Graph& g, NodeId n) {
  if (!is_float(g[n].dtype)) return info(r.op(n)).has(kIncreases);
  const auto is = [&](NodeId node, OpFact fact) { return info(r.op(node)).has(fact); };
  return r.op(n) == Op::cast || is(n, kIncreases) || (is(n, kIncreasesFrom0) && is_never_negative(g, r.read(n, 0)));
}

/// Walks from the reduction back to the product while maps increase, or add what does not vary along `axes`.
std::vector<NodeId> commuting_maps(const Reader& r, const Graph& g, const Partition& p, NodeId reduction,
                                   NodeId product) {
  std::vector<NodeId> found;
  const auto& axes = std::get<ReduceAttributes>(g[reduction].attributes).axes;
  if (r.op(reduction) != Op::max && r.op(reduction) != Op::min) return found;
  const auto varies = [&](const Access& a) {
    return std::any_of(axes.begin(), axes.end(),
                       [&](int axis) { return a.strides[static_cast<std::size_t>(axis)] != 0; });
  };
  const Extents& shape = r.reads(reduction)[0].shape;  // `axes` are of this shape
  NodeId next = -1;
  for (NodeId n = r.read(reduction, 0); n != product; n = next) {
    if (p.readers(n).size() != 1 || p.is_output(n) || r.reads(n).empty() || r.reads(n)[0].shape != shape) break;
    std::size_t along = 0;  // which argument comes from the product
    if (r.op(n) == Op::add) {
      along = varies(r.reads(n)[0]) ? 0 : 1;
      if (varies(r.reads(n)[1 - along])) break;
    } else if (!increases(r, g, n)) {
      break;
    }
    if (!is_identity(r.reads(n)[along])) break;
    found.push_back(n);
    next = r.read(n, along);
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Only rows or columns of each product: reducing over a batch would mix tiles of different products.
bool reduces_inside_products(const Part& part, const Extents& shape) {
  const Extents tile = {shape.end() - std::min<std::ptrdiff_t>(2, std::ssize(shape)), shape.end()};
  const auto first = static_cast<std::ptrdiff_t>(std::countr_zero(part.reduced));
  return product(tile) % product({part.domain.begin() + first, part.domain.end()}) == 0;
}

/// The read by which the rows of part `reducing` are made of what a product's part gives, of which nothing else is read
/// anywhere; one without an access where there is none.
Edge read_of_product(const Partition& p, int reducing) {
  Edge found;
  int product = -1;
  const auto is_read = [&](NodeId n) {  // there, or by more of the product's own work
    const auto inside = [&](NodeId r) { return p.part_of(r) == reducing || p.part_of(r) == product; };
    return !p.is_output(n) && std::ranges::all_of(p.readers(n), inside);
  };
  for (const NodeId n : p.part(reducing).nodes) {
    for (const Edge& e : p.edges_into(n)) {
      const int from = p.part_of(e.producer);
      if (from == reducing || !is_contraction(p, from)) continue;
      if (product >= 0 && product != from) return {};
      product = from;
      if (!e.access->has_positions()) found = e;
    }
  }
  return product >= 0 && std::ranges::all_of(p.part(product).stores, is_read) ? found : Edge{};
}

bool stores_elements(const Graph& g, const Part& part) {
  const std::int64_t rows = product(extents_of(part.domain, part.kept()));
  return std::ranges::any_of(part.stores, [&](NodeId n) { return g[n].size() > rows; });
}

/// Tiles go by once.
bool takes_one_sweep(const Graph& g, const FoldedGraph& folded, const Partition& p, int producing, int reducing) {
  std::vector<NodeId> nodes = p.part(producing).nodes;
  const Part& part = p.part(reducing);
  nodes.insert(nodes.end(), part.nodes.begin(), part.nodes.end());
  std::ranges::sort(nodes);
  return !stores_elements(g, part) && count_passes(g, folded, nodes, part.stores, part.domain) == 1;
}

bool try_contraction_reduction(const Graph& g, const FoldedGraph& folded, Partition& p, NodeId reduction) {
  const int reducing = p.part_of(reduction);
  const Part& part = p.part(reducing);
  if (part.kind != WorkKind::kReduce || part.reduced == 0) return false;
  const Edge read = read_of_product(p, reducing);
  if (!read.access) return false;
  const int producing = p.part_of(read.producer);
  if (part.place != p.part(producing).place || !p.may_share(producing, reducing)) return false;
  const auto product = std::ranges::find_if(p.part(producing).nodes, [&](NodeId n) { return g[n].op == Op::matmul; });
  if (product == p.part(producing).nodes.end() || !is_plain_product(g, p.part(producing))) return false;
  if (!reduces_inside_products(part, g[*product].shape)) return false;
  if (!takes_one_sweep(g, folded, p, producing, reducing)) return false;
  if (!p.is_run(Pattern::kContractionReduction, {producing, reducing}, {read})) return false;
  auto deferred = commuting_maps(Reader(g, folded), g, p, reduction, *product);
  if (!p.join_along(read)) return false;
  p.defer(p.part_of(reduction), std::move(deferred));
  return true;
}

}  // namespace

void join_attention(const Graph& g, const FoldedGraph& folded, Partition& p) {
  const Reader r(g, folded);
  for (const NodeId n : p.order()) try_attention(r, g, p, n);
}

void join_contraction_reductions(const Graph& g, const FoldedGraph& folded, Partition& p) {
  for (const NodeId n : p.order()) {
    if (kind(g[n].op) == OpKind::kReduce) try_contraction_reduction(g, folded, p, n);
  }
}

void join_casts(const Graph& g, Partition& p) {
  for (const NodeId n : p.order()) {
    if (g[n].op != Op::cast || p.part(p.part_of(n)).nodes.size() != 1 || p.readers(n).empty()) continue;
    const int reader = p.part_of(p.readers(n)[0]);
    const bool takes_operands = p.part(reader).kind == WorkKind::kContraction;
    const auto is_operand = [&](NodeId r) { return kind(g[r].op) == OpKind::kContraction; };
    if (!std::ranges::all_of(p.readers(n), is_operand)) continue;  // else it has a place among the kernel's axes
    const bool fits = g[n].place == p.part(reader).place && p.may_share(p.part_of(n), reader);
    if (!takes_operands || !fits || !only_read_by(p, n, reader)) continue;
    if (p.is_run(p.pattern_of(p.part(reader)), {p.part_of(n), reader})) std::ignore = p.unite(p.part_of(n), reader);
  }
}

void join_copies(const FoldedGraph& folded, Partition& p) {
  for (const NodeId n : p.order()) {
    const Work& w = folded.work[static_cast<std::size_t>(n)];
    if (w.kind != WorkKind::kCopy || p.part(p.part_of(n)).nodes.size() != 1) continue;
    const int from = p.part_of(w.reads[0].base);
    const bool only_reader = p.readers(w.reads[0].base).size() == 1 && !p.is_output(w.reads[0].base);
    if (!is_contraction(p, from) || !only_reader || !p.may_share(from, p.part_of(n))) continue;
    if (p.is_run(p.pattern_of(p.part(from)), {from, p.part_of(n)})) std::ignore = p.unite(from, p.part_of(n));
  }
}

namespace {

constexpr std::size_t kMostBeside = 4;
/// How many products that nobody waits for are considered: products of one size fill a GPU best, those of one layer
/// keep little memory.
constexpr std::size_t kNeighbours = 2 * kMostBeside;

/// Products of one left factor, or of one depth, in the order in which they run.
struct Beside {
  const Access* left;
  std::vector<NodeId> products;
};

/// Makes one part of the parts of `products`, if an executor runs them so.
bool unite_products(Partition& p, const std::vector<NodeId>& products) {
  std::vector<int> parts;
  for (const NodeId n : products)
    if (std::ranges::count(parts, p.part_of(n)) == 0) parts.push_back(p.part_of(n));
  if (parts.size() < 2 || !p.has_kernel(Pattern::kMatmul, parts)) return false;
  bool united = false;
  for (std::size_t i = 1; i < products.size(); ++i)
    if (p.part_of(products[0]) != p.part_of(products[i]))
      united |= p.unite(p.part_of(products[0]), p.part_of(products[i]));
  return united;
}

/// Unites as many as possible; those with few columns first, since one with many may fill a GPU alone.
void unite_most(const Graph& g, Partition& p, std::vector<NodeId> products) {
  std::ranges::stable_sort(products, {}, [&](NodeId n) { return g[n].size(); });
  const auto all = static_cast<unsigned>(products.size());
  for (unsigned count = all; count > 1; --count)
    for (unsigned set = 0; set < 1u << all; ++set) {
      if (static_cast<unsigned>(std::popcount(set)) != count) continue;
      std::vector<NodeId> some;
      for (unsigned i = 0; i < all; ++i)
        if ((set >> i & 1) != 0) some.push_back(products[i]);
      if (unite_products(p, some)) return;
    }
}

/// Unites `most` products at a time of those that `may` be and are `alike`, chosen among `neighbours`.
template <class May, class Alike>
void unite_alike(const Graph& g, const FoldedGraph& folded, Partition& p, std::size_t neighbours, std::ptrdiff_t most,
                 May may, Alike alike) {
  std::vector<Beside> all;
  for (const NodeId n : p.order()) {
    if (g[n].op != Op::matmul) continue;
    const int part = p.part_of(n);
    if (p.part(part).joined || !is_plain_product(g, p.part(part)) || !may(p.part(part))) continue;
    const Access& left = folded.work[static_cast<std::size_t>(n)].reads[0];
    const auto found = std::ranges::find_if(all, [&](const Beside& b) {
      return alike(*b.left, left) && b.products.size() < neighbours && p.may_share(p.part_of(b.products[0]), part) &&
             g[b.products[0]].place == g[n].place && g[b.products[0]].dtype == g[n].dtype;
    });
    if (found == all.end())
      all.push_back({&left, {n}});
    else
      found->products.push_back(n);
  }
  for (Beside& b : all) {
    std::ranges::stable_sort(b.products, std::greater{}, [&](NodeId n) { return g[n].size(); });
    for (auto first = b.products.begin(); first != b.products.end();) {
      const auto last = first + std::min(most, b.products.end() - first);
      unite_most(g, p, {first, last});
      first = last;
    }
  }
}

/// Whether nothing waits for what a part stores, as for gradients of weights: so it may run later.
bool is_for_caller_only(const Partition& p, const Part& part) {
  return std::ranges::all_of(part.stores, [&](NodeId n) { return p.is_output(n) && p.readers(n).empty(); });
}

}  // namespace

void join_products_beside(const Graph& g, const FoldedGraph& folded, Partition& p) {
  if (p.is_for_cpu() || p.names_kernels()) return;  // a CPU has no tiles to fill
  const auto any = [](const Part&) { return true; };
  const auto of_one_left = [](const Access& a, const Access& b) { return a == b; };
  unite_alike(g, folded, p, kMostBeside, kMostBeside, any, of_one_left);
  if (p.most_waiting() < 2) return;
  const auto may_wait = [&](const Part& part) { return is_for_caller_only(p, part); };
  const auto of_one_depth = [](const Access& a, const Access& b) { return a.shape.back() == b.shape.back(); };
  unite_alike(g, folded, p, kNeighbours, p.most_waiting(), may_wait, of_one_depth);
}

}  // namespace kfusion
