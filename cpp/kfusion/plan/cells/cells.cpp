#include <algorithm>

#include "kfusion/graph/axes.hpp"
#include "kfusion/graph/copy.hpp"
#include "kfusion/ops/names.hpp"
#include "kfusion/plan/cells/push.hpp"
#include "kfusion/plan/cells/tiling.hpp"

namespace kfusion {
namespace {

/// A range of positions of each axis.
struct Box {
  Extents start, shape;
  bool operator==(const Box&) const = default;
};

bool is_inside(const Box& inner, const Box& outer) {
  for (std::size_t d = 0; d < inner.start.size(); ++d)
    if (inner.start[d] < outer.start[d] || inner.start[d] + inner.shape[d] > outer.start[d] + outer.shape[d])
      return false;
  return true;
}

/// What is cut is computed cell by cell; where something else reads it, it is a join of its cells.
class Cells : private GraphCopy {
 public:
  Cells(const Graph& g, const Tiling& tiling)
      : GraphCopy(g), tiling_(tiling), cells_(g.nodes.size()), whole_(g.nodes.size(), -1) {}

  Graph run() {
    return copied(
        [&](NodeId n, const Node&) {
          if (tiling_.is_cut(n)) return add_cells(n);
          return whole_[at(n)] = g_[n].op == Op::slice ? add_slice(n) : add_whole(n);
        },
        [&](NodeId n) { return whole(n); });
  }

 private:
  struct Cell {
    Box box;
    NodeId node = -1;
  };

  NodeId add_whole(NodeId n) {
    Node node = g_[n];
    for (NodeId& a : node.arguments) a = whole(a);
    return add(std::move(node));
  }

  /// None of them is the node.
  NodeId add_cells(NodeId n) {
    stage_ = g_[n].stage;
    for (Box& box : boxes(n)) {
      const NodeId node = add_cell(n, box);
      cells_[at(n)].push_back({std::move(box), node});
    }
    return -1;
  }

  /// In C order.
  std::vector<Box> boxes(NodeId n) const {
    std::vector<Box> all = {{}};
    for (std::size_t d = 0; d < g_[n].shape.size(); ++d) {
      std::vector<Box> longer;
      for (const Box& box : all) {
        std::int64_t start = 0;
        const auto add_until = [&](std::int64_t end) {
          Box b = box;
          b.start.push_back(start), b.shape.push_back(end - start);
          longer.push_back(std::move(b));
          start = end;
        };
        for (const std::int64_t cut : tiling_.cuts[at(n)][d]) add_until(cut);
        add_until(g_[n].shape[d]);
      }
      all = std::move(longer);
    }
    return all;
  }

  NodeId add_cell(NodeId n, const Box& box) {
    if (kind(g_[n].op) == OpKind::kJoin) return part_of_join(n, box);
    Node cell = g_[n];
    cell.shape = box.shape;
    const AxisRule rule = axis_rule(g_, n);
    for (std::size_t k = 0; k < cell.arguments.size(); ++k) {
      const NodeId a = g_[n].arguments[k];
      cell.arguments[k] = piece(a, box_of_argument(g_[a].shape, rule.to_result[k], box));
    }
    return add(std::move(cell));
  }

  /// What a box of the result reads of an argument.
  static Box box_of_argument(const Extents& shape, const AxisList& to_result, const Box& box) {
    Box r{Extents(shape.size(), 0), shape};
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (const int to = to_result[d]; to >= 0) r.start[d] = box.start[at(to)], r.shape[d] = box.shape[at(to)];
    return r;
  }

  NodeId part_of_join(NodeId join, Box box) {
    const auto axis = at(g_.attributes<JoinAttributes>(join).axis);
    std::size_t i = 0;
    for (std::int64_t extent; box.start[axis] >= (extent = g_[g_[join].arguments[i]].shape[axis]); ++i)
      box.start[axis] -= extent;
    return piece(g_[join].arguments[i], box);
  }

  NodeId piece(NodeId n, const Box& box) {
    for (const Cell& cell : cells_[at(n)]) {
      if (cell.box == box) return cell.node;
      if (!is_inside(box, cell.box)) continue;
      Box inner = box;
      for (std::size_t d = 0; d < box.start.size(); ++d) inner.start[d] -= cell.box.start[d];
      return slice(n, cell.node, inner);
    }
    return box.shape == g_[n].shape ? whole(n) : slice(n, whole(n), box);
  }

  NodeId slice(NodeId n, NodeId of, const Box& box) {
    Node s = g_[n];
    s.shape = box.shape;
    s.stage = stage_;
    return add(std::move(s), Op::slice, {of}, SliceAttributes{box.start, Extents(box.start.size(), 1)});
  }

  /// A slice of whatever steps that lies in one cell is a slice of that cell.
  NodeId add_slice(NodeId n) {
    Node node = g_[n];
    auto& [start, step] = std::get<SliceAttributes>(node.attributes);
    Box taken;
    for (std::size_t d = 0; d < start.size(); ++d) {
      const std::int64_t last = start[d] + std::max<std::int64_t>(node.shape[d] - 1, 0) * step[d];
      taken.start.push_back(std::min(start[d], last));
      taken.shape.push_back(std::abs(last - start[d]) + 1);
    }
    for (const Cell& cell : cells_[at(node.arguments[0])]) {
      if (node.size() == 0 || !is_inside(taken, cell.box)) continue;
      for (std::size_t d = 0; d < start.size(); ++d) start[d] -= cell.box.start[d];
      node.arguments = {cell.node};
      return add(std::move(node));
    }
    return add_whole(n);
  }

  /// The whole value. A view's is the view of its argument's whole: it costs nothing.
  NodeId whole(NodeId n) {
    if (whole_[at(n)] >= 0) return whole_[at(n)];
    if (kind(g_[n].op) == OpKind::kView) return whole_[at(n)] = add_whole(n);
    auto next = cells_[at(n)].begin();
    return whole_[at(n)] = joined(n, g_[n].shape, 0, next);
  }

  /// The cells from `next` on that make up `shape`, which is whole along the axes from `axis` on.
  NodeId joined(NodeId n, Extents shape, std::size_t axis, std::vector<Cell>::iterator& next) {
    while (axis < shape.size() && tiling_.cuts[at(n)][axis].empty()) ++axis;
    if (axis == shape.size()) return (next++)->node;
    Node join = g_[n];
    join.op = Op::concatenate;
    join.stage = g_[tiling_.origin[at(n)]].stage;
    join.attributes = JoinAttributes{static_cast<int>(axis)};
    join.shape = shape;
    join.arguments.clear();
    for (std::size_t i = 0; i <= tiling_.cuts[at(n)][axis].size(); ++i) {
      shape[axis] = next->box.shape[axis];
      join.arguments.push_back(joined(n, shape, axis + 1, next));
    }
    return add(std::move(join));
  }

  const Tiling& tiling_;
  StageId stage_ = -1;  ///< of what is computed
  std::vector<std::vector<Cell>> cells_;
  std::vector<NodeId> whole_;  ///< by node, -1: not made yet
};

}  // namespace

Graph in_cells(const Graph& g, const std::set<NodeId>& seeds) {
  const auto tiling = tiling_of(g, seeds);
  return tiling ? Cells(g, *tiling).run() : g;
}

}  // namespace kfusion
