// Zeros behind the rows of large computed factors of half types: a GPU's products are quick where rows begin at
// multiples of kRowAlignment (device.hpp), and the kernel that computes a factor can store its rows so. Where the
// padded axis is summed over, the other factor gets as many zeros; else a slice of the product is taken.
#include <algorithm>

#include "kfusion/graph/constant.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/device.hpp"
#include "kfusion/plan/rewrites/table.hpp"

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
  using GraphCopy::GraphCopy;

  std::optional<Graph> run() {
    return changed([&](NodeId n, const Node& node) -> std::optional<NodeId> {
      if (node.op != Op::matmul || !is_half(node.dtype)) return std::nullopt;
      const auto left = padded(g_[n].arguments[0], node.stage), right = padded(g_[n].arguments[1], node.stage);
      return left || right ? std::optional(product(node, left, right)) : std::nullopt;
    });
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
    const std::int64_t whole = kRowAlignment / static_cast<std::int64_t>(item_bytes(node.dtype));
    return Padded{with_zeros(moved_[at(n)], axis, whole - node.shape[axis] % whole, stage), axis};
  }

  std::int64_t last(NodeId n) const { return g_[n].shape.empty() ? 1 : g_[n].shape.back(); }

  /// Whether it is a large unaligned value that a kernel of ours stores.
  bool is_to_be_padded(NodeId n) const {
    const Node& node = g_[n];
    const OpKind of = kind(node.op);
    const bool is_stored = of == OpKind::kMap || of == OpKind::kCast || of == OpKind::kJoin;
    return is_stored && node.shape.size() > 1 && node.size() >= kLeastElements &&
           !has_aligned_rows(last(n), node.dtype);
  }

  NodeId with_zeros(NodeId value, std::size_t axis, std::int64_t count, StageId stage) {
    Node joined = to_[value];
    Extents behind = joined.shape;
    behind[axis] = count;
    const NodeId zero = add(constant_node(joined.dtype, {}));
    Node zeros = joined;
    zeros.op = Op::broadcast, zeros.attributes = {}, zeros.stage = stage;
    zeros.shape = std::move(behind);
    zeros.arguments = {zero};
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
    if (node.shape == wanted) return add(std::move(node));
    const StageId stage = node.stage;
    const NodeId whole = add(std::move(node));
    return view_of(whole, Op::slice, wanted, stage,
                   SliceAttributes{Extents(wanted.size(), 0), Extents(wanted.size(), 1)});
  }
};

}  // namespace

std::optional<Graph> rows_aligned(const Graph& g, const Device&) { return Aligning(g).run(); }

}  // namespace kfusion
