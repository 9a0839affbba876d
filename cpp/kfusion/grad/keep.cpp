#include "kfusion/grad/keep.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "kfusion/error.hpp"
#include "kfusion/grad/joint.hpp"

namespace kfusion::grad {
namespace {

/// The cheapest choice whose stores have no more bytes: the dearer stores are, the fewer there are.
Joint::Choice within(const Joint& joint, std::int64_t memory) {
  constexpr double kDearest = 1 << 20;
  Joint::Choice best = joint.choose();
  if (joint.stored_bytes(best) <= memory) return best;
  best = joint.choose(HUGE_VAL);  // nothing but stores counts
  if (const std::int64_t least = joint.stored_bytes(best); least > memory)
    throw ValueError("memory: " + std::to_string(memory) + " bytes are too few: backward needs at least " +
                     std::to_string(least) + " that cannot be computed again");
  for (double low = 1, high = kDearest; high / low > 1.02;) {
    const double middle = std::sqrt(low * high);
    Joint::Choice choice = joint.choose(middle);
    const bool fits = joint.stored_bytes(choice) <= memory;
    (fits ? high : low) = middle;
    if (fits) best = std::move(choice);
  }
  return best;
}

std::vector<Kept> listed(const Joint& joint, const Joint::Choice& choice) {
  std::vector<Kept> all;
  for (const NodeId id : choice.kept)
    all.push_back({id, joint.result(id), joint.is_there(id) ? 0 : joint.nbytes(id), 0});
  return all;
}

}  // namespace

std::vector<Kept> kept_for_backward(const GraphBuilder& graph, const NodeIds& results, const NodeIds& inputs,
                                    const Device& device, std::optional<std::int64_t> memory) {
  const Joint joint(graph, results, inputs, device);
  return listed(joint, memory ? within(joint, *memory) : joint.choose());
}

std::vector<Kept> explained(const GraphBuilder& graph, const NodeIds& results, const NodeIds& inputs,
                            const Device& device, std::optional<std::int64_t> memory) {
  const Joint joint(graph, results, inputs, device);
  const Joint::Choice best = memory ? within(joint, *memory) : joint.choose();
  std::vector<Kept> all = listed(joint, best);
  for (Kept& k : all) {
    const Joint::Choice other = joint.choose(best.dearness, k.node);
    const double dearness = std::isinf(best.dearness) ? 1 : best.dearness;
    const double more = dearness * static_cast<double>(other.cost - best.cost) / Joint::kUnits;
    const bool has_other = other.is_possible() && other.cost - best.cost < Joint::kHuge / 2;
    k.seconds = has_other ? more / device.bandwidth : std::numeric_limits<double>::infinity();
  }
  return all;
}

namespace {

/// Hashes what a node does whatever its extents: axes, and numbers that are the same in each call.
std::uint64_t fixed(const Node& n) {
  std::uint64_t h = 0;
  const auto mix = [&](std::uint64_t word) { h = (h ^ (h >> 31) ^ word) * 0x9e3779b97f4a7c15; };
  if (const auto* reduce = std::get_if<ReduceAttributes>(&n.attributes)) {
    for (const int axis : reduce->axes) mix(static_cast<std::uint64_t>(axis) + 1);
    mix(reduce->keepdims);
  }
  if (const auto* take = std::get_if<TakeAttributes>(&n.attributes)) mix(static_cast<std::uint64_t>(take->axis) + 1);
  if (const auto* join = std::get_if<JoinAttributes>(&n.attributes)) mix(static_cast<std::uint64_t>(join->axis) + 1);
  if (const auto* call = std::get_if<LibraryCallAttributes>(&n.attributes))
    for (const char c : call->function) mix(static_cast<unsigned char>(c));
  if (const auto* constant = std::get_if<ConstantAttributes>(&n.attributes); constant && constant->parameter < 0) {
    mix(std::bit_cast<std::uint64_t>(constant->value));
    mix(static_cast<std::uint64_t>(constant->integer));
  }
  return h;
}

}  // namespace

Computed computed(const Graph& g) {
  Computed found;
  std::vector<std::int64_t> rank(g.nodes.size(), -1);
  const auto mix = [&](std::uint64_t word) {
    found.hash = (found.hash ^ (found.hash >> 29) ^ word) * 0xd6e8feb86659fd93;
  };
  for (NodeId id = 0; id < std::ssize(g.nodes); ++id) {
    const Node& n = g[id];
    if (kind(n.op) == OpKind::kView) rank[at(id)] = rank[at(n.arguments[0])];
    if (kind(n.op) == OpKind::kView || kind(n.op) == OpKind::kSource) continue;
    rank[at(id)] = std::ssize(found.nodes);
    found.nodes.push_back(id);
    mix(static_cast<std::uint64_t>(n.op) << 8 | static_cast<std::uint64_t>(n.dtype));
    mix(fixed(n));
    for (const NodeId a : n.arguments) mix(rank[at(a)] < 0 ? fixed(g[a]) : static_cast<std::uint64_t>(rank[at(a)] + 2));
  }
  return found;
}

}  // namespace kfusion::grad
