// Short reductions written out: ((a - b)**2).sum(-1) of 3 elements is a sum of three squares, elementwise operations
// over what the reduction keeps. Where that is reduced again, over other axes, both are one kernel then: a kernel has
// one set of reduced axes. Sums may be rounded otherwise.
#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "kfusion/graph/constant.hpp"
#include "kfusion/graph/facts.hpp"
#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

/// Which reductions are written out.
struct Unroll {
  std::int64_t most = 0;  ///< elements that they reduce
  /// Also of values of which there are many more than of what they are computed from (a distance for each pair),
  /// whether or not they are reduced again.
  bool products = false;
};

/// A CPU takes rows of a few elements for much longer than operations on slices (1024 x 1024 distances in 32 dimensions
/// 56 ms instead of 3.6).
constexpr Unroll kUnrollCpu{32, true}, kUnrollGpu{4, false};

constexpr std::size_t kMostNodes = 64;  // that are computed for each of them
constexpr std::size_t kMostReductions = 16;
constexpr std::int64_t kMany = 4;  // times as many values as there are elements

const ReduceAttributes& reduction(const Graph& g, NodeId n) { return g.attributes<ReduceAttributes>(n); }

std::int64_t count(const Graph& g, NodeId n) {
  std::int64_t elements = 1;
  for (const int axis : reduction(g, n).axes) elements *= g[g[n].arguments[0]].shape[at(axis)];
  return elements;
}

bool is_reduction(const Graph& g, NodeId n) { return kind(g[n].op) == OpKind::kReduce; }

/// A reduction over a few elements, and the elementwise operations before it, ascending.
struct Short {
  NodeId node = 0;
  std::vector<NodeId> before;
};

class Finding {
 public:
  Finding(const Graph& g, const Unroll& what) : g_(g), what_(what), reduced_(g.nodes.size()) {}

  std::vector<Short> run() {
    find_reduced();
    std::vector<Short> found;
    for (NodeId n = 0; n < std::ssize(g_.nodes) && found.size() < kMostReductions; ++n) {
      if (!is_short(n)) continue;
      Short s{n, before(n)};
      const bool is_worth_it = reduced_[at(n)] || (what_.products && is_product(s));
      if (s.before.size() <= kMostNodes && is_worth_it) found.push_back(std::move(s));
    }
    return found;
  }

 private:
  bool is_short(NodeId n) const {
    if (!is_reduction(g_, n) || g_[n].size() == 0) return false;
    const std::int64_t elements = count(g_, n);
    return elements > 1 && elements <= what_.most && g_[n].size() > 1;
  }

  /// Which values enter a reduction, each as one element: one over other axes than a reduction that gave them.
  void find_reduced() {
    for (auto n = static_cast<NodeId>(g_.nodes.size()); n-- > 0;) {
      const Node& node = g_[n];
      const bool passes = is_elementwise(node) || kind(node.op) == OpKind::kView;
      for (const NodeId a : node.arguments)
        if (is_reduction(g_, n) || (passes && reduced_[at(n)] && node.size() == g_[a].size())) reduced_[at(a)] = true;
    }
  }

  std::vector<NodeId> before(NodeId n) const {
    std::set<NodeId> found;
    std::vector<NodeId> open = {g_[n].arguments[0]};
    while (!open.empty() && found.size() <= kMostNodes) {
      const NodeId next = open.back();
      open.pop_back();
      if (!is_elementwise(g_[next]) || !found.insert(next).second) continue;
      open.insert(open.end(), g_[next].arguments.begin(), g_[next].arguments.end());
    }
    return {found.begin(), found.end()};
  }

  bool is_product(const Short& s) const {
    std::int64_t elements = 0;
    for (const NodeId n : s.before)
      for (const NodeId a : g_[n].arguments)
        if (!is_elementwise(g_[a])) elements = std::max(elements, g_[without_views(g_, a)].size());
    return elements > 0 && elements * kMany <= g_[g_[s.node].arguments[0]].size();
  }

  const Graph& g_;
  const Unroll what_;
  std::vector<bool> reduced_;
};

class Unrolling : private GraphCopy {
 public:
  Unrolling(const Graph& g, std::vector<Short> found) : GraphCopy(g), found_(std::move(found)) {}

  Graph run() {
    auto next = found_.begin();
    return copied([&](NodeId n, Node node) {
      return next != found_.end() && next->node == n ? combined(*next++) : add(std::move(node));
    });
  }

 private:
  using GraphCopy::add;
  /// `node` of another op and dtype.
  NodeId add(Node node, Op op, DType dtype, NodeIds arguments, Attributes attributes = {}) {
    node.dtype = dtype;
    return add(std::move(node), op, std::move(arguments), std::move(attributes));
  }

  static Op operation(Op reduction) {
    switch (reduction) {
      case Op::prod:
        return Op::multiply;
      case Op::max:
        return Op::maximum;
      case Op::min:
        return Op::minimum;
      case Op::any:
        return Op::logical_or;
      case Op::all:
        return Op::logical_and;
      case Op::sum:
      case Op::mean:
        return Op::add;
      default:
        throw std::logic_error("kfusion: no map combines two elements of this reduction");
    }
  }

  /// All elements by twos. Half types in float32, as reductions are.
  NodeId combined(const Short& s) {
    Node like = g_[s.node];
    like.shape = element_shape(g_[s.node].arguments[0], g_[g_[s.node].arguments[0]].shape.size(), s);
    const bool widens = is_half(like.dtype) && like.op != Op::max && like.op != Op::min;
    const DType dtype = widens ? DType::kFloat32 : like.dtype;
    std::vector<NodeId> values;
    for (const Extents& position : positions(s)) values.push_back(cast(like, element(s, position), dtype));
    while (values.size() > 1) {
      std::vector<NodeId> pairs;
      for (std::size_t i = 0; i + 1 < values.size(); i += 2)
        pairs.push_back(add(like, operation(like.op), dtype, {values[i], values[i + 1]}));
      if (values.size() % 2 != 0) pairs.push_back(values.back());
      values = std::move(pairs);
    }
    if (like.op == Op::mean) values[0] = add(like, Op::divide, dtype, {values[0], number(count(g_, s.node), dtype)});
    const NodeId result = cast(like, values[0], g_[s.node].dtype);
    like.shape = g_[s.node].shape;
    return to_[result].shape == like.shape ? result : add(like, Op::reshape, like.dtype, {result});
  }

  NodeId cast(const Node& like, NodeId n, DType dtype) {
    return to_[n].dtype == dtype ? n : add(like, Op::cast, dtype, {n}, CastAttributes{false});
  }

  NodeId number(std::int64_t n, DType dtype) { return add(constant_node(dtype, {static_cast<double>(n), 0, false})); }

  /// By axis of the argument; 0 along those that stay.
  std::vector<Extents> positions(const Short& s) const {
    const Extents& shape = g_[g_[s.node].arguments[0]].shape;
    std::vector<Extents> all = {Extents(shape.size(), 0)};
    for (const int axis : reduction(g_, s.node).axes) {
      std::vector<Extents> longer;
      for (const Extents& position : all)
        for (std::int64_t i = 0; i < shape[at(axis)]; ++i) longer.push_back(position), longer.back()[at(axis)] = i;
      all = std::move(longer);
    }
    return all;
  }

  /// The shape of an element of what is broadcast to `ndim` axes: 1 along those that are reduced.
  Extents element_shape(NodeId n, std::size_t ndim, const Short& s) const {
    Extents shape = g_[n].shape;
    const auto lead = static_cast<int>(ndim - shape.size());
    for (const int axis : reduction(g_, s.node).axes)
      if (axis >= lead) shape[at(axis - lead)] = 1;
    return shape;
  }

  NodeId element(const Short& s, const Extents& position) {
    const NodeId last = g_[s.node].arguments[0];
    std::map<NodeId, NodeId> made;
    for (const NodeId n : s.before) {
      Node node = g_[n];
      for (NodeId& a : node.arguments) a = made.contains(a) ? made.at(a) : slice(a, s, position);
      node.shape = element_shape(n, position.size(), s);
      made[n] = add(std::move(node));
    }
    return made.contains(last) ? made.at(last) : slice(last, s, position);
  }

  NodeId slice(NodeId n, const Short& s, const Extents& position) {
    const Extents shape = element_shape(n, position.size(), s);
    if (shape == g_[n].shape) return moved_[at(n)];
    const std::size_t lead = position.size() - shape.size();
    SliceAttributes from{Extents(shape.size(), 0), Extents(shape.size(), 1)};
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (shape[d] != g_[n].shape[d]) from.start[d] = position[lead + d];
    Node node = g_[n];
    node.shape = shape, node.stage = g_[s.node].stage;
    return add(node, Op::slice, node.dtype, {moved_[at(n)]}, std::move(from));
  }

  const std::vector<Short> found_;
};

}  // namespace

std::optional<Graph> reductions_unrolled(const Graph& g, const Device& device) {
  std::vector<Short> found = Finding(g, device.is_cpu ? kUnrollCpu : kUnrollGpu).run();
  return found.empty() ? std::nullopt : std::optional(Unrolling(g, std::move(found)).run());
}

}  // namespace kfusion
