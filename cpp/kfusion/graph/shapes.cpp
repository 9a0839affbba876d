#include "kfusion/graph/shapes.hpp"

#include <algorithm>
#include <tuple>

#include "kfusion/error.hpp"
#include "kfusion/ops/names.hpp"

namespace kfusion {
namespace {

[[noreturn]] void refuse(std::string_view who, const std::string& what) {
  throw ValueError(std::string(who) + ": " + what);
}

const Extents& argument_shape(const Graph& g, const Node& n, std::size_t i) { return g[n.arguments[i]].shape; }

Extents map_shape(const Graph& g, const Node& n) {
  Extents result;
  for (const NodeId a : n.arguments) {
    if (auto both = broadcast(result, g[a].shape)) {
      result = std::move(*both);
      continue;
    }
    std::string shapes;
    for (const NodeId b : n.arguments) shapes.append(" ").append(shape_text(g[b].shape));
    refuse(name(n.op), "operands could not be broadcast together with shapes" + shapes);
  }
  return result;
}

Extents reduce_shape(const Graph& g, const Node& n) {
  const auto& [axes, keepdims, whole] = std::get<ReduceAttributes>(n.attributes);
  Extents shape = argument_shape(g, n, 0);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (info(n.op).needs_elements() && shape[*axis] == 0)
      refuse(name(n.op),
             "zero-size array to reduction operation " + std::string(name(n.op)) + ", which has no identity");
    if (keepdims)
      shape[*axis] = 1;
    else
      shape.erase(shape.begin() + *axis);
  }
  return shape;
}

Extents transpose_shape(const Graph& g, const Node& n) {
  Extents shape;
  for (const int axis : std::get<TransposeAttributes>(n.attributes).axes)
    shape.push_back(argument_shape(g, n, 0)[axis]);
  return shape;
}

std::int64_t elements(const Extents& shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

Extents reshape_shape(const Graph& g, const Node& n) { return completed_reshape(argument_shape(g, n, 0), n.shape); }

Extents slice_shape(const Graph& g, const Node& n) {
  const Extents& from = argument_shape(g, n, 0);
  const auto& [start, step] = std::get<SliceAttributes>(n.attributes);
  if (start.size() != from.size() || step.size() != from.size() || n.shape.size() != from.size())
    refuse("slice", "x has " + std::to_string(from.size()) + " axes, got " + std::to_string(start.size()) + " slices");
  for (std::size_t d = 0; d < from.size(); ++d) {
    std::int64_t last = start[d];  // of the elements taken
    const bool overflow = __builtin_mul_overflow(std::max<std::int64_t>(n.shape[d] - 1, 0), step[d], &last) ||
                          __builtin_add_overflow(last, start[d], &last);
    const auto inside = [&](std::int64_t i) { return i >= 0 && i < from[d]; };
    if (step[d] == 0) refuse("slice", "slice step cannot be zero");
    if (n.shape[d] > 0 && (overflow || !inside(start[d]) || !inside(last)))
      refuse("slice", "a slice of axis " + std::to_string(d) + " leaves x, whose shape is " + shape_text(from));
  }
  return n.shape;
}

Extents broadcast_shape(const Graph& g, const Node& n) {
  const Extents& from = argument_shape(g, n, 0);
  if (broadcast(from, n.shape) != n.shape)
    refuse("broadcast", "shape " + shape_text(from) + " could not be broadcast to " + shape_text(n.shape));
  return n.shape;
}

/// floor((x + 2 padding - dilation (w - 1) - 1) / stride) + 1
std::int64_t window_count(std::int64_t x, std::int64_t w, const Conv2dAttributes& c, int axis) {
  std::int64_t span = 0;  // from a window's first element to its last
  const std::int64_t room = x + 2 * c.padding[axis] - 1;
  if (w < 1 || __builtin_mul_overflow(c.dilation[axis], w - 1, &span) || span > room)
    refuse("conv2d", "a window of extent " + std::to_string(w) + " and dilation " + std::to_string(c.dilation[axis]) +
                         " does not fit an axis of extent " + std::to_string(x) + " with padding " +
                         std::to_string(c.padding[axis]));
  return (room - span) / c.stride[axis] + 1;
}

Extents conv2d_shape(const Graph& g, const Node& n) {
  const Extents &x = argument_shape(g, n, 0), &w = argument_shape(g, n, 1);
  const auto& c = std::get<Conv2dAttributes>(n.attributes);
  if (x.size() != 4 || w.size() != 4)
    refuse("conv2d", "x and w must have 4 axes, got shapes " + shape_text(x) + " and " + shape_text(w));
  const auto within = [](const std::int64_t (&v)[2], int least) {
    return std::ranges::all_of(v, [&](std::int64_t i) { return i >= least && i <= INT32_MAX; });
  };
  if (!within(c.stride, 1) || !within(c.dilation, 1) || !within(c.padding, 0))
    refuse("conv2d", "stride and dilation must be from 1, padding from 0, all below 2^31");
  if (c.groups < 1 || x[1] % c.groups != 0 || w[0] % c.groups != 0 || w[1] != x[1] / c.groups)
    refuse("conv2d", "w must have x's " + std::to_string(x[1]) + " channels / " + std::to_string(c.groups) +
                         " groups, and a multiple of the groups as outputs; got " + shape_text(w));
  return {x[0], w[0], window_count(x[2], w[2], c, 0), window_count(x[3], w[3], c, 1)};
}

Extents take_shape(const Graph& g, const Node& n) {
  const Extents &x = argument_shape(g, n, 0), &indices = argument_shape(g, n, 1);
  const int axis = std::get<TakeAttributes>(n.attributes).axis;
  if (x[axis] == 0 && std::ranges::count(indices, 0) == 0)
    refuse("take", "cannot do a non-empty take from an empty axis");
  Extents shape(x.begin(), x.begin() + axis);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), x.begin() + axis + 1, x.end());
  return shape;
}

/// The indices', which has x's other extents.
Extents take_along_axis_shape(const Graph& g, const Node& n) {
  const Extents& indices = argument_shape(g, n, 1);
  Extents x = argument_shape(g, n, 0);
  const auto axis = at(std::get<TakeAttributes>(n.attributes).axis);
  const bool empty_axis = x[axis] == 0;
  if (x.size() == indices.size()) x[axis] = indices[axis];
  if (x != indices)
    refuse("take_along_axis", "indices must have the shape of x but for axis " + std::to_string(axis) + ", got " +
                                  shape_text(argument_shape(g, n, 0)) + " and " + shape_text(indices));
  if (empty_axis && product(indices) != 0) refuse("take_along_axis", "cannot do a non-empty take from an empty axis");
  return indices;
}

/// What all parts have alike, with the extents along the axis added up.
Extents join_shape(const Graph& g, const Node& n) {
  const auto axis = at(std::get<JoinAttributes>(n.attributes).axis);
  Extents shape = argument_shape(g, n, 0);
  std::int64_t sum = 0;
  for (const NodeId a : n.arguments) {
    Extents part = g[a].shape;
    const bool has_axis = part.size() > axis && !__builtin_add_overflow(sum, part[axis], &sum);
    if (has_axis) shape[axis] = part[axis];
    if (!has_axis || part != shape) {
      std::string shapes;
      for (const NodeId b : n.arguments) shapes.append(" ").append(shape_text(g[b].shape));
      refuse("concatenate", "parts must have one shape but for axis " + std::to_string(axis) + ", got" + shapes);
    }
  }
  shape[axis] = sum;
  return shape;
}

/// The parts, then the axes that are not summed.
Extents partial_shape(const Graph& g, const Node& n) {
  const auto& [axes, parts] = std::get<PartialAttributes>(n.attributes);
  const Extents& x = argument_shape(g, n, 0);
  if (axes < 1 || axes > std::ssize(x) || parts < 1)
    refuse("partial_sums", "there must be leading axes and parts, got " + std::to_string(axes) + " axes of " +
                               shape_text(x) + " and " + std::to_string(parts) + " parts");
  Extents shape = {parts};
  shape.insert(shape.end(), x.begin() + axes, x.end());
  return shape;
}

}  // namespace

std::string shape_text(const Extents& shape) { return shape_text(static_cast<int>(shape.size()), shape.data()); }

void require_bounded(std::string_view who, const Extents& shape, DType dtype) {
  if (shape.size() > kMaxDims) refuse(who, "at most 64 axes are possible, got " + std::to_string(shape.size()));
  std::int64_t bytes = static_cast<std::int64_t>(item_bytes(dtype));
  for (const std::int64_t extent : shape) {
    if (extent < 0) refuse(who, "negative dimensions are not allowed, got " + shape_text(shape));
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes))
      refuse(who,
             "array is too big: shape " + shape_text(shape) + " of " + name(dtype) + " has more than 2^63 - 1 bytes");
  }
}

int normalized_axis(std::string_view who, std::int64_t axis, std::size_t ndim) {
  const auto n = static_cast<std::int64_t>(ndim);
  if (axis < -n || axis >= n)
    refuse(who, "axis " + std::to_string(axis) + " is out of bounds for array of dimension " + std::to_string(n));
  return static_cast<int>(axis < 0 ? axis + n : axis);
}

Extents completed_reshape(const Extents& from, Extents shape) {
  const std::string wanted = shape_text(shape);
  const auto impossible = [&] {
    refuse("reshape", "cannot reshape array of size " + std::to_string(elements(from)) + " into shape " + wanted);
  };
  if (std::ranges::count(shape, -1) > 1) refuse("reshape", "can only specify one unknown dimension, got " + wanted);
  const auto open = std::ranges::find(shape, -1);
  if (open != shape.end()) *open = 1;
  require_bounded("reshape", shape, DType::kBool);
  const std::int64_t have = elements(from), known = elements(shape);
  if (open != shape.end()) {
    if (known == 0 || have % known != 0) impossible();
    *open = have / known;
  } else if (have != known) {
    impossible();
  }
  return shape;
}

std::optional<Extents> broadcast(const Extents& a, const Extents& b) {
  const auto& [longer, shorter] = a.size() >= b.size() ? std::tie(a, b) : std::tie(b, a);
  Extents result = longer;
  for (std::size_t i = 1; i <= shorter.size(); ++i) {
    std::int64_t& extent = result.end()[-static_cast<std::ptrdiff_t>(i)];
    const std::int64_t other = shorter.end()[-static_cast<std::ptrdiff_t>(i)];
    if (extent == 1) extent = other;
    if (other != 1 && other != extent) return std::nullopt;
  }
  return result;
}

Extents matmul_shape(const Extents& a, const Extents& b) {
  if (a.size() < 2 || b.size() < 2)
    refuse("matmul", "both arguments must have at least 1 axis, got shapes " + shape_text(a) + " and " + shape_text(b));
  if (a.back() != b.end()[-2])
    refuse("matmul", "the last axis of shape " + shape_text(a) + " and the second to last of " + shape_text(b) +
                         " must agree, got " + std::to_string(a.back()) + " and " + std::to_string(b.end()[-2]));
  auto result = broadcast({a.begin(), a.end() - 2}, {b.begin(), b.end() - 2});
  if (!result)
    refuse("matmul", "leading axes could not be broadcast together with shapes " + shape_text(a) + " " + shape_text(b));
  result->insert(result->end(), {a.end()[-2], b.back()});
  return *result;
}

Extents inferred_shape(const Graph& g, const Node& n) {
  switch (n.op) {
    case Op::transpose:
      return transpose_shape(g, n);
    case Op::reshape:
      return reshape_shape(g, n);
    case Op::slice:
      return slice_shape(g, n);
    case Op::broadcast:
      return broadcast_shape(g, n);
    case Op::matmul:
      return matmul_shape(argument_shape(g, n, 0), argument_shape(g, n, 1));
    case Op::conv2d:
      return conv2d_shape(g, n);
    case Op::take:
      return take_shape(g, n);
    case Op::take_along_axis:
      return take_along_axis_shape(g, n);
    case Op::concatenate:
      return join_shape(g, n);
    case Op::partial_sums:
      return partial_shape(g, n);
    case Op::cast:
      return argument_shape(g, n, 0);
    default:
      break;
  }
  switch (kind(n.op)) {
    case OpKind::kMap:
      return map_shape(g, n);
    case OpKind::kReduce:
      return reduce_shape(g, n);
    default:
      return n.shape;
  }
}

}  // namespace kfusion
