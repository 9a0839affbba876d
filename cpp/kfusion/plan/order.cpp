#include "kfusion/plan/order.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

namespace kfusion {
namespace {

std::uint64_t mix(std::uint64_t h, std::uint64_t x) {
  h ^= x + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccd;
  return h ^ (h >> 33);
}

std::uint64_t hash_of(const Attributes& attributes, NodeId id) {
  std::uint64_t h = attributes.index();
  const auto add = [&h](const auto& values) {
    for (const auto v : values) h = mix(h, static_cast<std::uint64_t>(v));
  };
  if (std::holds_alternative<InputAttributes>(attributes)) h = mix(h, static_cast<std::uint64_t>(id));
  if (const auto* a = std::get_if<ConstantAttributes>(&attributes)) {
    h = mix(mix(h, std::bit_cast<std::uint64_t>(a->value)), static_cast<std::uint64_t>(a->integer));
  }
  if (const auto* a = std::get_if<IotaAttributes>(&attributes)) h = mix(h, static_cast<std::uint64_t>(a->axis));
  if (const auto* a = std::get_if<ReduceAttributes>(&attributes)) add(a->axes);
  if (const auto* a = std::get_if<TransposeAttributes>(&attributes)) add(a->axes);
  if (const auto* a = std::get_if<SliceAttributes>(&attributes)) {
    add(a->start);
    add(a->step);
  }
  return h;
}

}  // namespace

std::vector<int> ranks(const Graph& g) {
  std::vector<std::uint64_t> hash(g.nodes.size());
  std::vector<int> depth(g.nodes.size(), 0);
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    std::uint64_t h = mix(static_cast<std::uint64_t>(n.op), hash_of(n.attributes, static_cast<NodeId>(i)));
    for (const std::int64_t e : n.shape) h = mix(h, static_cast<std::uint64_t>(e));
    h = mix(h, static_cast<std::uint64_t>(n.dtype));
    std::vector<std::uint64_t> arguments;
    for (const NodeId a : n.arguments) {
      arguments.push_back(hash[static_cast<std::size_t>(a)]);
      depth[i] = std::max(depth[i], depth[static_cast<std::size_t>(a)] + 1);
    }
    if (info(n.op).commutative) std::sort(arguments.begin(), arguments.end());
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
