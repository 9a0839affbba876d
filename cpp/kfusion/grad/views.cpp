// Adjoints of views and joins. Parts of an array are joined again where they do not overlap.
#include <algorithm>

#include "kfusion/grad/backward.hpp"
#include "kfusion/grad/emitter.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion::grad {

void Backward::of_view(NodeId id, NodeId g) {
  const Node n = node(id);
  const NodeId x = n.arguments[0];
  const Extents shape = node(x).shape;
  if (const auto* t = std::get_if<TransposeAttributes>(&n.attributes)) {
    AxisList back(t->axes.size());
    for (std::size_t i = 0; i < back.size(); ++i) back[at(t->axes[i])] = static_cast<int>(i);
    return give(x, b_.transpose(g, back));
  }
  if (const auto* s = std::get_if<SliceAttributes>(&n.attributes)) {
    cotangents_[x].parts.push_back({*s, g});
    return;
  }
  give(x, n.op == Op::broadcast ? sum_to(b_, g, shape) : b_.reshape(g, shape));
}

void Backward::of_join(NodeId id, NodeId g) {
  const Node n = node(id);
  const int axis = std::get<JoinAttributes>(n.attributes).axis;
  std::int64_t start = 0;
  for (const NodeId part : n.arguments) {
    const std::int64_t extent = node(part).shape[at(axis)];
    if (wanted(part)) give(part, window(b_, g, axis, start, extent));
    start += extent;
  }
}

/// Elements `step` apart along an axis, with zeros between them; the other way round where it is negative.
NodeId Backward::dilated(NodeId x, int axis, std::int64_t step) {
  const Node n = node(x);
  const std::int64_t extent = n.shape[at(axis)], apart = step < 0 ? -step : step;
  if (step < 0 && extent > 1) {
    std::vector<AxisSlice> slices;
    for (const std::int64_t e : n.shape) slices.push_back({0, e, 1});
    slices[at(axis)] = {extent - 1, -1, -1};
    x = b_.slice(x, slices);
  }
  if (apart == 1 || extent < 2) return x;
  Extents spread = n.shape, flat = n.shape;
  spread.insert(spread.begin() + axis + 1, 1, 1);
  flat[at(axis)] = extent * apart;
  const NodeId wide = window(b_, b_.reshape(x, spread), axis + 1, 0, apart);
  return window(b_, b_.reshape(wide, flat), axis, 0, (extent - 1) * apart + 1);
}

/// A part in its place along the axes from `first_axis` on, with zeros around it.
NodeId Backward::placed(const Part& part, const Extents& shape, int first_axis) {
  NodeId x = part.g;
  for (int axis = first_axis; axis < std::ssize(shape); ++axis) {
    const std::int64_t step = part.slice.step[at(axis)], extent = node(x).shape[at(axis)];
    const std::int64_t lowest = part.slice.start[at(axis)] + std::min<std::int64_t>(0, step * (extent - 1));
    x = window(b_, dilated(x, axis, step), axis, -lowest, shape[at(axis)]);
  }
  return x;
}

/// Parts that lie behind each other along one axis, with zeros between them, as one array. Nothing where they do not.
std::optional<NodeId> Backward::joined(const std::vector<Part>& parts, const Extents& shape) {
  if (parts.size() < 2) return std::nullopt;
  std::optional<std::size_t> along;
  for (const Part& part : parts) {
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const std::int64_t extent = node(part.g).shape[d];
      if (part.slice.step[d] != 1 || extent == 0) return std::nullopt;
      if (extent == shape[d]) continue;
      if (along.value_or(d) != d) return std::nullopt;
      along = d;
    }
  }
  if (!along) return std::nullopt;
  std::vector<Part> sorted = parts;
  std::ranges::sort(sorted, {}, [&](const Part& p) { return p.slice.start[*along]; });
  NodeIds joins;
  std::int64_t end = 0;
  const auto fill_to = [&](std::int64_t start) {
    Extents gap = shape;
    gap[*along] = start - end;
    if (start > end) joins.push_back(zeros(b_, gap, node(parts[0].g).dtype));
  };
  for (const Part& part : sorted) {
    const std::int64_t start = part.slice.start[*along];
    if (start < end) return std::nullopt;
    fill_to(start);
    joins.push_back(part.g);
    end = start + node(part.g).shape[*along];
  }
  fill_to(shape[*along]);
  return b_.concatenate(std::move(joins), static_cast<int>(*along));
}

}  // namespace kfusion::grad
