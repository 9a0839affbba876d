#include "kfusion/graph/flat.hpp"

#include <algorithm>

#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

/// Whether elements lie one behind the other, in some order of the axes. Strides in elements, none empty.
bool is_dense(const Extents& shape, const Extents& strides) {
  std::int64_t left = product(shape), next = 1;
  if (left == 0) return true;
  while (left > 1) {  // the axis whose stride is what the axes inside it have
    std::size_t d = 0;
    while (d < shape.size() && (shape[d] == 1 || strides[d] != next)) ++d;
    if (d == shape.size()) return false;
    next *= shape[d], left /= shape[d];
  }
  return true;
}

/// The strides that count: those of axes with several elements.
Extents strides_of(const Node& input) {
  Extents strides = std::get<InputAttributes>(input.attributes).strides;
  if (strides.empty()) {
    strides.assign(input.shape.size(), 1);
    for (std::size_t d = input.shape.size(); d-- > 1;) strides[d - 1] = strides[d] * input.shape[d];
  }
  for (std::size_t d = 0; d < strides.size(); ++d)
    if (input.shape[d] == 1) strides[d] = 0;
  return strides;
}

}  // namespace

std::optional<Graph> flattened(const Graph& g, std::int64_t elements) {
  const auto first = std::ranges::find(g.nodes, Op::input, &Node::op);
  if (first == g.nodes.end()) return std::nullopt;
  const Extents shape = first->shape, strides = strides_of(*first);
  const bool is_empty = product(shape) == 0;
  if (!is_dense(shape, strides)) return std::nullopt;
  Graph flat = g;
  flat.alternatives.clear();
  std::vector<bool> varies(g.nodes.size());
  std::vector<NodeId> same(g.nodes.size());  // what a view of a whole array is the same as
  for (std::size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    same[i] = static_cast<NodeId>(i);
    for (NodeId& a : flat.nodes[i].arguments) a = same[at(a)];
    if (n.op == Op::constant) continue;
    if (n.op == Op::input) {
      if (n.shape != shape || (!is_empty && strides_of(n) != strides)) return std::nullopt;
      std::get<InputAttributes>(flat.nodes[i].attributes).strides.clear();
      varies[i] = true;
    } else if (kind(n.op) == OpKind::kMap || n.op == Op::cast) {
      varies[i] = std::ranges::any_of(n.arguments, [&](NodeId a) { return varies[at(a)]; });
      if (varies[i] && n.shape != shape) return std::nullopt;
    } else if ((n.op == Op::reshape || n.op == Op::broadcast) && varies[at(n.arguments[0])]) {
      if (n.shape != shape || g[n.arguments[0]].shape != shape) return std::nullopt;
      varies[i] = true, same[i] = same[at(n.arguments[0])];
    } else {
      return std::nullopt;
    }
    if (varies[i]) flat.nodes[i].shape = {elements};
  }
  for (Output& o : flat.outputs) {
    if (!varies[at(o.node)]) return std::nullopt;
    o.node = same[at(o.node)];
  }
  return flat;
}

}  // namespace kfusion
