// Masks and biases of positions computed where they are used: of all heads, instead of stored once for them. Maps of
// positions (and of what is small beside them), which an operation on a product's elements reads broadcast, are
// computed over the operation's own shape.
#include <algorithm>
#include <map>

#include "kfusion/graph/shapes.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/rewrites/table.hpp"

namespace kfusion {
namespace {

constexpr std::int64_t kSmall = 16;  ///< times smaller are arrays that may be read beside positions

class Widening : private GraphCopy {
 public:
  explicit Widening(const Graph& g) : GraphCopy(g), positions_(g.nodes.size()), of_product_(g.nodes.size()) {
    for (NodeId n = 0; n < std::ssize(g.nodes); ++n) {
      positions_[at(n)] = is_of_positions(n);
      of_product_[at(n)] = is_of_product(n);
    }
  }

  std::optional<Graph> run() {
    return changed([&](NodeId n, const Node& node) -> std::optional<NodeId> {
      if (!is_map(n) || !of_product_[at(n)]) return std::nullopt;
      NodeIds arguments = node.arguments;
      for (std::size_t i = 0; i < arguments.size(); ++i)
        if (const NodeId a = g_[n].arguments[i]; is_map(a) && is_smaller(a, g_[n].shape))
          arguments[i] = widened(a, g_[n].shape);
      if (arguments == node.arguments) return std::nullopt;
      return add(node, node.op, std::move(arguments), node.attributes);
    });
  }

 private:
  bool is_map(NodeId n) const { return is_elementwise(g_[n]); }

  /// An iota, or a map of one that reads nothing large.
  bool is_of_positions(NodeId n) const {
    if (g_[n].op == Op::iota) return true;
    if (!is_map(n)) return false;
    const auto is_position = [&](NodeId a) { return static_cast<bool>(positions_[at(a)]); };
    const auto fits = [&](NodeId a) { return is_position(a) || g_[a].size() * kSmall <= g_[n].size(); };
    return std::ranges::any_of(g_[n].arguments, is_position) && std::ranges::all_of(g_[n].arguments, fits);
  }

  bool is_of_product(NodeId n) const {
    if (g_[n].op == Op::matmul) return true;
    const auto is = [&](NodeId a) { return of_product_[at(a)] && g_[a].shape == g_[n].shape; };
    return is_map(n) && std::ranges::any_of(g_[n].arguments, is);
  }

  /// Whether positions have another shape, or are made of such.
  bool is_smaller(NodeId n, const Extents& shape) const {
    const auto is = [&](NodeId a) { return is_smaller(a, shape); };
    return positions_[at(n)] && (g_[n].shape != shape || std::ranges::any_of(g_[n].arguments, is));
  }

  NodeId widened(NodeId n, const Extents& shape) {
    if (!positions_[at(n)]) return moved_[at(n)];
    if (const auto found = wide_.find({n, shape}); found != wide_.end()) return found->second;
    Node node = g_[n];
    for (std::size_t i = 0; i < node.arguments.size(); ++i) node.arguments[i] = widened(g_[n].arguments[i], shape);
    if (node.op == Op::iota) {
      auto& axis = std::get<IotaAttributes>(node.attributes).axis;
      axis += static_cast<int>(shape.size() - node.shape.size());
      if (shape[at(axis)] != node.shape[at(axis - static_cast<int>(shape.size() - node.shape.size()))])
        return wide_[{n, shape}] = moved_[at(n)];  // one position, broadcast
      node.shape = shape;
    } else {
      node.shape = inferred_shape(to_, node);
    }
    return wide_[{n, shape}] = add(std::move(node));
  }

  std::vector<char> positions_, of_product_;  ///< by node
  std::map<std::pair<NodeId, Extents>, NodeId> wide_;
};

}  // namespace

std::optional<Graph> positions_widened(const Graph& g, const Device&) { return Widening(g).run(); }

}  // namespace kfusion
