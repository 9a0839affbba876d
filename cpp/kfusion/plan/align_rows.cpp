#include "kfusion/plan/align_rows.hpp"

#include <algorithm>
#include <map>

#include "kfusion/graph/constant.hpp"
#include "kfusion/plan/device.hpp"
#include "kfusion/plan/graph_copy.hpp"

namespace kfusion {
namespace {

constexpr std::int64_t kLeastElements = 1 << 20;  ///< smaller factors save less than a launch costs

/// A value with zeros behind one of its axes.
struct Padded {
  NodeId node;  ///< in the copy
  std::size_t axis;
};

class Aligning : private GraphCopy {
 public:
  explicit Aligning(const Graph& g) : GraphCopy(g) {}

  std::optional<Graph> run() {
    bool any = false;
    Graph aligned = copied([&](NodeId n, Node node) {
      if (node.op != Op::matmul || !is_half(node.dtype)) return add(std::move(node));
      const auto left = padded(g_[n].arguments[0], node.stage), right = padded(g_[n].arguments[1], node.stage);
      if (!left && !right) return add(std::move(node));
      any = true;
      return product(std::move(node), left, right);
    });
    return any ? std::optional(std::move(aligned)) : std::nullopt;
  }

 private:
  /// A factor, which may be seen transposed or in another shape of the same rows.
  std::optional<Padded> padded(NodeId n, StageId stage) {
    const Node& node = g_[n];
    if (node.op == Op::transpose || node.op == Op::reshape) {
      const NodeId of = node.arguments[0];
      if (node.op == Op::reshape && (node.shape.empty() || node.shape.back() != last(of))) return std::nullopt;
      const auto inner = padded(of, stage);
      if (!inner) return std::nullopt;
      Node view = node;
      std::size_t axis = node.shape.size() - 1;
      if (node.op == Op::transpose)
        axis = static_cast<std::size_t>(
            std::ranges::find(g_.attributes<TransposeAttributes>(n).axes, static_cast<int>(inner->axis)) -
            g_.attributes<TransposeAttributes>(n).axes.begin());
      else if (inner->axis + 1 != g_[of].shape.size())
        return std::nullopt;
      if (axis + 2 < node.shape.size()) return std::nullopt;  // of a batch
      view.shape[axis] = to_[inner->node].shape[inner->axis];
      view.arguments = {inner->node};
      return Padded{add(std::move(view)), axis};
    }
    if (!is_to_be_padded(n)) return std::nullopt;
    const std::size_t axis = node.shape.size() - 1;
    const auto found = padded_.find(n);
    if (found != padded_.end()) return Padded{found->second, axis};
    const std::int64_t whole = kRowAlignment / static_cast<std::int64_t>(item_bytes(node.dtype));
    const NodeId joined = with_zeros(moved_[at(n)], axis, whole - node.shape[axis] % whole, stage);
    padded_.emplace(n, joined);
    return Padded{joined, axis};
  }

  std::int64_t last(NodeId n) const { return g_[n].shape.empty() ? 1 : g_[n].shape.back(); }

  /// Whether it is a large unaligned value that a kernel of ours stores.
  bool is_to_be_padded(NodeId n) const {
    const Node& node = g_[n];
    const OpKind of = kind(node.op);
    const bool is_stored = of == OpKind::kMap || of == OpKind::kCast || of == OpKind::kJoin;
    return is_stored && node.shape.size() > 1 && node.size() >= kLeastElements &&
           last(n) * static_cast<std::int64_t>(item_bytes(node.dtype)) % kRowAlignment != 0;
  }

  NodeId with_zeros(NodeId value, std::size_t axis, std::int64_t count, StageId stage) {
    const Node like = to_[value];
    Node zeros = like;
    zeros.op = Op::broadcast, zeros.attributes = {}, zeros.stage = stage;
    zeros.shape[axis] = count;
    zeros.arguments = {add(constant_node(like.dtype, {}))};
    Node joined = like;
    joined.op = Op::concatenate, joined.attributes = JoinAttributes{static_cast<int>(axis)}, joined.stage = stage;
    joined.shape[axis] += count;
    joined.arguments = {value, add(std::move(zeros))};
    return add(std::move(joined));
  }

  NodeId product(Node node, const std::optional<Padded>& left, const std::optional<Padded>& right) {
    if (left) node.arguments[0] = left->node;
    if (right) node.arguments[1] = right->node;
    const std::size_t of_left = to_[node.arguments[0]].shape.size() - 1;  // the axes that are summed over
    const std::size_t of_right = to_[node.arguments[1]].shape.size() - 2;
    const auto depth = [&](std::size_t side, std::size_t axis) { return to_[node.arguments[side]].shape[axis]; };
    if (const std::int64_t more = depth(0, of_left) - depth(1, of_right); more > 0)
      node.arguments[1] = with_zeros(node.arguments[1], of_right, more, node.stage);
    else if (more < 0)
      node.arguments[0] = with_zeros(node.arguments[0], of_left, -more, node.stage);
    const Extents wanted = node.shape;
    if (left && left->axis != of_left) node.shape[node.shape.size() - 2] = to_[left->node].shape[left->axis];
    if (right && right->axis != of_right) node.shape.back() = to_[right->node].shape[right->axis];
    return node.shape == wanted ? add(std::move(node)) : first_of(std::move(node), wanted);
  }

  /// As many elements of the product as are `wanted`.
  NodeId first_of(Node product, const Extents& wanted) {
    Node part = product;
    SliceAttributes all;
    all.start.assign(wanted.size(), 0), all.step.assign(wanted.size(), 1);
    part.op = Op::slice, part.attributes = std::move(all);
    part.shape = wanted;
    part.arguments = {add(std::move(product))};
    return add(std::move(part));
  }

  std::map<NodeId, NodeId> padded_;  ///< by value: with zeros, in the copy
};

}  // namespace

std::optional<Graph> with_rows_aligned(const Graph& g) {
  const bool has_product = std::ranges::any_of(g.nodes, [](const Node& n) { return n.op == Op::matmul; });
  return has_product ? Aligning(g).run() : std::nullopt;
}

}  // namespace kfusion
