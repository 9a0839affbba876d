#include "kfusion/plan/partition/order.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace kfusion {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h ^= x + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccd;
  return h ^ (h >> 33);
}

}  // namespace

std::vector<int> ranks(const Graph& g) {
  std::vector<std::uint64_t> hash(g.nodes.size());
  std::vector<int> depth(g.nodes.size(), 0);
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    std::uint64_t h = hash_alone(n);
    std::vector<std::uint64_t> arguments;
    for (const NodeId a : n.arguments) {
      arguments.push_back(hash[static_cast<std::size_t>(a)]);
      depth[i] = std::max(depth[i], depth[static_cast<std::size_t>(a)] + 1);
    }
    if (info(n.op).has(kCommutes)) std::sort(arguments.begin(), arguments.end());
    for (const std::uint64_t a : arguments) h = mix(h, a);
    hash[i] = h;
  }
  std::vector<std::size_t> order(g.nodes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tie(depth[a], hash[a], a) < std::tie(depth[b], hash[b], b);
  });
  std::vector<int> rank(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<int>(i);
  return rank;
}

}  // namespace kfusion
