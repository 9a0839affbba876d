#include "kfusion/lower/beside.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

std::int64_t depth_of(const Candidate& k, const Chain& chain) {
  const auto product = std::ranges::find_if(chain.nodes, [&](NodeId n) { return k.graph[n].op == Op::matmul; });
  return k.folded.work[at(*product)].reads[0].shape.back();
}

bool reads_elements(const Candidate& k, const Contraction& c) {
  return std::ranges::any_of(k.nodes, [&](NodeId n) {
    return k.graph[n].op != Op::matmul && std::ranges::any_of(k.folded.work[at(n)].reads, [&](const Access& a) {
             return !k.computes(a.base) && distinct_elements(a) > std::max(c.rows, c.cols);
           });
  });
}

std::optional<std::string> why_no_single_product(const Candidate& k) {
  if (auto why = why_no_contraction(k)) return why;
  const Contraction c = *products_of(k);
  if (c.products.size() != 1) return "computes single products beside one another, no gates";
  if (c.reduces != Reduces::kNothing || c.batches != 1)
    return "stores products beside one another, which have no batches";
  if (reads_elements(k, c)) return "reads no other matrix with products beside one another";
  return std::nullopt;
}

}  // namespace

std::vector<Chain> chains_of(const Candidate& k) {
  std::vector<std::size_t> parent(k.nodes.size());
  std::iota(parent.begin(), parent.end(), std::size_t{0});
  const auto root = [&](std::size_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  for (std::size_t i = 0; i < k.nodes.size(); ++i)
    for (const Access& a : k.folded.work[at(k.nodes[i])].reads) {
      const auto found = std::ranges::lower_bound(k.nodes, a.base);
      if (found == k.nodes.end() || *found != a.base) continue;
      const std::size_t x = root(i), y = root(static_cast<std::size_t>(found - k.nodes.begin()));
      parent[std::max(x, y)] = std::min(x, y);  // so that a root is a chain's first node
    }
  std::vector<Chain> chains;
  std::vector<std::size_t> chain_of(k.nodes.size());
  for (std::size_t i = 0; i < k.nodes.size(); ++i) {
    if (root(i) == i) chain_of[i] = chains.size(), chains.emplace_back();
    Chain& chain = chains[chain_of[root(i)]];
    chain.nodes.push_back(k.nodes[i]);
    if (std::ranges::find(k.stores, k.nodes[i]) != k.stores.end()) chain.stores.push_back(k.nodes[i]);
  }
  return chains;
}

std::optional<std::string> why_no_products_beside(const Candidate& k, const std::vector<Chain>& chains) {
  for (const Chain& chain : chains)
    if (auto why = why_no_single_product(chain.of(k))) return why;
  const std::int64_t depth = depth_of(k, chains[0]);
  const bool alike = std::ranges::all_of(chains, [&](const Chain& chain) { return depth_of(k, chain) == depth; });
  return alike ? std::nullopt : std::optional<std::string>("computes products of one depth only");
}

std::vector<Contraction> products_beside(const Candidate& k) {
  const std::vector<Chain> chains = chains_of(k);
  std::vector<Contraction> all;
  if (chains.size() == 1) {
    if (auto c = products_of(k)) all.push_back(std::move(*c));
    return all;
  }
  if (why_no_products_beside(k, chains)) return all;
  for (const Chain& chain : chains) all.push_back(*products_of(chain.of(k)));
  return all;
}

bool have_one_left(const std::vector<Contraction>& beside) {
  return std::ranges::all_of(beside, [&](const Contraction& c) {
    return c.rows == beside[0].rows && c.products[0].left == beside[0].products[0].left;
  });
}

Group part_of(const Group& group, const std::vector<NodeId>& nodes, const std::vector<NodeId>& stores) {
  Group part;
  part.pattern = group.pattern;
  part.nodes = nodes, part.stores = stores;
  return part;
}

std::vector<Contraction> Lowering::contractions(int group_index) const {
  const Group& group = plan_.groups[at(group_index)];
  const Candidate kernel = candidate_of(plan_, group);
  const std::vector<Chain> chains = chains_of(kernel);
  if (chains.size() == 1) return {contraction(group_index)};
  if (const auto why = why_no_products_beside(kernel, chains))
    throw std::logic_error("kfusion: a kernel is no products beside one another: " + *why);
  std::vector<Contraction> all;
  for (const Chain& chain : chains) all.push_back(contraction(part_of(group, chain.nodes, chain.stores), {}));
  return all;
}

}  // namespace kfusion
